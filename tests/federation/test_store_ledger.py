"""The ledger belongs to the hospital: all sites of a store share one, and another ledger grants no second budget."""

import fcntl
import json
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from in_process import Job, Sites, cost, work
from stores import OTHER_KEY, make_store
from untrained import DP

from audits import JobRefused, Outcome, Refusal, read, verify
from medfedvqa.errors import ConfigError
from medfedvqa.federation import job_budget
from medfedvqa.federation.flare.site_health import budget_and_jobs, read_log
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.job_budget import check_ledger, look_into
from medfedvqa.federation.job_closing import close_ended
from medfedvqa.federation.launch import plan, run
from medfedvqa.federation.live_processes import LiveProcesses
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_runtime import SiteRuntime
from medfedvqa.federation.site_status import StatusRuntime
from medfedvqa.ingest import ledger_binding
from medfedvqa.ingest.ledger_binding import ELSEWHERE, check_binding, default_ledger, open_ledger, read_binding
from privacy import BudgetRefused, Ledger, LedgerError, Limits, PlannedTask, SampledGaussian, spent

LIMITS = Limits(max_epsilon=10, delta=1e-3)
PLAN = [PlannedTask("train", 1, (SampledGaussian(rate=0.1, noise=1.0, steps=4),))]
DEADLINE = 300


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Eight patients of the chest, of whom four have a picture of the abdomen too, and four of the abdomen alone."""
    return make_store(tmp_path / "store", {"chest": range(8), "abdomen": range(4, 12)})


@pytest.fixture
def private_job(private_job: Job) -> Job:
    """The same on a store."""
    return lambda **options: private_job(**options).model_copy(update={"data": "store"})


@pytest.fixture
def organ_sites(sites: Sites, store: Path, tmp_path: Path) -> Sites:
    """The two sites of the store, each with a log of its own; keywords change what their files say."""

    def make(**changes: object) -> dict[str, SiteConfig]:
        facts = {"reader": "store", "root": str(store), "ledger": str(tmp_path / "ledger"), "delta": 1e-3}
        facts |= {"min_count": 1}
        return sites("chest", "abdomen", **{**facts, **changes})

    return make


def assert_refused(config: SiteConfig, job: JobSpec, job_id: str, sentence: str) -> None:
    """With the code that says nothing but `budget`; the sentence stays in the site's own log."""
    with pytest.raises(JobRefused) as refused:
        work(config, job, job_id)
    assert refused.value.code is Refusal.BUDGET and sentence not in str(Refusal.BUDGET.sentence)
    last = [entry for entry in read(config.audit) if entry.outcome is Outcome.REFUSED][-1]
    assert last.job == job_id and sentence in str(last.reason) and last.admission is not None
    assert last.admission["code"] == "budget" and str(config.ledger) not in str(last.reason)


def test_two_sites_of_one_store_do_not_each_grant_the_full_budget(organ_sites: Sites, private_job: Job) -> None:
    """What one organ's site has spent is spent at the other: their jobs have patients in common."""
    job = private_job()
    configs = organ_sites(require_dp=True, max_epsilon=1.2 * cost(job))
    work(configs["chest"], job, "first")
    assert_refused(configs["abdomen"], job, "second", "with those before it")


def test_sites_of_one_store_keep_their_parts_of_a_job_apart(organ_sites: Sites, private_job: Job) -> None:
    """One job at both: each site reports its own part; a patient of both has spent both; logs and ledger hold."""
    job, configs = private_job(), organ_sites()
    replies = {name: work(config, job, "job") for name, config in configs.items()}
    for first, second, _ in replies.values():
        assert first["epsilon"][0] == 0 and second["epsilon"][1] == pytest.approx(cost(job), abs=1e-9)
    with closing(Ledger(configs["chest"].ledger, "chest")) as ledger:
        ledger.verify()
        accounts = ledger.accounts(DP.delta)
        assert {job.site for one in accounts for job in one.jobs} == {"chest", "abdomen"}
        assert [one.patients for one in accounts] == [8, 8]
        assert accounts[0].spent.epsilon == pytest.approx(cost(job, 2), abs=1e-9)
        for config in configs.values():
            check_ledger(ledger, config.audit)
            assert verify(config.audit).ok
        assert [row.record["site"] for row in ledger.rows() if row.record["event"] == "bound"] == ["chest", "abdomen"]


