"""The closed schema of a job's folder, and what a site keeps of the jobs that it refuses."""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
from nvflare.apis.fl_constant import SiteType
from nvflare.fuel.utils.config_factory import ConfigFactory
from nvflare.private.fed.app.fl_app_validator import FLAppValidator
from nvflare.private.fed.utils import app_deployer
from nvflare.private.fed.utils.app_authz import AppAuthzService

from audits import AuditKey, AuditLog, Entry, Event, JobRefused, Refusal, origin_of, read, verify
from medfedvqa.errors import MedfedvqaError, SiteDatabaseError
from medfedvqa.federation import job_closing
from medfedvqa.federation.flare import server_guard, validator
from medfedvqa.federation.flare.job_folder import check_folder, definition, read_job
from medfedvqa.federation.flare.job_schema import job_of
from medfedvqa.federation.flare.recipe import export_job, export_status_job
from medfedvqa.federation.flare.strict_json import NotAllowed
from medfedvqa.federation.flare.validator import ConfigurationOnly, ask_own_validator_first
from medfedvqa.federation.job import STATUS_JOB, JobSpec
from medfedvqa.federation.job_closing import RefusalEntries
from privacy import PrivacyError

JOB_ID = "f81d4fae-7dec-41d0-a765-00a0c91e6bf6"
CLIENT, SERVER = "config/config_fed_client.json", "config/config_fed_server.json"
GROUPS = {"method": "fedavg", "options": {"schedule": "stepwise", "mixing": "organ", "groups": [["a", "b"], ["c"]]}}
PRIVATE = {"method": "fedavg", "dp": {"epsilon": 3.0}, "options": {"answers": "closed", "weighting": "uniform"}}


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """An exported job's app, where FLARE would put it."""
    export_job(JobSpec(method="fedavg"), tmp_path / "job")
    (tmp_path / JOB_ID).mkdir()
    return (tmp_path / "job" / "app").rename(tmp_path / JOB_ID / "app_chest")


@pytest.fixture
def entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RefusalEntries:
    """The site's, to which the validator of this process reports."""
    (tmp_path / "audit").mkdir()
    log = AuditLog(tmp_path / "audit", "chest", AuditKey.at(tmp_path / "audit.key", origin_of("chest")))
    made = RefusalEntries(log, tmp_path / "state")
    monkeypatch.setattr(validator, "_reports", [made.enter])
    return made


def edit(app: Path, change: Callable[[dict[str, Any]], object], names: tuple[str, ...] = (CLIENT, SERVER)) -> None:
    """Change the job in these configurations."""
    for name in names:
        config = json.loads((app / name).read_text())
        (holder,) = config["executors"] if name == CLIENT else config["workflows"]
        change(holder.get("executor", holder)["args"]["job"])
        (app / name).write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("field", "edge", "beyond"),
    [
        *(("epsilon", 1e5, 1.001e5), ("clip", 1e6, 1.001e6), ("clip", 1e-6, 9e-7), ("sample_rate", 1e-5, 9e-6)),
        *(("sample_rate", 1.0, 1.001), ("delta", 1e-300, 0.0), ("delta", 0.999, 1.0), ("count_share", 0.999, 1.0)),
        *(("expected_patients", 10_000_000, 10_000_001), ("patient_rows", 4096, 4097), ("patient_rows", 1, 0)),
        ("physical_patients", 4096, 4097),
    ],
)
def test_settings_of_privacy_have_bounds_in_a_job_s_text(field: str, edge: float, beyond: float) -> None:
    """The text is refused beyond what differential privacy can be charged for, and taken at the edge."""
    for value, allowed in ((edge, True), (beyond, False)):
        job = {"method": "fedavg", "dp": {"epsilon": 1.0} | {field: value}}
        assert outcome(lambda job=job: JobSpec.model_validate_json(json.dumps(job), strict=True)) is allowed


