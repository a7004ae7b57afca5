"""A job whose method and reader come from an installed distribution, in a provisioned federation."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_plugins import METHOD, NAME, READER, SMALL, here, pictures, target

from audits import Event, read
from medfedvqa import plugins
from medfedvqa.federation.flare.loopback import LoopbackFederation
from medfedvqa.federation.flare.provision import SERVER
from medfedvqa.federation.flare.recipe import export_job
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import site_yaml

__all__ = ["here", "pictures", "target"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    # FLARE's transport, on one of its threads.
    pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning"),
]
SITES = ("chest", "head")
PATIENCE = 300.0  # seconds


@pytest.fixture
def federation(
    here: Path, pictures: Path, random_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LoopbackFederation]:
    """A server and two sites that allow the distribution, which all of their processes can import."""
    plugins.allow(plugins.pinned(NAME))
    path = os.pathsep.join(filter(None, [str(here), os.environ.get("PYTHONPATH"), str(Path(__file__).parents[2])]))
    paths = {site: tmp_path / f"{site}.yml" for site in SITES}
    for site, file in paths.items():
        facts = {"reader": READER, "root": str(pictures), "organ": site, "state": "../state", "audit": "../audit"}
        facts |= {"backbones": {"medclip@random": str(random_backbone)}, "methods": [METHOD], "repeats": 100}
        facts |= {"min_count": 1}
        file.write_text(site_yaml(**facts, plugins=plugins.allowed()))
    with LoopbackFederation(tmp_path / "federation", paths, {"PYTHONPATH": path}) as federation:
        yield federation


def submitted(federation: LoopbackFederation, folder: Path) -> tuple[str, str]:
    """The id of a job that FLARE's own command submits, and how it ended."""
    nvflare = Path(sys.executable).with_name("nvflare")
    command = [nvflare, "job", "submit", "-j", folder, "--startup-kit", federation.admin_kit, "--format", "json"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    job_id = json.loads(answer.stdout)["data"]["job_id"]
    return job_id, federation.wait(job_id, PATIENCE)


def codes(federation: LoopbackFederation, site: str, job_id: str) -> list[str]:
    """With which codes a site refused a job."""
    log = read(federation.kits / site / "audit")
    return [e.admission["code"] for e in log if e.job == job_id and e.event is Event.REFUSAL and e.admission]


def test_server_and_sites_decide_each_by_a_list_of_their_own(federation: LoopbackFederation, tmp_path: Path) -> None:
    """The job runs where all allow the distribution, and every log names its digest. A site whose site.yml does not
    refuses with the code `plug-in`; a server whose kit does not ends the job before any site is asked."""
    job = JobSpec.from_dict({"method": METHOD, "options": SMALL, "data": READER, "backbone": "medclip@random"})
    export_job(job, tmp_path / "job")
    job_id, status = submitted(federation, tmp_path / "job")
    assert status == "FINISHED:COMPLETED"
    for site in SITES:
        opened = [e for e in read(federation.kits / site / "audit") if e.job == job_id and e.event is Event.OPEN]
        named = {part["name"]: part["sha256"] for part in opened[0].code["parts"] if part["kind"] == "plug-in"}
        assert named == plugins.pinned(NAME)

    file = federation.kits / "head" / "local" / "site.yml"
    text = file.read_text()
    file.write_text(text.replace(plugins.pinned(NAME)[NAME], "f" * 64))
    job_id, status = submitted(federation, tmp_path / "job")
    assert status != "FINISHED:COMPLETED" and codes(federation, "head", job_id) == ["plug-in"]
    file.write_text(text)

    (federation.kits / SERVER / "local" / plugins.LIST_FILE).unlink()
    job_id, status = submitted(federation, tmp_path / "job")
    assert status != "FINISHED:COMPLETED"
    for site in SITES:
        assert not [e for e in read(federation.kits / site / "audit") if e.job == job_id and e.event is Event.OPEN]
