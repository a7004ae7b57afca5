"""Differencing: sums of several jobs over different sites, in process, with a server that does as it likes."""

import shutil
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import Engine, Job, ask
from untrained import DP, FIVE, Averaged, AveragedAtSites, Make, Mixed, given

from audits import Event, JobRefused, Kind, Refusal, Sharing, Stage, read, verify
from medfedvqa.core import Tensors, method_type, registry
from medfedvqa.errors import FederationError
from medfedvqa.federation import aggregation_attempt as attempts
from medfedvqa.federation.aggregation_attempt import Attempt, Opening
from medfedvqa.federation.hub import TaskCall
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_state import StateFile

Configs = dict[str, SiteConfig]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites that wait for one that refuses do not wait for long."""
    monkeypatch.setattr(attempts, "MESSAGE_TIMEOUT", 2.0)


def run(configs: Configs, job: JobSpec, sites: Collection[str], name: str, folder: Path) -> dict[str, Any]:
    """A job of this name over these sites, in runtimes of its own; its results."""
    (folder / name).mkdir()
    engine = Engine({site: configs[site] for site in sites}, job, name)
    try:
        return serve_job(job, tuple(sites), engine.call, folder / name, "local")
    finally:
        engine.local.close()


def assert_refused(configs: Configs, job: JobSpec, sites: Collection[str], name: str, folder: Path) -> None:
    """With the code and an entry; sites that refuse share nothing, and others have not come to a result."""
    with pytest.raises(FederationError) as stopped:
        run(configs, job, sites, name, folder)
    assert isinstance(stopped.value.__cause__, JobRefused) and stopped.value.__cause__.code is Refusal.COHORT
    entries = [entry for site in sites for entry in read(configs[site].audit) if entry.job == name]
    refused = {entry.site: entry.admission for entry in entries if entry.event is Event.REFUSAL}
    assert refused and all(admission == {"code": "cohort"} for admission in refused.values())
    shared = [entry for entry in entries if entry.sharing]
    assert not [entry for entry in shared if entry.site in refused]
    assert not [entry for entry in shared if entry.peer == "server" or entry.direction == "in"]
    assert all(verify(configs[site].audit).ok for site in sites)


@pytest.mark.parametrize("method", [Averaged, pytest.param(AveragedAtSites, marks=pytest.mark.slow), Mixed])
@pytest.mark.parametrize(("first", "second"), [("abcd", "abc"), ("abc", "abcd")])
def test_a_job_whose_sites_differ_by_one_from_those_of_an_earlier_one_is_refused(
    job_on_shares: Make, tmp_path: Path, method: type[Mixed], first: str, second: str
) -> None:
    """One site less, or one more: the other sums would show its input."""
    configs, job = job_on_shares(method, tuple("abcd"))
    assert run(configs, job, first, "first", tmp_path)["status"] == "finished"
    assert_refused(configs, job, second, "second", tmp_path)


def test_what_is_refused_would_show_the_upload_of_the_site(job_on_shares: Make, tmp_path: Path) -> None:
    """Sites whose logs know nothing of the first job take part in the second one, and the difference of what the server
    has of both is the fourth site's upload. The memory is the log and nothing beside it."""
    configs, job = job_on_shares(Averaged, tuple("abcd"))
    run(configs, job, "abcd", "first", tmp_path)
    forgetful = {name: config.model_copy(update={"audit": tmp_path / name}) for name, config in configs.items()}
    assert run(forgetful, job, "abc", "second", tmp_path)["status"] == "finished"
    rows = {site: float(Averaged.holding(site, 1)["rows"]) for site in "abcd"}
    sums = {
        name: given(configs["a"], 1, name)["prompt.x"].astype(float) * sum(rows[site] for site in sites)
        for name, sites in (("first", "abcd"), ("second", "abc"))
    }
    shown = (sums["first"] - sums["second"]) / rows["d"]
    assert np.abs(shown - Averaged.holding("d", 1)["prompt.x"]).max() < 1e-5


