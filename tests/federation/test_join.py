"""A hospital that joins: it gets the model of an earlier run, under its own policy, and sends counts alone."""

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli.conftest import Command, medfedvqa
from in_process import Engine, Sites
from PIL import Image
from tiny_clip import TINY

from audits import Event, Outcome, Refusal, read
from medfedvqa.answering.kept_run import load_kept
from medfedvqa.cli.join import remarks
from medfedvqa.core import Site
from medfedvqa.core.kept_model import KEPT, Keeping
from medfedvqa.core.scores import FINISHED, RIGHT, SCORED
from medfedvqa.errors import ConfigError, DataError, FederationError
from medfedvqa.federation.flare.job_folder import read_job
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import Launch, data_of, plan, run
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.shared_model import MODEL, SharedModel
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_state import StateFile
from medfedvqa.methods.join import JoinersKeeping
from medfedvqa.models import load_backbone
from medfedvqa.research.benchmark.single_run import newcomer

__all__ = ["medfedvqa"]
QUICK = {"rounds": 6, "schedule": "stepwise", "tuning": "classifier", "batch_rows": 16, "hidden": 16}
NOBODY = {"kind": "patient", "fractions": (0.0, 0.5, 0.5)}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Path:
    """The folder of a finished run of two phantom sites."""
    out = tmp_path_factory.mktemp("runs") / "run"
    job = JobSpec.from_dict({"method": "fedavg", "options": QUICK, "data": "phantom", "backbone": TINY})
    run(plan(job, None, out, ("chest", "head"), 1, {TINY: tiny_backbone}), "local", lambda event: None)
    return out


@pytest.fixture
def joins(ran: Path, sites: Sites, tmp_path: Path) -> Callable[..., tuple[dict[str, Any], SiteConfig, Engine]]:
    """Lets the hospital 'new' join a model, the run's if none is given; keywords change the job.

    `policy` changes its site.yml, `tamper` its mail, and `kept` is what the server has instead of the model.
    """

    def join(
        policy: dict[str, Any] | None = None,
        tamper: Any = None,
        model: SharedModel | None = None,
        kept: SharedModel | None = None,
        **changes: Any,
    ) -> tuple[dict[str, Any], SiteConfig, Engine]:
        model = model or SharedModel.read(ran / MODEL)
        job = model.joining(**{"finish": 2, **changes})
        facts = {"methods": ["join"], "kinds": ["parameters", "statistic", "public"], "min_count": 1}
        config = sites("new", organ="abdomen", **{**facts, **(policy or {})})["new"]
        engine = Engine({"new": config}, job)
        engine.tamper = tamper or engine.tamper
        (kept or model).write(tmp_path / "out" / MODEL)
        with closing(engine.local):
            return serve_job(job, ("new",), engine.call, tmp_path / "out", "local"), config, engine

    return join


def saved(config: SiteConfig) -> dict[str, Any]:
    """The site's state after the job."""
    state = StateFile(config.state, "job").load()
    assert state is not None
    return state.state


def test_the_server_keeps_what_the_sites_tested_with(ran: Path) -> None:
    """Array by array it is the last message of the run; the file has the job, and no pickle."""
    model = SharedModel.read(ran / MODEL)
    kept = load_kept(ran, "chest")
    assert {name: array.tobytes() for name, array in model.tensors.items()} == {
        name: value.numpy().tobytes() for name, value in kept.state["tested"].items()
    }
    assert model.job.method == "fedavg" and (ran / MODEL).stat().st_mode & 0o077 == 0
    with np.load(ran / MODEL, allow_pickle=False) as arrays:
        assert {*arrays.files} == {"job", *model.tensors}


