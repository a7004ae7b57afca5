"""A provisioned federation and an author of jobs who writes their folders by hand, with and without a server's help."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from phantoms import PATIENCE, short_job, wait_for
from tapped import TappedFederation
from taps import add_component

from audits import Entry, Event, verify
from medfedvqa.federation.flare.provision import SERVER

pytestmark = pytest.mark.slow

SITES = ("head", "chest")
SECRET = "planted-fhir-token-5e1f"
OPTIONS = {"rounds": 1, "blocks": 2}
CLEAN = short_job(options=OPTIONS)


class AttackedFederation(TappedFederation):
    """Sites with a secret and a home folder in their environment; a server that can stop to check jobs."""

    def start(self, name: str) -> None:
        planted = {"PLANTED_SECRET": SECRET, "HOME": str(self.home)}
        if name == SERVER:
            careless = {"id": "careless", "path": "taps.CarelessServer", "args": {"folder": str(self.taps)}}
            add_component(self.kits / name, careless)
        before = self._environment
        self._environment = before if name == SERVER else {**before, **planted}
        try:
            super().start(name)
        finally:
            self._environment = before

    @property
    def home(self) -> Path:
        return self.folder / "home-of-the-sites"

    def stop_checking(self, stop: bool) -> None:
        """Whether the server passes on whatever it is given."""
        if stop:
            (self.taps / "careless").touch()
        else:
            (self.taps / "careless").unlink(missing_ok=True)

    def refusal(self, site: str, job_id: str) -> Entry:
        """The one entry of a refused job, once the site's vault, which may have to start for it, has written it."""
        wait_for(lambda: self.codes(site, job_id))
        (entry,) = [entry for entry in self.log(site, job_id) if entry.event is Event.REFUSAL]
        return entry

    def at_the_server(self) -> bytes:
        """All that its process got, and all that it wrote."""
        folders = (self.kits / SERVER, self.folder / "storage")
        files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
        return self.seen() + b"".join(path.read_bytes() for path in files)


class TrustedFederation(AttackedFederation):
    """The same with a server that validates jobs."""

    checks_jobs = True


@pytest.fixture(scope="module")
def federation(request: pytest.FixtureRequest, phantoms: Callable[..., AttackedFederation]) -> AttackedFederation:
    """Its server validates jobs, or passes on whatever it is given."""
    made = phantoms(SITES, TrustedFederation if request.param else AttackedFederation, methods=["prompt_pfl"])
    made.home.mkdir(exist_ok=True)
    return made


def by_hand(folder: Path, job: dict[str, Any], **files: str) -> Path:
    """A folder that FLARE takes, made without this project's exporter; `files` go beside the configurations."""
    config = folder / "app" / "config"
    config.mkdir(parents=True)
    common = {"format_version": 2, "components": [], "task_data_filters": [], "task_result_filters": []}
    common |= {"np_download_chunk_size": 0, "tensor_download_chunk_size": 0}
    executor = {"path": "medfedvqa.federation.flare.executor.SiteExecutor", "args": {"job": job}}
    controller = {"path": "medfedvqa.federation.flare.controller.FederationController", "args": {"job": job}}
    client = {**common, "executors": [{"tasks": ["*"], "executor": executor}]}
    server = {**common, "workflows": [{"id": "controller", **controller}]}
    meta = {"name": "job", "resource_spec": {}, "min_clients": 1, "deploy_map": {"app": ["@ALL"]}}
    (config / "config_fed_client.json").write_text(json.dumps(client))
    (config / "config_fed_server.json").write_text(json.dumps(server))
    for name, text in files.items():
        (config / f"{name}.json").write_text(text)
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder


STEALING = {**CLEAN.to_dict(), "data": "{$PLANTED_SECRET}|{$HOME}|{WORKSPACE}"}
STEERING = {"comm_config": json.dumps({"allow_adhoc_conns": True, "backbone_conn_gen": 2})}
ATTACKS: dict[str, tuple[dict[str, Any], dict[str, str], str]] = {
    "environment": (STEALING, {}, "schema"),
    "memory": ({**CLEAN.to_dict(), "options": {**CLEAN.options, "length": "9" * 1000}}, {}, "schema"),
    "transport": (CLEAN.to_dict(), STEERING, "folder"),
}


def secrets(federation: AttackedFederation) -> list[bytes]:
    """What a site's environment holds and no one else may know."""
    return [text.encode() for text in (SECRET, str(federation.home), *(str(federation.kits / name) for name in SITES))]


def run_clean(federation: AttackedFederation, folder: Path) -> None:
    assert federation.status(federation.run(CLEAN, folder)) == "FINISHED:COMPLETED"


@pytest.mark.parametrize("federation", [True], ids=["honest server"], indirect=True)
@pytest.mark.parametrize(
    "attack", [pytest.param(name, marks=() if name == "transport" else pytest.mark.release) for name in ATTACKS]
)
def test_a_server_refuses_a_hostile_job_and_runs_the_next(
    federation: AttackedFederation, tmp_path: Path, attack: str
) -> None:
    """No site gets to see it, and no file of it stays where the server's later jobs would read it."""
    job, files, code = ATTACKS[attack]
    federation.forget()
    job_id = federation.submit(by_hand(tmp_path / "job", job, **files))
    assert federation.wait(job_id, PATIENCE) == "FINISHED:FAILED_TO_RUN"
    assert f"refused: {code}: " in (federation.kits / SERVER / "process.log").read_text()
    assert not (federation.kits / SERVER / job_id / f"app_{SERVER}").exists()
    assert not any(federation.codes(site, job_id) for site in SITES)
    assert not any(secret in federation.seen() for secret in secrets(federation))
    run_clean(federation, tmp_path / "clean")


@pytest.mark.parametrize("federation", [False], ids=["hostile server"], indirect=True)
@pytest.mark.parametrize("attack", ["environment", pytest.param("memory", marks=pytest.mark.release)])
def test_sites_refuse_what_a_hostile_server_passes_on_and_each_has_an_entry(
    federation: AttackedFederation, tmp_path: Path, attack: str
) -> None:
    """No secret, home folder or workspace of a site reaches the server's process; the next job runs."""
    job, files, code = ATTACKS[attack]
    federation.forget()
    federation.stop_checking(True)
    try:
        folder = by_hand(tmp_path / "job", job, **files)
        job_id = federation.submit(folder)
        assert federation.wait(job_id, PATIENCE) == "FINISHED:FAILED_TO_RUN"
    finally:
        federation.stop_checking(False)
    digest = hashlib.sha256((folder / "app" / "config" / "config_fed_client.json").read_bytes()).hexdigest()
    for site in SITES:
        entry = federation.refusal(site, job_id)
        assert entry.admission == {"code": code, "configuration": digest}
        left = federation.kits / site / job_id / f"app_{site}"
        wait_for(lambda left=left: not left.exists())  # the site refuses first, and then removes what it was sent
        assert verify(federation.kits / site / "audit").ok
    seen = federation.seen()
    assert b"refused: schema: " in seen and federation.home.is_dir()
    assert not any(secret in seen for secret in secrets(federation))
    written = federation.at_the_server()
    assert SECRET.encode() not in written and str(federation.home).encode() not in written
    run_clean(federation, tmp_path / "clean")
