"""A person of the site decides on each job with a key of their own, and nobody else can decide for them."""

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from golden_files import GOLDEN
from in_process import Job, Sites
from test_admission import ACTOR, FEDERATION, SIGNED, ask, fresh
from typer.testing import CliRunner

from audits import AuditKey, Event, JobRefused, Note, Refusal, read
from medfedvqa.cli import app
from medfedvqa.data import CLOSED_ANSWERS, load_site
from medfedvqa.federation import approvals
from medfedvqa.federation.admission import Signature
from medfedvqa.federation.approvals import ApprovalError, JobDecision, decide, decisions, permit, waiting_jobs
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import SiteConfig, load_site_config
from medfedvqa.federation.site_database import site_database
from medfedvqa.federation.site_runtime import SiteRuntime
from privacy import DPSettings
from privacy.forecast import kept, noise_over_signal, trained_numbers

WEEK = timedelta(days=7)


@pytest.fixture
def guarded(sites: Sites, tmp_path: Path) -> tuple[SiteConfig, Path]:
    """A site with one approver, `ada`, and her key."""
    key = tmp_path / "ada.key"
    return sites("chest", approvers=[str(AuditKey.at(key, "ada").public)])["chest"], key


def yes(guarded: tuple[SiteConfig, Path], valid: timedelta = WEEK, answer: Any = "yes") -> JobDecision:
    """Ada's decision on the only job that waits."""
    config, key = guarded
    (waiting,) = waiting_jobs(config)
    return decide(config, waiting, answer, "ada", key, valid)


def test_a_job_waits_until_a_person_says_yes_and_then_runs_once(
    guarded: tuple[SiteConfig, Path], quick_job: Job
) -> None:
    """Asked twice, it waits once. The log names permit and person; the same permit admits no second run."""
    config, job = guarded[0], fresh(quick_job())
    assert ask(config, job, "one") is ask(config, job, "two") is Refusal.APPROVAL
    made = yes(guarded)
    assert ask(config, job, "three") is None
    (admitted,) = [entry for entry in read(config.audit) if entry.event is Event.ADMITTED]
    assert admitted.admission is not None and admitted.admission["approver"] == "ada"
    assert (admitted.admission["permit"], admitted.admission["until"]) == (made.permit, made.until.isoformat())
    assert ask(config, fresh(quick_job()), "four") is Refusal.APPROVAL


def test_what_was_approved_is_this_definition_by_this_submitter(
    guarded: tuple[SiteConfig, Path], quick_job: Job
) -> None:
    """A changed job and another submitter's wait for a yes of their own."""
    config, job = guarded[0], fresh(quick_job())
    ask(config, job, "one")
    yes(guarded)
    assert ask(config, fresh(quick_job(rounds=job.build().config.rounds + 1)), "two") is Refusal.APPROVAL
    assert ask(config, job, "three", Signature("b" * 64, FEDERATION)) is Refusal.APPROVAL
    assert len(waiting_jobs(config)) == 3
    assert ask(config, job, "four") is None


def test_a_no_and_an_end_stop_a_job_and_a_later_yes_admits_it(guarded: tuple[SiteConfig, Path], quick_job: Job) -> None:
    """A no has its own code; a yes that has ended admits nothing."""
    config, job = guarded[0], fresh(quick_job())
    ask(config, job, "one")
    yes(guarded)
    yes(guarded, answer="no")
    assert ask(config, job, "two") is Refusal.DECLINED
    yes(guarded, timedelta(microseconds=1))
    assert ask(config, job, "three") is Refusal.APPROVAL
    yes(guarded)
    assert ask(config, job, "four") is None


def stopped(config: SiteConfig, job: JobSpec, meanwhile: Callable[[], object]) -> Refusal:
    """With which code a site refuses the next task of a job that runs."""
    with closing(SiteRuntime(config, job, "two", signature=SIGNED)) as runtime:
        runtime.handle("start", 1, {})
        meanwhile()
        with pytest.raises(JobRefused) as refused:
            runtime.handle("start", 1, {})
    return refused.value.code


def test_a_withdrawal_stops_a_running_job_at_its_next_task(guarded: tuple[SiteConfig, Path], quick_job: Job) -> None:
    """The task before it ran."""
    config, job = guarded[0], fresh(quick_job())
    ask(config, job, "one")
    yes(guarded)
    assert stopped(config, job, lambda: yes(guarded, answer="no")) is Refusal.DECLINED
    assert [entry.admission for entry in read(config.audit) if entry.event is Event.REFUSAL][-1] == {
        "code": "declined",
        "definition": job.definition,
    }