def test_three_jobs_that_show_one_site_together_are_refused_though_no_two_do(
    job_on_shares: Make, tmp_path: Path
) -> None:
    """Each two differ by two sites or more; the first two less the third one is what `a` put in."""
    configs, job = job_on_shares(Averaged, FIVE)
    run(configs, job, "abc", "first", tmp_path)
    run(configs, job, "ade", "second", tmp_path)
    assert_refused(configs, job, FIVE, "third", tmp_path)


@pytest.mark.parametrize("least", [2, 3])
def test_a_site_chooses_how_many_sites_may_be_shown(job_on_shares: Make, tmp_path: Path, least: int) -> None:
    """Sums that differ by two sites are enough for two, and not for three."""
    configs, job = job_on_shares(Averaged, FIVE, allowed={"min_difference": least})
    run(configs, job, FIVE, "first", tmp_path)
    if least == 3:
        assert_refused(configs, job, "abc", "second", tmp_path)
    else:
        assert run(configs, job, "abc", "second", tmp_path)["status"] == "finished"


def test_the_same_sites_may_run_a_job_again_and_others_not_even_another_method(
    job_on_shares: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second sum over the same sites shows nothing new, and another method may put the same values into its sum."""
    configs, job = job_on_shares(Averaged, tuple("abcd"))
    monkeypatch.setitem(registry._METHODS, AveragedAtSites.name, AveragedAtSites)
    both = replace(configs["a"].policy, methods=(Averaged.name, AveragedAtSites.name))
    configs = {name: config.model_copy(update={"policy": both}) for name, config in configs.items()}
    run(configs, job, "abcd", "first", tmp_path)
    assert run(configs, job, "abcd", "again", tmp_path)["status"] == "finished"
    other = job.model_copy(update={"method": AveragedAtSites.name})
    assert_refused(configs, other, "abc", "other", tmp_path)
    assert run(configs, other, "abcd", "all", tmp_path)["status"] == "finished"


def test_the_memory_outlives_the_state_of_all_jobs(job_on_shares: Make, tmp_path: Path) -> None:
    """The folder of states is deleted, and new runtimes read the log."""
    configs, job = job_on_shares(Averaged, tuple("abcd"))
    run(configs, job, "abcd", "first", tmp_path)
    for config in configs.values():
        shutil.rmtree(config.state)
    assert_refused(configs, job, "abc", "second", tmp_path)


def test_sums_under_differential_privacy_are_remembered_and_not_held_against_each_other(
    job_on_shares: Make, tmp_path: Path
) -> None:
    """Each upload carries noise of its own; a job without comes after them as if they were not there."""
    configs, job = job_on_shares(Mixed, tuple("abcd"), dp=DP)
    run(configs, job, "abcd", "first", tmp_path)
    assert run(configs, job, "abc", "second", tmp_path)["status"] == "finished"
    shared = [entry.sharing for entry in read(configs["a"].audit) if entry.peer == "sites" and entry.direction == "out"]
    assert [(sharing["sites"], sharing["private"]) for sharing in shared if sharing] == [
        (list("abcd"), True),
        (list("abc"), True),
    ]
    bare = job.model_copy(update={"dp": None})
    assert run(configs, bare, "abcd", "third", tmp_path)["status"] == "finished"


def start(configs: Configs, job: JobSpec, name: str) -> Engine:
    """A server's hand on sites that have trained in the first round."""
    engine = Engine(configs, job, name)
    ask(engine, "start", tuple(configs), {})
    return engine


def attempt(name: str, sites: Collection[str], number: int = 1) -> Tensors:
    return Attempt(name, tuple(sites), members=tuple(sites), number=number).message()


def refusal(engine: Engine, task: str, site: str, message: Tensors, round: int = 1) -> Refusal:
    """With which code one site refuses a task."""
    with pytest.raises(FederationError) as stopped:
        engine.call(TaskCall(task, round, {site: message}))
    assert isinstance(stopped.value.__cause__, JobRefused)
    return stopped.value.__cause__.code


def test_a_server_that_denies_an_upload_gets_no_sum_without_it(job_on_shares: Make, tmp_path: Path) -> None:
    """The second job has the sites of the first one; the server says that `d` has sent nothing. Each member refuses,
    also after the denial is repeated, and takes no further part in the job."""
    configs, job = job_on_shares(Averaged, tuple("abcd"))
    run(configs, job, "abcd", "first", tmp_path)
    engine = start(configs, job, "second")
    engine.restarts = False
    ask(engine, "start/mean", "abcd", attempt("one", "abcd"))
    for member in "abca":
        assert refusal(engine, "start/unmask", member, Opening("one", tuple("abc")).message()) is Refusal.COHORT
        assert refusal(engine, "start/unmask", member, Opening("one", tuple("abcd")).message()) is Refusal.COHORT


def test_a_sum_without_a_site_that_died_is_what_counts(job_on_shares: Make, tmp_path: Path) -> None:
    """`e` dies before it uploads and the first job opens a sum over four sites: these may run again, five may not."""
    configs, job = job_on_shares(Averaged, FIVE)
    (tmp_path / "first").mkdir()
    engine = Engine(configs, job, "first")
    engine.after["start/mean"] = {"e"}
    assert serve_job(job, FIVE, engine.call, tmp_path / "first", "local")["status"] == "finished"
    assert run(configs, job, "abcd", "again", tmp_path)["status"] == "finished"
    with pytest.raises(FederationError, match="the job was refused"):
        run(configs, job, FIVE, "all", tmp_path)


def test_after_an_opened_sum_no_attempt_of_the_round_is_taken_whatever_the_server_says(job_on_shares: Make) -> None:
    """Neither as a repetition of an attempt that it calls lost, nor when the first round is asked for anew; where the
    site's state is gone, the log, which knows the first sum, stands against it."""
    configs, job = job_on_shares(Averaged, FIVE, rounds=2)
    engine = start(configs, job, "job")
    ask(engine, "start/mean", FIVE, attempt("one", FIVE))
    ask(engine, "start/unmask", FIVE, Opening("one", FIVE).message())
    for site in "abcd":
        with pytest.raises(FederationError, match="no other attempt"):
            ask(engine, "start/mean", site, attempt("two", "abcd", number=2))
    mean = {name: array for name, array in Averaged.plain(FIVE, 1)["a"].items()}
    engine.call(TaskCall("train", 2, dict.fromkeys(FIVE, mean)))
    assert refusal(engine, "start", "a", {}) is Refusal.ORDER
    assert refusal(engine, "start/mean", "a", attempt("three", "abcd", 1)) is Refusal.ORDER
    for config in configs.values():
        shutil.rmtree(config.state)
    engine = start(configs, job, "job")
    assert refusal(engine, "start/mean", "a", attempt("four", "abcd")) is Refusal.COHORT


@pytest.mark.parametrize("method", [Averaged, Mixed])
def test_an_attempt_that_takes_the_place_of_a_broken_one_is_no_second_sum(
    job_on_shares: Make, tmp_path: Path, method: type[Mixed]
) -> None:
    """A site that dies before keys have gone round ends no job, and what counts are the sites of the second attempt."""
    configs, job = job_on_shares(method, FIVE)
    (tmp_path / "broken").mkdir()
    engine = Engine(configs, job, "broken")
    engine.before["start/mean"] = engine.before["start/mix"] = {"e"}
    results = serve_job(job, FIVE, engine.call, tmp_path / "broken", "local")
    assert results["status"] == "finished" and "Site e broke off" in str(results["notes"])
    assert run(configs, job, "abcd", "four", tmp_path)["status"] == "finished"
    with pytest.raises(FederationError, match="the job was refused"):
        run(configs, job, FIVE, "five", tmp_path)


def test_a_task_under_the_number_of_another_round_is_not_aggregated(job_on_shares: Make) -> None:
    """Its sum would be compared with those of the wrong round."""
    configs, job = job_on_shares(Averaged, tuple("abc"), rounds=3)
    engine = Engine(configs, job)
    assert refusal(engine, "start", "b", {}, round=2) is Refusal.ORDER
    engine.call(TaskCall("start", 1, dict.fromkeys("abc", {})))
    assert refusal(engine, "start/mean", "a", attempt("one", "abc"), round=2) is Refusal.ORDER


def test_of_two_jobs_at_once_a_site_takes_part_in_one(job_on_shares: Make, tmp_path: Path) -> None:
    """Both come to the check together, and no site shares in sums over three and over four."""
    configs, job = job_on_shares(Averaged, tuple("abcd"))
    cohorts = {"three": "abc", "four": "abcd"}
    engines = {name: start({site: configs[site] for site in sites}, job, name) for name, sites in cohorts.items()}

    def aggregate(name: str) -> None:
        with pytest.raises(FederationError, match="the job was refused"):
            ask(engines[name], "start/mean", cohorts[name], attempt(name, cohorts[name]))
            ask(engines[name], "start/unmask", cohorts[name], Opening(name, tuple(cohorts[name])).message())
            raise FederationError("the job was refused nowhere")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(aggregate, cohorts))
    for site in "abc":
        entries = [entry for entry in read(configs[site].audit) if entry.sharing and entry.peer == "sites"]
        assert len({tuple(entry.sharing["sites"]) for entry in entries if entry.sharing}) <= 1