@pytest.mark.slow
def test_a_run_over_the_organs_of_a_store_charges_one_ledger(
    store: Path, private_job: Job, tiny_backbone: Path, tmp_path: Path
) -> None:
    """As `medfedvqa run --data STORE` does: the ledger beside the store, which the next run continues."""
    job = private_job()
    for name in ("one", "two"):
        launch = plan(job, store, tmp_path / name, (), 1, {job.backbone: tiny_backbone})
        run(launch, "local", lambda event: None)
    assert not list(tmp_path.glob("*/sites/*/ledger"))
    with closing(Ledger(default_ledger(store), "chest")) as ledger:
        account = max(ledger.accounts(DP.delta), key=lambda one: one.spent.epsilon)
        assert sorted((one.site, one.job) for one in account.jobs) == sorted(
            (site, name) for site in ("abdomen", "chest") for name in ("one", "two")
        )
    assert check_binding(store, default_ledger(store))


def test_a_run_on_a_copied_store_asks_for_its_ledger(
    store: Path, private_job: Job, tiny_backbone: Path, tmp_path: Path
) -> None:
    """Before anything is written, with the option that names it; a ledger is nothing for data that are no store."""
    job, files = private_job(), {private_job().backbone: tiny_backbone}
    open_ledger(store, default_ledger(store), "chest").close()
    copy = shutil.copytree(store, tmp_path / "copy")
    with pytest.raises(ConfigError, match="give it by --ledger"):
        plan(job, copy, tmp_path / "run", (), 1, files)
    assert not (tmp_path / "run").exists()
    launch = plan(job, copy, tmp_path / "run", (), 1, files, default_ledger(store))
    assert {launch.ledger_of(site) for site in launch.sites} == {default_ledger(store)}
    with pytest.raises(ConfigError, match="leave it out"):
        plan(job.model_copy(update={"data": "phantom"}), None, tmp_path / "run", (), 1, files, default_ledger(store))


def test_another_path_in_site_yml_grants_no_second_budget(organ_sites: Sites, private_job: Job, tmp_path: Path) -> None:
    """A store that is bound to one ledger is not trained on under another, and no other is made."""
    work(organ_sites()["chest"], private_job(), "first")
    elsewhere = organ_sites(ledger=str(tmp_path / "fresh"))["abdomen"]
    assert_refused(elsewhere, private_job(), "second", ELSEWHERE)
    assert not (tmp_path / "fresh").exists()


def test_a_ledger_is_not_used_for_a_store_of_another_key(organ_sites: Sites, private_job: Job, tmp_path: Path) -> None:
    """The same patients under another key look like others: the old ledger refuses them, whoever they are."""
    work(organ_sites()["chest"], private_job(), "first")
    again = make_store(tmp_path / "again", {"chest": range(8), "abdomen": range(4, 12)}, OTHER_KEY)
    config = organ_sites(root=str(again))["chest"]
    assert_refused(config, private_job(), "second", "store of another pseudonym key")
    assert read_binding(again) is None


def test_public_data_do_not_use_the_ledger_of_a_store(
    sites: Sites, organ_sites: Sites, private_job: Job, tmp_path: Path
) -> None:
    """A data set without a key would mix its patients into those of the store."""
    work(organ_sites()["chest"], private_job(), "first")
    config = sites("chest", ledger=str(tmp_path / "ledger"))["chest"]
    assert_refused(config, private_job().model_copy(update={"data": "phantom"}), "second", "data set is not a store")


def test_a_new_ledger_beside_the_old_log_is_refused(organ_sites: Sites, private_job: Job, store: Path) -> None:
    """Also where the store's note was removed: the log names charges that the new ledger lacks."""
    config = organ_sites()["chest"]
    work(config, private_job(), "first")
    shutil.rmtree(config.ledger)
    (store / ledger_binding.BINDING).unlink()
    assert_refused(config, private_job(), "second", "lacks a charge that the audit log recorded")


def test_a_copied_store_names_the_same_ledger(
    organ_sites: Sites, private_job: Job, store: Path, tmp_path: Path
) -> None:
    """A copy of the store continues the ledger of the first, and grants nothing under another."""
    job = private_job()
    work(organ_sites()["chest"], job, "first")
    copy = shutil.copytree(store, tmp_path / "copy")
    assert_refused(organ_sites(root=str(copy), ledger=str(tmp_path / "fresh"))["abdomen"], job, "second", ELSEWHERE)
    changed = {"root": str(copy), "require_dp": True, "max_epsilon": 1.2 * cost(job)}
    assert_refused(organ_sites(**changed)["abdomen"], job, "third", "with those before it")


@pytest.mark.slow
@pytest.mark.parametrize("records", [0, 20])
def test_a_copied_ledger_that_went_its_own_way_is_refused(
    organ_sites: Sites, private_job: Job, tmp_path: Path, records: int
) -> None:
    """The store has noted the newest record, and the other site's copy lacks it, however long the copy has grown."""
    configs, job = organ_sites(), private_job()
    work(configs["chest"], job, "first")
    copy = shutil.copytree(configs["chest"].ledger, tmp_path / "copied")
    with closing(Ledger(copy, "chest")) as ledger:
        for number in range(records):
            ledger.reserve(f"own-{number}", "prompt_pfl", ["somebody"], PLAN, Limits(1e9, 1e-3))
    work(configs["chest"], private_job(rounds=3), "second")
    assert_refused(organ_sites(ledger=str(copy))["abdomen"], job, "third", "lacks a record that the store has noted")