def test_a_hospital_with_rows_keeps_one_model_and_sends_counts_alone(joins: Callable[..., Any], ran: Path) -> None:
    """The model comes down, ten numbers go up; as received it answers as the run's model does, and it trained on."""
    results, config, engine = joins()
    state, model = saved(config), SharedModel.read(ran / MODEL)
    entries = [entry for entry in read(config.audit) if entry.tensors]
    assert [entry.outcome for entry in entries] == [Outcome.ACCEPTED, Outcome.SENT]
    assert {tensor.name for tensor in entries[0].tensors} == {*model.tensors}
    assert {tensor.name for tensor in entries[1].tensors} == {*SCORED, *FINISHED}
    assert sum(array.nbytes for array in engine.passed[-1][1].values()) == 8 * len(SCORED + FINISHED)
    by_name = {name: int(rows.sum()) for name, rows in state[KEPT][RIGHT].items()}
    entry = results["sites"]["new"]
    assert (results["status"], entry["correct"]) == ("finished", by_name["received"])
    assert entry["finished"]["correct"] == by_name["finished"]
    assert entry["baselines"]["alone"]["correct"] == by_name["alone"]


def test_what_a_hospital_finishes_follows_from_what_it_received_and_what_it_trains_alone_does_not(
    tiny_backbone: Path, ran: Path
) -> None:
    """With another model it finishes another one; the model alone stays the same, bit for bit."""
    model = SharedModel.read(ran / MODEL)
    method, backbone = model.joining(finish=1).build(), load_backbone(TINY, {TINY: tiny_backbone})
    site = Site("new", data_of(model.job, None, "abdomen"), backbone, "cpu", model.job.seed)
    received = model.tensors, {name: -array for name, array in model.tensors.items()}
    one, other = (Keeping(method, site, method.setup(site), tensors, method.config.rounds) for tensors in received)

    def same(name: str) -> bool:
        values = [getattr(keeping, name)["values"] for keeping in (one, other)]
        return all(torch.equal(values[0][tensor], values[1][tensor]) for tensor in model.tensors)

    assert same("alone") and not same("finished") and not same("received")