def outcome(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except (PrivacyError, MedfedvqaError, ValueError):
        return False
    return True


@pytest.mark.parametrize("job", [{"method": "prompt_pfl"}, PRIVATE, GROUPS, {"method": "fedavg", "secagg": True}])
def test_what_is_exported_is_taken_and_read_as_it_was(tmp_path: Path, job: dict[str, Any]) -> None:
    """Not so with FLARE's own settings, by which arrays are fetched afterwards: sites take no part in downloads."""
    spec = JobSpec.from_dict(job)
    export_job(spec, tmp_path / "untuned", tuned=False)
    assert ConfigurationOnly().validate(str(tmp_path / "untuned" / "app"))[0].startswith("refused: schema: ")
    export_job(spec, tmp_path / "job")
    assert ConfigurationOnly().validate(str(tmp_path / "job" / "app")) == ("", {})
    assert check_folder(tmp_path / "job" / "app") == spec.to_dict()


def test_the_question_for_budgets_is_taken(tmp_path: Path) -> None:
    """It has no method's fields."""
    export_status_job(tmp_path / "job")
    assert read_job(tmp_path / "job" / "app") == STATUS_JOB


EDITS: dict[str, Callable[[dict[str, Any]], object]] = {
    "environment": lambda job: job.update(data="{$HOME}"),
    "workspace": lambda job: job.update(backbone="{WORKSPACE}"),
    "secret": lambda job: job.update(data="${secret:HOME}"),
    "environment in a key": lambda job: job["options"].update({"{$HOME}": 1}),
    "environment in an option": lambda job: job["options"].update(trunk="{$HOME}"),
    "environment in a list": lambda job: job["options"].update(answers=["yes", "{$HOME}"]),
    "unknown field": lambda job: job.update(path="x"),
    "missing method": lambda job: job.pop("method"),
    "unknown setting of privacy": lambda job: job.update(dp={"epsilon": 1.0, "x": 1}),
    "rows for patients": lambda job: job.update(dp={"epsilon": 1.0, "unit": "row"}),
    "unknown part of a split": lambda job: job["split"].update(x=1),
    "text for a number": lambda job: job.update(seed="1"),
    "truth for a number": lambda job: job.update(min_sites=True),
    "negative seed": lambda job: job.update(seed=-1),
    "huge number": lambda job: job.update(seed=2**63),
    "long text": lambda job: job["options"].update(trunk="x" * 201),
    "control characters": lambda job: job["options"].update(trunk="x\x1b[2J"),
    "deep": lambda job: job["options"].update(unseen=[[["a"]]]),
    "FLARE's interval": lambda job: job["options"].update(default_task_fetch_interval=9),
    "path for a backbone": lambda job: job.update(backbone="/etc/passwd"),
    "terms": lambda job: job.update(terms={"nonce": "x"}),
    "privacy": lambda job: job.update(dp={"epsilon": 1e300}),
}


@pytest.mark.parametrize("change", EDITS)
def test_a_job_outside_of_the_schema_is_refused_before_flare_parses_it(
    app: Path, entries: RefusalEntries, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """By a code and its sentence; FLARE's own validator, which comes first in FLARE, is not asked."""
    parsed: list[object] = []
    monkeypatch.setattr(ConfigFactory, "load_config", lambda *given: parsed.append(given) or {})
    for kind in (SiteType.CLIENT, SiteType.SERVER):
        monkeypatch.setattr(AppAuthzService, "app_validator", FLAppValidator(kind, [ConfigurationOnly()]))
        ask_own_validator_first()
        assert AppAuthzService.validate_app(str(app)) == ("", {}) and len(parsed) == 1
        parsed.clear()
    edit(app, EDITS[change])
    assert AppAuthzService.validate_app(str(app)) == (f"refused: schema: {Refusal.SCHEMA.sentence}", {}) and not parsed
    with pytest.raises(JobRefused):
        read_job(app)


@pytest.mark.parametrize("name", [CLIENT, SERVER])
def test_sites_and_server_must_have_the_same_job(app: Path, name: str) -> None:
    """Also where Python holds two values for equal."""
    edit(app, lambda job: job.update(seed=1), (name,))
    with pytest.raises(JobRefused, match="different jobs"):
        read_job(app)
    client, server = (json.loads((app / name).read_text()) for name in (CLIENT, SERVER))
    client["executors"][0]["executor"]["args"]["job"]["split"]["validation"] = 0
    server["workflows"][0]["args"]["job"]["seed"] = client["executors"][0]["executor"]["args"]["job"]["seed"]
    server["workflows"][0]["args"]["job"]["split"]["validation"] = 0.0
    with pytest.raises(NotAllowed, match="different jobs"):
        job_of(client, server)


def test_the_validator_needs_no_torch(app: Path) -> None:
    """It runs in the parent processes of sites and server."""
    code = (
        "import sys\n"
        "from medfedvqa.federation.flare.validator import ConfigurationOnly\n"
        "assert ConfigurationOnly().validate(sys.argv[1]) == ('', {})\n"
        "assert not {'torch', 'opacus', 'crypten'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code, str(app)], check=True)


def archive(*files: tuple[str, bytes]) -> bytes:
    content = io.BytesIO()
    with ZipFile(content, "w", ZIP_DEFLATED) as packed:
        for name, data in files:
            packed.writestr(name, data)
    return content.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        archive(("config/a.json", bytes(1 << 24))),
        archive(*((f"config/{number}", b"") for number in range(50))),
        b"no archive",
    ],
    ids=["bomb", "many", "damaged"],
)
def test_an_archive_that_holds_too_much_is_not_unpacked_at_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    """FLARE unpacks before it asks the validator."""
    monkeypatch.setattr(app_deployer, "unzip_all_from_bytes", app_deployer.unzip_all_from_bytes)
    server_guard._unpack_small_archives_only()
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(JobRefused):
        app_deployer.unzip_all_from_bytes(content, str(out))
    assert not list(out.iterdir())
    app_deployer.unzip_all_from_bytes(archive((CLIENT, b"{}")), str(out))
    assert (out / CLIENT).read_bytes() == b"{}"


def refusals(folder: Path) -> list[Entry]:
    return [entry for entry in read(folder / "audit") if entry.event is Event.REFUSAL]


def test_a_refused_job_has_an_entry_with_code_and_definition(
    app: Path, entries: RefusalEntries, tmp_path: Path
) -> None:
    """Which the site's log verifies, and which repeats nothing of the job."""
    edit(app, lambda job: job.update(data="{$PLANTED}"))
    assert ConfigurationOnly().validate(str(app))[0]
    (entry,) = refusals(tmp_path)
    assert entry.job == JOB_ID and entry.outcome == "refused" and entry.reason == Refusal.SCHEMA.sentence
    assert entry.admission == {"code": "schema", "configuration": definition(app)}
    assert "PLANTED" not in json.dumps(entry.record()) and verify(tmp_path / "audit").ok


def test_a_log_that_cannot_be_written_lets_no_job_through(
    app: Path, entries: RefusalEntries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is refused all the same."""

    def full(*given: object) -> None:
        raise SiteDatabaseError("no space")

    monkeypatch.setattr(job_closing, "site_database", full)
    edit(app, lambda job: job.update(seed=-1))
    assert ConfigurationOnly().validate(str(app))[0].startswith("refused: schema: ")


def test_entries_of_a_day_are_bounded_also_across_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows is counted, and the count is an entry of the next day."""
    monkeypatch.setattr(job_closing, "MOST_ENTRIES", 3)
    folder = tmp_path / "audit"
    (tmp_path / "state").mkdir()
    folder.mkdir()
    (tmp_path / "state" / "refusals").write_text('["2025-12-31", 5]')  # as version 0.2.0 wrote it
    log = AuditLog(folder, "chest", AuditKey.at(tmp_path / "audit.key", origin_of("chest")))
    for _ in range(7):
        RefusalEntries(log, tmp_path / "state", lambda: date(2026, 1, 1)).enter(Refusal.SCHEMA, JOB_ID, None)
    assert [entry.job for entry in refusals(tmp_path)] == [None] + [JOB_ID] * 3 + [None]
    RefusalEntries(log, tmp_path / "state", lambda: date(2026, 1, 2)).enter(Refusal.FOLDER, JOB_ID, None)
    first, *_, summary, last = refusals(tmp_path)
    assert first.admission is not None and first.admission["count"] == 2
    assert summary.admission == {"code": "throttled", "configuration": None, "count": 4}
    assert last.admission == {"code": "folder", "configuration": None} and verify(folder).ok