def test_a_copy_that_is_used_at_the_same_time_is_refused_before_data_are_touched(
    organ_sites: Sites, private_job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both were the same when they were opened; the site that reserves second loads no picture."""
    configs, job = organ_sites(), private_job()
    work(configs["chest"], job, "first")
    open_ledger(configs["abdomen"].data.root, configs["abdomen"].ledger, "abdomen").close()
    copy = shutil.copytree(configs["chest"].ledger, tmp_path / "copied")
    other = organ_sites(ledger=str(copy))["abdomen"]
    check, begin, began = job_budget.JobBudget.check, job_budget.JobBudget.begin, []

    def overtaken(self: job_budget.JobBudget) -> None:
        check(self)
        if self._config.ledger == copy:
            work(configs["chest"], private_job(rounds=3), "overtaking")

    def noticed(self: job_budget.JobBudget, task: str, round: int) -> None:
        began.append(self._config.name)
        begin(self, task, round)

    monkeypatch.setattr(job_budget.JobBudget, "check", overtaken)
    monkeypatch.setattr(job_budget.JobBudget, "begin", noticed)
    with pytest.raises(JobRefused), closing(SiteRuntime(other, job, "second")) as runtime:
        runtime.handle("start", 1, {})
    assert set(began) == {"chest"} and "lacks a record that the store has noted" in str(list(read(other.audit)))


def test_a_store_that_cannot_note_its_ledger_is_not_charged(organ_sites: Sites, private_job: Job, store: Path) -> None:
    """A store that nobody may write would let every site bring a ledger of its own."""
    (store / ledger_binding.BINDING_LOCK).mkdir()
    assert_refused(organ_sites()["chest"], private_job(), "job", "let the site's account write into its folder")


def test_a_crash_between_ledger_and_store_leaves_one_ledger(
    organ_sites: Sites, private_job: Job, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger knows the store and the store no ledger: nothing was charged yet, and the next use binds both."""
    config = organ_sites()["chest"]
    with monkeypatch.context() as crash:
        crash.setattr(ledger_binding, "_write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            open_ledger(store, config.ledger, "chest")
    assert read_binding(store) is None
    with closing(Ledger(config.ledger, "chest")) as ledger:
        assert [row.record["event"] for row in ledger.rows()] == ["opened", "bound"]
    work(config, private_job(), "job")
    assert check_binding(store, config.ledger)
    with closing(Ledger(config.ledger, "chest")) as ledger:
        assert [row.record["event"] for row in ledger.rows()].count("bound") == 1


def test_a_store_is_bound_by_one_process_at_a_time(
    organ_sites: Sites, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sites that bring two ledgers at once cannot both find the store unbound."""
    config, bind, tried = organ_sites()["chest"], Ledger.bind, []

    def meanwhile(self: Ledger) -> None:
        with (store / ledger_binding.BINDING_LOCK).open("a") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        tried.append(read_binding(store))
        bind(self)

    monkeypatch.setattr(Ledger, "bind", meanwhile)
    open_ledger(store, config.ledger, "chest").close()
    assert tried == [None]
    with (store / ledger_binding.BINDING_LOCK).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_ledger_of_an_earlier_version_is_bound_at_its_next_use(
    organ_sites: Sites, private_job: Job, store: Path
) -> None:
    """With a record; what it had charged counts on, its chain holds, and the log's heads are still in it."""
    job = private_job()
    config = organ_sites(require_dp=True, max_epsilon=1.001 * cost(job, 2))["chest"]
    with closing(Ledger(config.ledger, "chest")) as ledger:
        ledger.reserve("early", "prompt_pfl", ["somebody"], job.build().plan(), LIMITS)
        early = [ledger.begin("early", one.task, one.round, LIMITS) for one in job.build().plan()]
        before = ledger.rows()
        assert ledger.store is None and not [row for row in before if "site" in row.record and row.seq > 1]
    work(config, job, "job")
    with closing(Ledger(config.ledger, "chest")) as ledger:
        ledger.verify()
        assert ledger.rows()[: len(before)] == before and ledger.contains(early[-1].seq, early[-1].head)
        bound = ledger.rows()[len(before)].record
        assert (bound["event"], bound["site"]) == ("bound", "chest")
    assert_refused(config, private_job(rounds=3), "more", "with those before it")


def test_the_doctor_tells_of_a_ledger_elsewhere_before_a_job_does(
    organ_sites: Sites, private_job: Job, tmp_path: Path
) -> None:
    """The check of the budget fails with what to do, and makes no ledger; jobs of the other site are not this one's."""
    configs = organ_sites()
    work(configs["chest"], private_job(), "first")
    with closing(open_ledger(configs["chest"].data.root, configs["chest"].ledger, "chest")) as ledger:
        ledger.reserve("open", "prompt_pfl", ["somebody"], PLAN, LIMITS)
    elsewhere = organ_sites(ledger=str(tmp_path / "fresh"))["abdomen"]
    for config, problems in ((configs["abdomen"], [None, None]), (elsewhere, [ELSEWHERE, None])):
        checks = list(budget_and_jobs(config, read_log(config.audit), LiveProcesses(False, frozenset())))
        assert [check.problem for check in checks] == problems
    assert not (tmp_path / "fresh").exists()


def test_a_site_that_has_not_used_the_shared_ledger_yet_starts(organ_sites: Sites, private_job: Job) -> None:
    """What its process does at its start, and what it answers about its budget, needs no private job of its own."""
    configs = organ_sites(methods=["prompt_pfl", "site_status"])
    work(configs["chest"], private_job(), "first")
    with closing(SiteRuntime(configs["abdomen"], private_job().model_copy(update={"dp": None}), "plain")) as runtime:
        runtime.handle("start", 1, {})
        assert close_ended(configs["abdomen"], []) == ["plain"]
    with closing(StatusRuntime(configs["abdomen"], "status")) as status:
        figures, _ = status.answer("status", 1, {}, b"")
    events = [event for one in private_job().build().plan() for event in one.events]
    assert figures["spent"].item() == pytest.approx(spent(events, 1e-3).epsilon, abs=1e-9)
    with closing(look_into(configs["abdomen"])) as ledger:
        assert [row.record["site"] for row in ledger.rows() if row.record["event"] == "bound"] == ["chest"]


def test_a_ledger_that_was_never_bound_is_not_anybodys(store: Path, tmp_path: Path) -> None:
    """Before its own site has bound it, another site of the store cannot tell whose it is."""
    with closing(Ledger(tmp_path / "ledger", "chest")) as ledger:
        ledger.reserve("early", "prompt_pfl", ["somebody"], PLAN, LIMITS)
    with pytest.raises(LedgerError, match="belongs to another site"):
        open_ledger(store, tmp_path / "ledger", "abdomen")
    open_ledger(store, tmp_path / "ledger", "chest").close()
    open_ledger(store, tmp_path / "ledger", "abdomen").close()


PROCESS = """
import sys
from contextlib import closing
from pathlib import Path
from medfedvqa.ingest.ledger_binding import note_head, open_ledger
from privacy import BudgetRefused, Limits, PlannedTask, SampledGaussian

store, folder, site = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
plan = [PlannedTask("train", 1, (SampledGaussian(rate=0.1, noise=1.0, steps=4),))]
print("ready", flush=True)
sys.stdin.readline()
granted = 0
for number in range(4):
    with closing(open_ledger(store, folder, site)) as ledger:
        try:
            ledger.reserve(f"job-{number}", "m", ["p"], plan, Limits(float(sys.argv[4]), 1e-3))
        except BudgetRefused:
            continue
        note_head(store, ledger)
        granted += 1
print(granted, flush=True)
"""


@pytest.mark.slow
def test_processes_of_several_sites_together_never_grant_more_than_the_limit(store: Path, tmp_path: Path) -> None:
    """Four sites bind a new ledger and reserve at once: one ledger, as many grants as fit, no head is lost."""
    events = [event for one in PLAN for event in one.events]
    limit = spent(events * 6, 1e-3).epsilon * 1.001
    arguments = [str(store), str(tmp_path / "ledger")]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, *arguments, site, str(limit)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for site in ("a", "b", "c", "d")
    ]  # fmt: skip
    try:
        for process in processes:
            assert process.stdout and process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin
            process.stdin.write("\n")
            process.stdin.flush()
        assert sum(int(process.communicate(timeout=DEADLINE)[0]) for process in processes) == 6
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    with closing(Ledger(tmp_path / "ledger", "a")) as ledger:
        ledger.verify()
        assert sorted(row.record["site"] for row in ledger.rows() if row.record["event"] == "bound") == list("abcd")
        noted = json.loads((store / ledger_binding.BINDING).read_text())
        assert (noted["seq"], noted["head"]) == ledger.head()
        with pytest.raises(BudgetRefused):
            ledger.reserve("more", "m", ["p"], PLAN, Limits(limit, 1e-3))