def in_eight_days(guarded: tuple[SiteConfig, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ada says yes for a month, and then the week of her first yes is over."""
    yes(guarded, timedelta(days=30))
    later = SimpleNamespace(now=lambda zone: datetime.now(zone) + timedelta(days=8))
    monkeypatch.setattr(approvals, "datetime", later)


def test_a_run_ends_with_its_own_yes_whatever_another_run_was_given(
    guarded: tuple[SiteConfig, Path], quick_job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second yes for the same definition, of a month, does not carry a run whose own week is over."""
    config, job = guarded[0], fresh(quick_job())
    ask(config, job, "one")
    yes(guarded)
    assert stopped(config, job, lambda: in_eight_days(guarded, monkeypatch)) is Refusal.APPROVAL


def test_a_run_that_goes_on_after_a_kill_needs_its_own_yes_still(
    guarded: tuple[SiteConfig, Path], quick_job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log says by which yes it was admitted; the same run asks again, and a later yes is another run's."""
    config, job = guarded[0], fresh(quick_job())
    ask(config, job, "one")
    yes(guarded)
    assert ask(config, job, "two") is ask(config, job, "two") is None
    in_eight_days(guarded, monkeypatch)
    assert ask(config, job, "two") is Refusal.APPROVAL


def forged(config: SiteConfig, job: JobSpec, key: AuditKey, **changes: Any) -> None:
    """A note as `decide` writes it, by another hand."""
    now = datetime.now(UTC)
    facts = {"site": "chest", "definition": job.definition, "submitter": ACTOR, "answer": "yes", "permit": "0" * 16}
    decision = JobDecision(**facts | {"person": "ada", "made": now, "until": now + WEEK} | changes)
    written(config, str(key.sign(approvals._HEAD + json.dumps(decision.model_dump(mode="json")) + "\n")))


def written(config: SiteConfig, note: str | None) -> None:
    """Puts a note behind the site's back, in the place of the last such note; None takes it away."""
    with site_database(config.state) as database, database.writing() as connection:
        connection.execute("DELETE FROM decision WHERE permit = 'forged'")
        connection.executemany("INSERT INTO decision VALUES ('forged', 'no', ?)", [(note,)] if note else [])


def test_nobody_decides_for_another(guarded: tuple[SiteConfig, Path], quick_job: Job, tmp_path: Path) -> None:
    """The site's own key, a stranger's under the approver's name, another site's yes and a note that was edited are no
    decisions; a note that cannot be read stops all jobs, since it may have been a no."""
    config, job = guarded[0], fresh(quick_job())
    ask(config, job, "one")
    stranger, ada = AuditKey.at(tmp_path / "stranger.key", "ada"), AuditKey.at(guarded[1], "ada")
    own = AuditKey.at(config.audit_key, "ada")
    lies = ((stranger, {}), (own, {}), (ada, {"site": "head"}), (ada, {"person": "bob"}))
    for number, (key, changes) in enumerate(lies):
        forged(config, job, key, **changes)
        assert ask(config, job, f"two-{number}") is Refusal.APPROVAL and decisions(config) == []
    forged(config, job, ada, definition="f" * 64)
    [note] = [note for note in notes(config) if "f" * 64 in note]
    written(config, note.replace("f" * 64, job.definition))
    assert ask(config, job, "three") is Refusal.APPROVAL
    written(config, None)
    yes(guarded)
    written(config, "not a note")
    assert ask(config, job, "four") is Refusal.APPROVAL
    with pytest.raises(ApprovalError, match="cannot be read"):
        decisions(config)
    written(config, None)
    assert ask(config, job, "five") is None
    assert Note.parse(notes(config)[0]).signatures[0][0] == "ada"


def notes(config: SiteConfig) -> list[str]:
    with site_database(config.state) as database, database.reading() as connection:
        return [note for (note,) in connection.execute("SELECT note FROM decision")]


def test_decisions_of_0_2_0_count_and_are_taken_over_once(tmp_path: Path) -> None:
    """A no that a person signed then still stands; a damaged file refuses every job, and stays."""
    folder = Path(shutil.copytree(GOLDEN / "site-0.2.0" / "chest", tmp_path / "chest"))
    config = load_site_config(folder / "site.yml", "chest")
    files = sorted((folder / "audit" / approvals.FOLDER).iterdir())
    damaged = files[0].with_name("damaged.note")
    damaged.write_text("not a note")
    for look in (decisions, waiting_jobs):
        with pytest.raises(ApprovalError, match="look into it"):
            look(config)
    assert sorted(damaged.parent.iterdir()) == sorted([*files, damaged])
    damaged.unlink()
    for _ in range(2):
        ([decision], [waiting]) = decisions(config), waiting_jobs(config)
        assert (decision.answer, decision.person, waiting.name) == ("no", "ada", decision.definition[:12])
        assert permit(config, waiting.definition, waiting.submitter) == (None, Refusal.DECLINED)
        assert not list(damaged.parent.iterdir())


def test_a_key_that_is_no_approver_s_decides_nothing(guarded: tuple[SiteConfig, Path], quick_job: Job) -> None:
    """The error names the command that prints a key's line."""
    config = guarded[0]
    ask(config, fresh(quick_job()), "one")
    (waiting,) = waiting_jobs(config)
    for person, key in (("ada", guarded[1].with_name("new.key")), ("bob", guarded[1])):
        with pytest.raises(ApprovalError, match="jobs approver"):
            decide(config, waiting, "yes", person, key, WEEK)


def test_waiting_jobs_are_bounded(
    guarded: tuple[SiteConfig, Path], quick_job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who submits ever new definitions fills no disk, and is refused like everybody."""
    monkeypatch.setattr(approvals, "MOST_WAITING", 2)
    for rounds in (1, 2, 3, 4):
        assert ask(guarded[0], fresh(quick_job(rounds=rounds)), f"job-{rounds}") is Refusal.APPROVAL
    assert len(waiting_jobs(guarded[0])) == 2


def test_the_commands_go_from_a_line_in_site_yml_to_a_permit(
    guarded: tuple[SiteConfig, Path], quick_job: Job, tmp_path: Path
) -> None:
    """As a person of the hospital types them; the page says what leaves and what it costs."""
    config, key = guarded
    job = fresh(quick_job(answers="closed").model_copy(update={"dp": None}))
    ask(config, job, "one")
    site = ["--site", str(config.audit.parent / "site.yml")]

    def medfedvqa(*words: str, group: str = "jobs") -> str:
        done = CliRunner().invoke(app, [group, *words])
        assert done.exit_code == 0, (done.output, done.exception)
        return done.output

    assert medfedvqa("approver", "ada", "--key", str(key)).strip() in config.approvers
    assert "nobody has decided" in medfedvqa("pending", *site)
    name = json.loads(medfedvqa("pending", *site, "--json"))["jobs"][0]["name"]
    page = " ".join(medfedvqa("show", name, *site).split())
    assert job.definition in page and ACTOR in page and "none: nothing bounds what can be learned" in page
    assert "the server" in page and "numbers" in page
    assert "Permit" in medfedvqa("approve", name, *site, "--person", "ada", "--key", str(key), "--days", "1")
    assert "yes, by ada" in medfedvqa("pending", *site) and ask(config, job, "two") is None
    assert "approved by ada, permit " in " ".join(medfedvqa("show", str(config.audit), group="audit").split())
    medfedvqa("refuse", name, *site, "--person", "ada", "--key", str(key))
    assert "no, by ada" in medfedvqa("show", name, *site)


def test_the_page_of_a_private_job_says_what_its_noise_would_leave(
    guarded: tuple[SiteConfig, Path], quick_job: Job
) -> None:
    """By the rule of `privacy plan`, for the job's sites and this site's own patients; more patients leave more."""
    config = guarded[0]
    private = {"dp": DPSettings(epsilon=8.0)}
    job = fresh(quick_job(answers="closed", finish_epochs=0).model_copy(update=private))
    ask(config, job, "one")
    (waiting,) = waiting_jobs(config)
    words = ["jobs", "show", waiting.name, "--site", str(config.audit.parent / "site.yml")]
    page = " ".join(CliRunner().invoke(app, words).output.split())
    patients = len(load_site("phantom", None, "chest", job.split, job.seed, CLOSED_ANSWERS).train.patients.unique())
    events = [event for task in job.build().plan() for event in task.events]
    sites = len(job.terms.sites)
    ratio = noise_over_signal(events, trained_numbers(job.exchange()), sites, patients)
    least, most = kept(ratio)
    assert f"with {sites} sites like this one, which has {patients} patients in training" in page
    assert f"{ratio:.2g} times" in page and f"{least:.0%} to {most:.0%} of what the sites gain" in page
    assert noise_over_signal(events, trained_numbers(job.exchange()), sites, 10 * patients) < ratio / 9
