"""A job whose method and reader come from an installed distribution, in a provisioned federation."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from example_plug_in import METHOD, NAME, READER, SMALL
from example_plug_in import here as here
from example_plug_in import pictures as pictures
from example_plug_in import target as target
from phantoms import PATIENCE, Phantoms

from audits import Event
from medfedvqa import plugins
from medfedvqa.federation.flare.provision import SERVER
from medfedvqa.federation.flare.recipe import export_job
from medfedvqa.federation.job import JobSpec

pytestmark = pytest.mark.slow
SITES = ("chest", "head")


@pytest.fixture
def federation(phantoms: Callable[..., Phantoms], here: Path, pictures: Path) -> Phantoms:
    """A server and two sites that allow the distribution, which all of their processes can import."""
    plugins.allow(plugins.pinned(NAME))
    path = os.pathsep.join(filter(None, [str(here), os.environ.get("PYTHONPATH"), str(Path(__file__).parents[2])]))
    facts = {"reader": READER, "root": str(pictures), "methods": [METHOD], "repeats": 100, "min_count": 1}
    return phantoms(SITES, environment={"PYTHONPATH": path}, plugins=plugins.allowed(), **facts)


def test_server_and_sites_decide_each_by_a_list_of_their_own(federation: Phantoms, tmp_path: Path) -> None:
    """The job runs where all allow the distribution, and every log names its digest. A site whose site.yml does not
    refuses with the code `plug-in`; a server whose kit does not ends the job before any site is asked."""
    job = JobSpec.from_dict({"method": METHOD, "options": SMALL, "data": READER, "backbone": "medclip@random"})
    export_job(job, tmp_path / "job")
    job_id = federation.submit(tmp_path / "job")
    assert federation.wait(job_id, PATIENCE) == "FINISHED:COMPLETED"
    for site in SITES:
        opened = [entry for entry in federation.log(site, job_id) if entry.event is Event.OPEN]
        named = {part["name"]: part["sha256"] for part in opened[0].code["parts"] if part["kind"] == "plug-in"}
        assert named == plugins.pinned(NAME)

    with federation.changed("head", plugins={NAME: "f" * 64}):
        job_id = federation.submit(tmp_path / "job")
        assert federation.wait(job_id, PATIENCE) != "FINISHED:COMPLETED"
    assert federation.codes("head", job_id) == ["plug-in"]

    (federation.kits / SERVER / "local" / plugins.LIST_FILE).unlink()
    job_id = federation.submit(tmp_path / "job")
    assert federation.wait(job_id, PATIENCE) != "FINISHED:COMPLETED"
    for site in SITES:
        assert not [entry for entry in federation.log(site, job_id) if entry.event is Event.OPEN]
