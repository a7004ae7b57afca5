"""The same job gives the same bits: in whatever order sites answer, after a kill, and in every engine.

Six sites that weigh the same, and steps of 10: Adam's first steps have one size and both signs, so that many sums
nearly cancel, and then float32 shows in which order float64 added them up. A sum of two commutes, and most sums of
three or four values of one size are exact: they would not notice.
"""

import json
import random
from pathlib import Path

import pytest
from fate import killed

from audits import Tensors
from medfedvqa.federation.hub import Reply, TaskCall
from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import Engine, Launch, plan, run
from medfedvqa.federation.rerun import compare
from privacy import Gathering

BACKBONE = "medclip@random"
SITES = ("site-004", "site-002", "site-006", "site-001", "site-005", "site-003")
OPTIONS = {"rounds": 3, "local_epochs": 1, "local_unit": "batches", "batch_rows": 16, "blocks": 1, "hidden": 8}
OPTIONS |= {"weighting": "uniform", "learning_rate": 10.0}
JOB = {"method": "fedavg", "options": OPTIONS, "data": "phantom", "backbone": BACKBONE}

SHUFFLED = """
import random, sys
from medfedvqa.federation.in_process import LocalEngine
call, order = LocalEngine.call, random.Random(sys.argv[2])
def shuffled(engine, tasks):
    replies = list(call(engine, tasks).items())
    order.shuffle(replies)
    return dict(replies)
LocalEngine.call = shuffled
"""


def planned(out: Path, backbone: Path) -> Launch:
    return plan(JobSpec.from_dict(JOB), None, out, SITES, 1, {BACKBONE: backbone})


def ran(out: Path, backbone: Path, engine: Engine = "local") -> Launch:
    """The launch of a run that is over."""
    launch = planned(out, backbone)
    run(launch, engine, lambda event: None)
    return launch


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, random_backbone: Path) -> Launch:
    """The run in process whose sites answer in turn; it has sums that depend on their order."""
    changed: list[bool] = []
    gathered = Gathering.gathered

    def in_other_orders(self: Gathering, uploads: dict[str, Tensors], weights: dict[str, float]) -> Tensors:
        mean, names = gathered(self, uploads, weights), [*uploads]
        for order in (names[::-1], names[1:] + names[:1]):
            other = gathered(self, {site: uploads[site] for site in order}, weights)
            changed.append(any(array.tobytes() != other[name].tobytes() for name, array in mean.items()))
        return mean

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gathering, "gathered", in_other_orders)
        launch = ran(tmp_path_factory.mktemp("undisturbed") / "run", random_backbone)
    assert len(changed) == 6 and all(changed)
    return launch


def assert_same_bits(one: Launch, other: Launch) -> None:
    """All digests of all logs: what each site sent and received, in each round."""
    compared = compare(one, other)
    assert compared.first is None, compared
    assert compared.equal.keys() == {*SITES} and set(compared.equal.values()) == {compared.total // len(SITES)}
    assert compared.total > 6 * len(SITES)


@pytest.mark.parametrize("order", ["reversed", pytest.param("shuffled", marks=pytest.mark.slow)])
def test_the_order_in_which_sites_answer_changes_no_bit(
    undisturbed: Launch, random_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    """The engine returns answers in another order in each call."""
    call, chance = LocalEngine.call, random.Random(7)

    def arriving(self: LocalEngine, tasks: TaskCall) -> dict[str, Reply]:
        replies = [*call(self, tasks).items()][::-1]
        if order == "shuffled":
            chance.shuffle(replies)
        return dict(replies)

    monkeypatch.setattr(LocalEngine, "call", arriving)
    assert_same_bits(undisturbed, ran(tmp_path / "run", random_backbone))


@pytest.mark.slow
def test_a_run_that_was_killed_and_continued_has_the_same_bits(
    undisturbed: Launch, random_backbone: Path, tmp_path: Path
) -> None:
    """SIGKILL in round 2, and of the process that continues in round 3; sites answer each in an order of its own."""
    out, job = tmp_path / "run", JobSpec.from_dict(JOB)
    died = [killed(out, fatal, job, random_backbone, SITES, SHUFFLED) for fatal in (10, 11, 1000)]
    assert died == [True, True, False]
    assert json.loads((out / "results.json").read_text())["status"] == "finished"
    assert_same_bits(undisturbed, Launch.read(out))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_flares_simulator_gives_the_bits_of_the_engine_in_process_each_time(
    undisturbed: Launch, random_backbone: Path, tmp_path: Path
) -> None:
    """Two runs of the simulator, whose sites answer as chance has it, and the run in process."""
    for name in ("once", "twice"):
        assert_same_bits(undisturbed, ran(tmp_path / name, random_backbone, "simulator"))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning")  # FLARE's transport
def test_a_provisioned_federation_gives_the_bits_of_the_engine_in_process(
    undisturbed: Launch, random_backbone: Path, tmp_path: Path
) -> None:
    """Real kits, mutual TLS, and a process for each party."""
    assert_same_bits(undisturbed, ran(tmp_path / "run", random_backbone, "provisioned"))