def test_the_log_holds_the_parts_of_a_computation_as_data(job_on_shares: Make, tmp_path: Path) -> None:
    """What the sentence says stands beside it in a field, at every entry that belongs to it."""
    configs, job = job_on_shares(AveragedAtSites, tuple("abc"))
    run(configs, job, "abc", "job", tmp_path)
    found = [entry.sharing for entry in read(configs["a"].audit) if entry.sharing]
    assert [(part["protocol"], part["stage"]) for part in found] == [
        ("mean", "begun"),
        ("mean", "begun"),
        ("mean to be opened", "opened"),
        ("mean", "opened"),
    ]
    assert len({part["attempt"] for part in found}) == 1 and all(part["sites"] == list("abc") for part in found)
    sharing = Sharing("one", "mix", ("a", "b"), "server", stage=Stage.REPEATED, private=True)
    parts = {"attempt": "one", "protocol": "mix", "sites": ["a", "b"], "dealer": "server", "computed": ""}
    assert sharing.record() == parts | {"stage": "repeated", "private": True}


AVERAGING = ("fedavg", "fedavgm", "fedadam", "fedyogi", "fedprox", "moon", "feddc", "fedp3", "feddat")
"""Methods that average on shares: with their weights at 0 the training of several is that of `fedavg`."""
OTHERWISE: dict[str, dict[str, Any]] = {"fedprox": {"mu": 0.0}, "moon": {"mu": 0.0}, "feddat": {"tuning": "adapter"}}


