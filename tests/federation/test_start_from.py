"""A job that starts from an earlier run's model: a public prior, from open data, which costs no privacy."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from cli.conftest import Command, medfedvqa
from tiny_clip import TINY

import medfedvqa as mv
from audits import read
from medfedvqa.core import Site, create
from medfedvqa.core.kept_model import FIRST, Keeping
from medfedvqa.core.method import arrays_of
from medfedvqa.data import CLOSED_ANSWERS
from medfedvqa.errors import ConfigError, FederationError
from medfedvqa.federation.flare.job_folder import read_job
from medfedvqa.federation.hub import TaskAnswer
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import Launch, plan, resume, run
from medfedvqa.federation.shared_model import MODEL, SharedModel
from medfedvqa.models import load_backbone

__all__ = ["medfedvqa"]
OPTIONS = {"rounds": 1, "schedule": "stepwise", "tuning": "classifier", "batch_rows": 16, "hidden": 8}
STILL = {**OPTIONS, "learning_rate": 1e-9}
"""Steps that change nothing, so that the final model is the one that the sites started from."""
SITES = ("abdomen", "chest", "head")


def job(options: Mapping[str, Any] = STILL, **changes: Any) -> JobSpec:
    return JobSpec.from_dict({"method": "fedavg", "options": options, "data": "phantom", "backbone": TINY, **changes})


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Path:
    """The folder of a finished run of two phantom sites, whose model differs from what they began with."""
    out = tmp_path_factory.mktemp("runs") / "earlier"
    long = job({**OPTIONS, "rounds": 6})
    run(plan(long, None, out, ("chest", "head"), 1, {TINY: tiny_backbone}), "local", lambda event: None)
    return out


@pytest.fixture
def started(earlier: Path, tiny_backbone: Path, tmp_path: Path) -> Callable[..., Launch]:
    """The plan of a run that starts from the earlier model; arguments as those of `job`."""

    def planned(options: Mapping[str, Any] = STILL, **changes: Any) -> Launch:
        files = {TINY: tiny_backbone}
        spec = job(options, **changes)
        return plan(spec, None, tmp_path / "run", SITES, 1, files, start_from=earlier / MODEL)

    return planned


def same(model: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two models have the same tensors to 1e-5."""
    assert model.keys() == other.keys()
    return all(torch.allclose(torch.as_tensor(v), torch.as_tensor(other[n]), atol=1e-5) for n, v in model.items())


@pytest.mark.parametrize("secagg", [False, "masks"])
def test_the_sites_start_from_the_model_and_log_that_they_received_it(
    started: Callable[..., Launch], earlier: Path, tiny_backbone: Path, tmp_path: Path, secagg: Any
) -> None:
    """Without the option the same steps end at other values, which the seed draws."""
    launch = started(secagg=secagg)
    run(launch, "local", lambda event: None)
    model = SharedModel.read(earlier / MODEL)
    assert same(SharedModel.read(launch.out / MODEL).tensors, model.tensors)
    for folder in launch.audit_folders.values():
        first = next(entry for entry in read(folder) if entry.direction == "in")
        assert (first.task, {tensor.name for tensor in first.tensors}) == ("start", {*model.tensors})
    alone = plan(job(), None, tmp_path / "random", SITES, 1, {TINY: tiny_backbone})
    run(alone, "local", lambda event: None)
    assert not same(SharedModel.read(alone.out / MODEL).tensors, model.tensors)


def test_such_a_run_can_be_resumed_and_run_again(
    started: Callable[..., Launch], medfedvqa: Command, earlier: Path
) -> None:
    """It keeps a copy of the model, so that the earlier run's folder may be gone."""

    def dies(event: TaskAnswer) -> None:
        if event.round == 2:
            raise KeyboardInterrupt

    launch = started({**OPTIONS, "rounds": 3})
    with pytest.raises(KeyboardInterrupt):
        run(launch, "local", dies)
    assert SharedModel.read(launch.first_model).digest == SharedModel.read(earlier / MODEL).digest
    assert resume(launch.out, lambda event: None)["status"] == "finished"
    assert medfedvqa("audit", "rerun", str(launch.out)).returncode == 0


