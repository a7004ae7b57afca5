"""The bounds on pictures in `site.yml`, as a site's runtime keeps them."""

import pytest
from in_process import Job, Sites

from medfedvqa.devices import DeviceMemoryError
from medfedvqa.federation.error_codes import code_of
from medfedvqa.federation.site_runtime import SiteRuntime


def test_site_yml_bounds_memory_and_disk(sites: Sites, quick_job: Job) -> None:
    """Without memory a site trains from disk, with the same upload, and leaves no file; without disk it stops.

    The server of a private job does not learn why: how much the pictures take depends on the patients.
    """
    uploads = []
    for name, bounds in (("default", {}), ("disk", {"pictures": {"memory_mb": 0, "disk_mb": 64}})):
        config = sites("chest", **bounds)["chest"]
        config = config.model_copy(
            update={place: config.state / name / place for place in ("state", "audit", "ledger")}
        )
        runtime = SiteRuntime(config, quick_job(), "job")
        uploads.append(runtime.handle("start", 1, {}))
        assert (runtime.site.space.memory_used > 0) == (name == "default")
        assert [path.name for path in config.state.iterdir()] == ["job.pt"]
        runtime.close()
    assert uploads[0].keys() == uploads[1].keys()
    assert all((uploads[0][name] == uploads[1][name]).all() for name in uploads[0])
    config = sites("chest", pictures={"memory_mb": 0, "disk_mb": 0})["chest"]
    runtime = SiteRuntime(config, quick_job(), "other")
    with pytest.raises(DeviceMemoryError) as caught:
        runtime.handle("start", 1, {})
    assert (code_of(caught.value).value, code_of(caught.value, private=True).value) == ("memory", "failed")
    runtime.close()