@pytest.fixture
def trained(introduced: Callable[..., Configs], quick_job: Job) -> Callable[..., tuple[Configs, Any]]:
    """Four sites of the phantom set, and a maker of jobs of real methods on shares."""
    everything = {kind.value for kind in Kind}
    configs = introduced(*"abcd", organ="chest", methods=[*AVERAGING, "prompt_pfl"], kinds=sorted(everything))

    def job(method: str, **options: Any) -> JobSpec:
        known = method_type(method).config_type.model_fields
        values = {"rounds": 1, "local_epochs": 4, "local_unit": "batches", "batch_rows": 16, "answers": "closed"}
        values |= {"tuning": "lora", "blocks": 1, "hidden": 4}
        values |= OTHERWISE.get(method, {}) | options
        fields = {"method": method, "secagg": True, "options": {k: v for k, v in values.items() if k in known}}
        return JobSpec.from_dict(quick_job().to_dict() | fields)

    return configs, job


def upload(engine: Engine, site: str, task: str = "start") -> np.ndarray:
    """What a site has answered, and put into the sum of its last task."""
    reply = engine.local._running[site]._file.load().reply
    return np.concatenate([reply[name].ravel().astype(float) for name in sorted(reply) if name != "train_rows"])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        *(pytest.param("fedavg", name, marks=[pytest.mark.slow] * (n != 1)) for n, name in enumerate(AVERAGING)),
        pytest.param("fedadam", "fedavg", marks=pytest.mark.slow),
    ],
)
def test_no_second_method_gets_a_sum_over_fewer_sites(
    trained: tuple[Configs, Any], tmp_path: Path, first: str, second: str
) -> None:
    """Whatever the methods are called: a sum over four sites, and then over three of them, is refused by each."""
    configs, job = trained
    assert run(configs, job(first), "abcd", "first", tmp_path)["status"] == "finished"
    assert_refused(configs, job(second), "abc", "second", tmp_path)