def test_a_site_refuses_another_model_than_the_job_names(site: Callable[..., Site], earlier: Path) -> None:
    model = SharedModel.read(earlier / MODEL)
    here, method = site(), model.starting(job()).build()
    changed = {name: array + 1 for name, array in model.tensors.items()}
    with pytest.raises(FederationError, match="changed on its way"):
        method.start(here, {}, changed, 1)


def test_a_server_without_the_model_begins_nothing(earlier: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    spec = SharedModel.read(earlier / MODEL).starting(job())
    orphan = plan(spec, None, tmp_path / "run", SITES, 1, {TINY: tiny_backbone})
    with pytest.raises(ConfigError, match="no model with the digest"):
        run(orphan, "local", lambda event: None)


@pytest.mark.parametrize(
    "changes",
    [
        {"options": {**STILL, "hidden": 9}},
        {"options": {**STILL, "answers": [*reversed(CLOSED_ANSWERS)]}},
        {"options": {**STILL, "own": "last"}},
    ],
    ids=["layers", "answers", "part"],
)
def test_a_job_that_trains_another_model_is_refused_before_it_starts(
    started: Callable[..., Launch], changes: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="trains another model"):
        started(**changes)


def test_a_model_of_another_backbone_is_refused_though_its_layers_fit(earlier: Path) -> None:
    model = SharedModel.read(earlier / MODEL)
    elsewhere = SharedModel(model.job.model_copy(update={"backbone": "medclip2-vqarad"}), model.tensors)
    with pytest.raises(ConfigError, match="trains another model"):
        elsewhere.starting(job())


def test_other_methods_name_the_method_that_starts_from_a_model(earlier: Path) -> None:
    with pytest.raises(ConfigError, match="use `fedavg`"):
        SharedModel.read(earlier / MODEL).starting(job({"rounds": 1}, method="prompt_pfl"))


def test_what_a_site_trains_alone_starts_from_the_model_too(
    site: Callable[..., Site], earlier: Path, tiny_backbone: Path
) -> None:
    """So the comparison is fair: a hospital alone could take the public model as well."""
    model, here = SharedModel.read(earlier / MODEL), site(backbone=load_backbone(TINY, {TINY: tiny_backbone}))
    method = create("fedavg", {**STILL, "finish_epochs": 1})
    first = {name: torch.from_numpy(array) for name, array in model.tensors.items()}
    keeping = Keeping(method, here, {**method.setup(here), FIRST: first}, arrays_of(first), 1)
    assert same(keeping.alone["values"], first)


def test_it_costs_no_privacy(earlier: Path) -> None:
    """The model is public: what a patient may change of a sum is as without it."""
    options = {**STILL, "weighting": "uniform", "answers": "closed"}
    without = job(options, dp={"epsilon": 8.0}).build()
    digest = SharedModel.read(earlier / MODEL).digest
    begun = job({**options, "start_from": digest}, dp={"epsilon": 8.0}).build()
    assert [*begun.plan()] == [*without.plan()] and begun.noise == without.noise


def test_the_commands_name_the_run(medfedvqa: Command, earlier: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    """`run` and `jobs export`. FLARE on this machine has a server of its own, without that run."""
    model = SharedModel.read(earlier / MODEL)
    options = [part for name, value in OPTIONS.items() for part in ("-O", f"{name}={value}")]
    given = ("fedavg", *options, "--backbone", TINY, "--start-from", str(earlier), "--data", "phantom")
    sites = ("--site", "chest", "--site", "head")
    medfedvqa("run", *given, *sites, "--backbone-file", str(tiny_backbone), "--out", str(tmp_path / "a"))
    assert Launch.read(tmp_path / "a").job.options["start_from"] == model.digest
    medfedvqa("jobs", "export", *given, "--out", str(tmp_path / "b"))
    assert read_job(tmp_path / "b" / "app")["options"]["start_from"] == model.digest
    here = mv.Job("fedavg", method_options=OPTIONS, backbone=TINY)
    with pytest.raises(ConfigError, match="export a job with --start-from"):
        mv.run(here, mv.load("phantom"), engine="simulator", start_from=earlier)