def test_a_hospital_without_labels_answers_with_the_model_as_received(
    ran: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    """No row trains it, and `answer` has the very values of the run; the job that trained it refuses such a site."""
    model = SharedModel.read(ran / MODEL)
    split = model.job.to_dict()["split"] | NOBODY
    job = model.joining(split=split)
    launch = plan(job, None, tmp_path / "joined", ("abdomen",), 1, {TINY: tiny_backbone})
    model.write(launch.out / MODEL)
    results = run(launch, "local", lambda event: None)
    entry = results["sites"]["abdomen"]
    assert entry["kept"] == "received" and entry["finished"]["correct"] == entry["correct"]
    assert entry["baselines"]["alone"]["correct"] == 0
    kept = load_kept(launch.out, "abdomen")
    data = kept.own_data()
    site = kept.site(data)
    answering = kept.job.build().answering(site, kept.state)
    assert all(torch.equal(answering.values[name], torch.from_numpy(array)) for name, array in model.tensors.items())
    chosen = answering.probabilities(site, data.test).argmax(dim=1)
    assert int(chosen.eq(data.test.answers).sum()) == entry["correct"]
    (note,) = remarks(data, (), answering.answers)
    assert "no labelled rows to train on" in note
    with pytest.raises(DataError, match="no train rows"):
        plan(
            model.job.model_copy(update={"split": job.split}),
            None,
            tmp_path / "other",
            ("abdomen",),
            1,
            {TINY: tiny_backbone},
        )


def test_an_organ_that_nobody_trained_is_refused_without_labels_and_finished_with(
    joins: Callable[..., Any], ran: Path
) -> None:
    """The refusal says what to do; with labels the hospital trains on, and the command says what the model lacks."""
    split = SharedModel.read(ran / MODEL).job.to_dict()["split"] | NOBODY
    with pytest.raises(FederationError, match="no hospital of this organ"):
        joins(organs=("chest", "head"), split=split)


def test_with_labels_an_unknown_organ_is_finished(joins: Callable[..., Any], ran: Path) -> None:
    """The job runs; answers that the head lacks, and the organ, are said on this machine."""
    results, _, _ = joins(organs=("chest", "head"))
    assert results["sites"]["new"]["kept"] in ("finished", "received", "ensemble", "alone", "alone_equal")
    data = data_of(SharedModel.read(ran / MODEL).job, None, "abdomen")
    notes = remarks(data, ("chest",), data.answers[:1])
    assert "no hospital of its organ" in notes[0] and "have an answer that the model cannot give" in notes[1]
    assert remarks(data, ("abdomen",), data.answers) == []
    hospital = data_of(SharedModel.read(ran / MODEL).job, None, "abdomen-1of2")
    assert remarks(hospital, ("abdomen",), hospital.answers) == []


def test_a_hospital_whose_answers_the_head_has_never_seen_is_refused(joins: Callable[..., Any], ran: Path) -> None:
    """No labelled row could teach it anything, and none of its answers could be right."""
    model = SharedModel.read(ran / MODEL)
    options = model.job.options | {"answers": ["never", "nothing"]}
    kept = SharedModel(JobSpec.from_dict(model.job.to_dict() | {"options": options}), model.tensors)
    with pytest.raises(ConfigError, match="shares no complete model"):
        kept.joining()
    two = {name: array[:2] if "answers" in name else array for name, array in model.tensors.items()}
    few = SharedModel(kept.job, two)
    with pytest.raises(FederationError, match="fewer than half of the train rows have an answer of the answer space"):
        joins(model=few)


@pytest.mark.parametrize("change", ["value", "order of bytes"])
def test_a_model_that_was_changed_on_its_way_is_refused(joins: Callable[..., Any], change: str) -> None:
    """The site compares the digest that the job names before it uses anything; its log has the reason."""

    def tamper(task: str, site: str, message: Any) -> Any:
        name = next(name for name, array in message.items() if array.ndim == 1)
        array = message[name].copy()
        array[0] += 1.0
        return {**message, name: array if change == "value" else message[name][::-1].copy() + 0.5}

    with pytest.raises(FederationError, match="it was changed on its way"):
        joins(tamper=tamper)


def test_a_server_without_the_model_says_so(joins: Callable[..., Any], ran: Path) -> None:
    """Another model than the one that the job names is not sent to anybody."""
    model = SharedModel.read(ran / MODEL)
    other = SharedModel(model.job, {name: array + 1 for name, array in model.tensors.items()})
    with pytest.raises(ConfigError, match="has no model with the digest"):
        joins(kept=other)


@pytest.mark.parametrize(
    ("policy", "code"),
    [({"methods": ["fedavg"]}, Refusal.METHOD), ({"kinds": ["statistic", "public"]}, Refusal.KIND)],
)
def test_the_hospitals_own_policy_decides(
    joins: Callable[..., Any], policy: dict[str, Any], code: Refusal, tmp_path: Path
) -> None:
    """A hospital that allows training alone does not join, nor one that takes no parameters: nothing is received."""
    with pytest.raises(FederationError):
        joins(policy)
    (audit,) = tmp_path.glob("sites/new/**/audit")
    entries = list(read(audit))
    assert [entry.admission["code"] for entry in entries if entry.event is Event.REFUSAL and entry.admission] == [code]
    assert not any(entry.tensors for entry in entries)


def test_figures_of_few_patients_stay_at_the_hospital(joins: Callable[..., Any]) -> None:
    """Below `min_count` not even counts leave: the server learns that the site was there, and nothing else."""
    results, config, _ = joins({"min_count": 1000})
    assert results["withheld"] == ["new"] and results["sites"]["new"]["accuracy"] is None
    assert not any(entry.tensors for entry in read(config.audit) if entry.outcome is Outcome.SENT)


@pytest.mark.parametrize("options", [{"own": "head"}, {"own": "bias"}])
def test_what_is_no_whole_model_is_joined_by_nobody(ran: Path, options: dict[str, Any]) -> None:
    """With a part of the head at each site, a new one would have nothing to answer with."""
    model = SharedModel.read(ran / MODEL)
    job = model.job.model_copy(update={"options": {**model.job.options, "tuning": "bias", **options}})
    with pytest.raises(ConfigError, match="must share all that is trained"):
        SharedModel(job, model.tensors).joining()


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 and no more"])
def test_a_damaged_file_is_told_in_a_sentence(tmp_path: Path, damage: bytes) -> None:
    """And so is one that is not there."""
    with pytest.raises(ConfigError, match="there is no model.npz"):
        SharedModel.read(tmp_path / MODEL)
    (tmp_path / MODEL).write_bytes(damage)
    with pytest.raises(ConfigError, match="model.npz is damaged"):
        SharedModel.read(tmp_path / MODEL)


def test_by_command_a_hospital_joins_and_its_model_answers(
    medfedvqa: Command, ran: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    """`run`, `join`, `answer`, as users go; the export is the same job, for any data and the sites that it names."""
    out, picture = tmp_path / "joined", tmp_path / "picture.png"
    Image.new("L", (40, 30), 90).save(picture)
    launch, model = Launch.read(ran), SharedModel.read(ran / MODEL)
    (copy := tmp_path / "run").mkdir()
    for name in (MODEL, "launch.json"):
        shutil.copy(ran / name, copy / name)
    assert launch.backbone_files == {TINY: tiny_backbone}
    done = medfedvqa("join", str(copy), "--site", "abdomen", "--backbone-file", str(tiny_backbone), "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "no hospital of its organ trained the model" in done.stderr and "what each site keeps" in done.stdout
    asked = medfedvqa("answer", "--run", str(out), "--site", "abdomen", "--picture", str(picture), "--question", "why?")
    assert asked.returncode == 0 and "not a medical device" in asked.stdout + asked.stderr
    assert medfedvqa("join", str(copy)).stderr.startswith("medfedvqa join: loading")
    job = medfedvqa("join", str(copy), "--job-folder", str(tmp_path / "job"))
    assert job.returncode == 0
    exported = read_job(tmp_path / "job" / "app")
    assert exported == json.loads(json.dumps(model.joining(("chest", "head"), data="any").to_dict()))
    assert medfedvqa("join", str(tmp_path), "--site", "abdomen").stderr.endswith("of its downloaded results\n")


@pytest.mark.parametrize(
    ("organs", "finished", "kept"),
    [
        ((), "111100000", "received"),  # nothing gained beside chance: 4 rows of 9 against 3
        (("abdomen",), "111100000", "received"),
        (("abdomen",), "111111100", "finished"),  # 4 gained and none lost: more than 2, a standard error
        (("chest",), "111100000", "alone"),  # a new organ, with ten labelled patients or more
        (("chest",), "111111100", "finished"),
        (("chest",), "", "alone"),
        (("abdomen",), "", "received"),
    ],
)
def test_a_hospitals_first_choice_gives_way_only_to_one_that_is_better_beyond_chance(
    ran: Path, tiny_backbone: Path, organs: tuple[str, ...], finished: str, kept: str
) -> None:
    """Of an organ that others had it is the received model; of a new one the one trained alone, or with few labelled
    patients the finished one."""
    received = "111000000"[: len(finished)]

    class Counted(JoinersKeeping):
        def right(self, name: str, examples: Any) -> torch.Tensor:
            rows = {"finished": finished, "received": received, "alone": received}.get(name, "0" * len(finished))
            return torch.tensor([row == "1" for row in rows], dtype=torch.bool)

    model = SharedModel.read(ran / MODEL)
    method, backbone = model.joining(organs, finish=1).build(), load_backbone(TINY, {TINY: tiny_backbone})
    data = data_of(model.job, None, "abdomen")
    site = Site("new", data, backbone, "cpu", model.job.seed)
    assert len(data.trained_patients) >= 10
    assert Counted(method, site, method.setup(site), model.tensors, 1).kept["model"] == kept
    few = Site("new", newcomer(data, 3), backbone, "cpu", model.job.seed)
    small = Counted(method, few, method.setup(few), model.tensors, 1).kept["model"]
    assert small == ("finished" if kept == "alone" else kept)