@pytest.mark.parametrize(
    "options",
    [{}, *(pytest.param(each, marks=pytest.mark.slow) for each in ({"local_epochs": 20}, {"tuning": "classifier"}))],
)
def test_sums_of_which_no_log_knows_do_not_cancel(trained: tuple[Configs, Any], tmp_path: Path, options: Any) -> None:
    """Sites that have lost their logs take part again: what they put in is not what they put in before, since the order
    of training is the site's secret. With the job's seed alone the server had the fourth upload to eight digits."""
    configs, job = trained
    engines = [Engine(configs, job("fedavg", **options), "first")]
    forgetful = {name: config.model_copy(update={"audit": tmp_path / name}) for name, config in configs.items()}
    engines.append(Engine(forgetful, job("fedavgm", **options), "second"))
    for engine in engines:
        ask(engine, "start", tuple("abcd"), {})
    sums = [sum(upload(engine, site) for site in sites) for engine, sites in zip(engines, ("abcd", "abc"), strict=True)]
    shown, fourth = sums[0] - sums[1], upload(engines[0], "d")
    update = fourth - np.mean([upload(engines[0], site) for site in "abcd"], axis=0)
    assert np.linalg.norm(shown - fourth) > 0.1 * np.linalg.norm(update)
    for engine in engines:
        engine.local.close()


def test_a_server_that_sends_the_same_values_again_gets_no_sum_over_fewer_sites(
    trained: tuple[Configs, Any], tmp_path: Path
) -> None:
    """Rounds 2 and 3 of one job begin from the same message: the third round's sum leaves out a site, and is refused.
    From another message it is not, and a site that fell out does not end the job; but that of a stepwise job is, in
    which neighbouring uploads are alike."""
    configs, job = trained
    for name, repeats, schedule in (("honest", 0, "rounds"), ("lying", 1, "rounds"), ("steps", 0, "stepwise")):
        fresh = {site: config.model_copy(update={"audit": tmp_path / name / site}) for site, config in configs.items()}
        engine = start(fresh, job("fedavg", rounds=3, schedule=schedule), name)
        engine.restarts = False
        message = {n: a for n, a in engine.local._running["a"]._file.load().reply.items() if n != "train_rows"}
        for round in (1, 2):
            task = "start" if round == 1 else "train"
            if round == 2:
                engine.call(TaskCall(task, round, dict.fromkeys("abcd", message)))
            sums = {f"{task}/mean": attempt(f"{round}", "abcd")}
            sums[f"{task}/unmask"] = Opening(f"{round}", tuple("abcd")).message()
            for step, told in sums.items():
                engine.call(TaskCall(step, round, dict.fromkeys("abcd", told)))
        again = message if repeats else {n: (1.01 * a).astype(a.dtype) for n, a in message.items()}
        engine.call(TaskCall("train", 3, dict.fromkeys("abc", again)))
        if repeats or schedule == "stepwise":
            assert refusal(engine, "train/mean", "a", attempt("3", "abc"), round=3) is Refusal.COHORT
        else:
            engine.call(TaskCall("train/mean", 3, dict.fromkeys("abc", attempt("3", "abc"))))
        engine.local.close()


def test_a_sites_secret_survives_its_process_and_goes_with_the_jobs_state(tmp_path: Path) -> None:
    """A killed site trains on as before; another job, and the same after its state is gone, has another secret."""
    one, other = StateFile(tmp_path, "one"), StateFile(tmp_path, "other")
    secret = one.secret()
    assert len(secret) == 32 and StateFile(tmp_path, "one").secret() == secret != other.secret()
    assert (tmp_path / "one.secret").stat().st_mode & 0o777 == 0o600
    one.forget()
    assert not (tmp_path / "one.secret").exists() and one.secret() != secret
    (tmp_path / "other.secret").write_bytes(b"")
    with pytest.raises(FederationError, match="damaged"):
        other.secret()
