"""CreamFL against its paper and its card; that it keeps what all methods promise is in test_all_methods."""

import itertools
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from audits import Kind
from medfedvqa.core import Method, Site, State, create
from medfedvqa.data import held_out_pairs, public_pairs
from medfedvqa.errors import ConfigError
from medfedvqa.models import Backbone, load_backbone, shape_of
from medfedvqa.papers import public_outputs
from medfedvqa.papers.methods.creamfl.method import server_score
from medfedvqa.papers.methods.creamfl.server_model import EnsembleServer, aggregate
from privacy import DPSettings, PrivateStep

QUICK: dict[str, Any] = {
    "rounds": 2, "local_epochs": 2, "batch_rows": 6, "reduction": 4, "hidden": 8, "learning_rate": 0.01,
    "weighting": "uniform",
}  # fmt: skip
CREAM: dict[str, Any] = {
    **QUICK, "public_pairs": 6, "public_rows": 4, "space": 5, "server_hidden": 7, "server_epochs": 1,
    "trunk": "medclip2-slake", "test_pairs": 0,
}  # fmt: skip
MIXED = {"eye": {"sees": "image", "hidden": 4}, "ear": {"sees": "text", "blocks": 1, "tuning": "lora"}}
DP = DPSettings(noise=1.0, count_noise=1.0, sample_rate=0.5, expected_patients=2, physical_patients=4)
SHAPE = shape_of("medclip2-slake")

Sites = Callable[..., Site]
Runs = Callable[..., Any]


def cream(dp: DPSettings | None = None, **options: object) -> Method:
    return create("creamfl", {**CREAM, **options}, dp)


@pytest.fixture(autouse=True)
def one_trunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers of all tests share the weights that never change."""
    monkeypatch.setattr(public_outputs, "load_backbone", trunk)


@cache
def trunk(name: str) -> Backbone:
    return load_backbone(name)


@pytest.fixture
def run(site: Sites, federation: type) -> Runs:
    """A job over sites of these names."""

    def go(method: Method, *names: str, **how: bool) -> Any:
        done = federation(method, {name: site(name) for name in names}, **how)
        done.run()
        return done

    return go


def same(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def test_without_either_contrast_a_site_trains_as_without_gamma(run: Runs) -> None:
    """inter and intra off is gamma = 0 bit for bit, in turn and jointly; each of them alone is something else."""
    for order in ("alternating", "joint"):
        plain = run(cream(gamma=0, order=order), "here").states["here"]["values"]
        assert same(run(cream(inter=False, intra=False, order=order), "here").states["here"]["values"], plain)
    whole = run(cream(), "here").states["here"]["values"]
    parts = [run(cream(**{off: False}), "here").states["here"]["values"] for off in ("inter", "intra")]
    for one, other in itertools.combinations([plain, whole, *parts], 2):
        assert not same(one, other)


def test_without_gca_the_ensemble_is_the_plain_mean(run: Runs) -> None:
    """All sites weigh the same for every pair; with it they do not."""
    uploads = run(cream(), "here", "there").uploads("train_multimodal", 1)
    shared = {name: F.normalize(torch.randn(6, 5), dim=1) for name in ("image", "text")}
    mean = {name: torch.from_numpy(sum(up[name] for up in uploads.values())) / 2 for name in shared}
    plain, weighed = (cream(gca=gca).ensemble(uploads, shared) for gca in (False, True))
    for name in shared:
        assert torch.allclose(plain[name], mean[name], atol=1e-7)
        assert not torch.allclose(weighed[name], mean[name], atol=1e-4)


def test_the_servers_model_is_tested_and_calls_no_site_for_it(run: Runs) -> None:
    """All that travels is the same bit for bit; the score is of held-out pairs, whatever the sites' rows are."""
    tested, plain = (run(cream(test_pairs=count), "here") for count in (12, 0))
    for one, other in zip(tested.sent, plain.sent, strict=True):
        assert one[:3] == other[:3] and all(np.array_equal(array, other[3][name]) for name, array in one[3].items())
    assert plain.hub.history.server is None
    score = tested.hub.history.server
    assert score.pictures == 12 and score.captions == len({*held_out_pairs(12).captions})
    assert score.questions == len(held_out_pairs(12).questions) and 0 <= score.correct <= score.questions


def test_a_server_that_has_learned_finds_partners_and_one_that_has_not_does_not() -> None:
    """On pictures that neither has seen; the test leaves its model as it is."""
    pairs, held_out = public_pairs(96), held_out_pairs(48)
    config = cream(public_rows=32, space=64, server_hidden=256, server_epochs=20, server_rate=3e-3).config
    backbone = trunk("medclip2-slake")
    learned = EnsembleServer(backbone, pairs, config.server, 1)
    fresh = server_score(learned, backbone, pairs, held_out, 2)
    learned.supervise()
    before = learned.representations()
    after = server_score(learned, backbone, pairs, held_out, 2)
    assert same(before, learned.representations()) and after == server_score(learned, backbone, pairs, held_out, 2)
    assert after.rsum > 1.5 * fresh.rsum


@pytest.mark.parametrize("options", [{}, {"order": "joint"}, {"local_unit": "batches"}])
def test_without_contrast_a_site_trains_as_if_alone_bit_for_bit(run: Runs, options: dict[str, str]) -> None:
    """gamma = 0 is `local` with the same options; any other is not."""
    known = {name: value for name, value in options.items() if name != "order"}
    alone = run(create("local", {**QUICK, **known}), "here").states["here"]["values"]
    assert same(run(cream(gamma=0, **options), "here").states["here"]["values"], alone)
    assert not same(run(cream(**options), "here").states["here"]["values"], alone)


def test_contrast_moves_towers_and_projections_but_no_head(site: Sites) -> None:
    """The head learns from private rows alone."""
    method, there = cream(local_epochs=1, learning_rate=1e-3), site()
    given = {modality: np.eye(6, 5, dtype=np.float32) for modality in ("image", "text")}
    before = method.setup(there)
    after, _ = method.train(there, before, given, 1)
    plain, _ = cream(local_epochs=1, learning_rate=1e-3, gamma=0).train(there, before, given, 1)
    moved = {n for n, value in after["values"].items() if not torch.equal(value, plain["values"][n])}
    assert moved == {name for name in after["values"] if not name.startswith("head.")}
    assert same(plain["projection"], before["projection"]) and not same(after["projection"], before["projection"])


def test_sites_of_all_kinds_and_sizes_send_what_they_see_and_no_more(run: Runs) -> None:
    """Unit vectors of their own modalities; models differ in tuned part and width; all are scored."""
    done = run(cream(models=MIXED), "eye", "ear", "both")
    kinds = {"eye": ("train_image", {"image"}), "ear": ("train_text", {"text"}), "both": ("train_multimodal", None)}
    for site, (task, seen) in kinds.items():
        upload = done.uploads(task, 2)[site]
        assert upload.keys() == (seen or {"image", "text"})
        assert all(np.allclose(np.linalg.norm(each, axis=1), 1, atol=1e-5) for each in upload.values())
    values = {site: state["values"] for site, state in done.states.items()}
    assert len(values["eye"]["head.hidden.bias"]) == 4 and len(values["both"]["head.hidden.bias"]) == 8
    assert not any(".text." in name for name in values["eye"]) and any("lora.text" in name for name in values["ear"])
    assert done.uploads("evaluate", 2).keys() == set(kinds)
    assert {frozenset(down) for task, *_, down in done.received if task != "evaluate"} == {frozenset(("image", "text"))}
    assert not any(down for task, *_, down in done.received if task == "evaluate")


def test_only_representations_and_counts_are_declared() -> None:
    """A task for each kind of site that the job has; the server never sends weights, nor does a site."""
    exchange = create("creamfl", {"models": MIXED}).exchange(SHAPE)
    assert [task.name for task in exchange.tasks] == ["train_image", "train_text", "train_multimodal", "evaluate"]
    for task in exchange.tasks[:-1]:
        assert {(spec.kind, spec.shape) for spec in (*task.up, *task.down)} == {(Kind.REPRESENTATIONS, (128, 256))}
    assert [len(task.up) for task in exchange.tasks[:-1]] == [1, 1, 2]
    assert exchange.task("train_multimodal").bytes_up == 2 * 128 * 256 * 4


def server(**options: object) -> EnsembleServer:
    config = cream(**options).config
    return EnsembleServer(trunk("medclip2-slake"), public_pairs(6), config.server, 1)


def received(done: Any, round: int) -> dict[str, torch.Tensor]:
    return next(
        {n: torch.from_numpy(a) for n, a in down.items()} for _, number, _, down in done.received if number == round
    )


def test_without_distillation_the_server_learns_from_pairs_alone(run: Runs) -> None:
    """kd = 0: what sites get is what a server without sites makes; with kd it is not, from the second round on."""
    alone, without, with_ = server(), run(cream(kd=0), "here", "there"), run(cream(), "here", "there")
    for number in (1, 2):
        alone.supervise()
        found = alone.representations()
        assert same(found, received(without, number)) and same(found, received(with_, number)) == (number == 1)


@pytest.mark.parametrize("distance", ["mse", "l2"])
def test_distillation_brings_the_server_nearer_to_the_ensemble(distance: str) -> None:
    """In both distances, and in the one modality that there is."""
    trained, target = server(distance=distance), torch.nn.functional.normalize(torch.ones(6, 5), dim=1)
    before = trained.representations()
    for _ in range(5):
        trained.distil({"image": target})
    after = trained.representations()
    assert (after["image"] - target).norm() < (before["image"] - target).norm()
    assert torch.equal(after["text"], before["text"])


def test_a_servers_own_representations_teach_it_nothing() -> None:
    """A fixed point of the mean square: no gradient. (Adam would make a whole step of what rounding leaves.)"""

    def steepest(shift: int) -> float:
        trained = server(public_rows=6)
        trained.distil({name: each.roll(shift, 0) for name, each in trained.representations().items()})
        return max(float(each.grad.abs().max()) for each in trained.networks.parameters() if each.grad is not None)

    assert steepest(0) < 1e-6 < 1e-3 < steepest(1)


def test_each_modality_is_aggregated_once_over_all_sites_that_see_it(run: Runs) -> None:
    """Sites that see both and sites that see one count alike, held against the other modality."""
    method = cream(models=MIXED)
    done = run(method, "eye", "ear", "both")
    uploads = {
        site: up
        for task in ("train_image", "train_text", "train_multimodal")
        for site, up in done.uploads(task, 1).items()
    }
    shared = received(done, 1)
    found = method.ensemble(uploads, shared)
    image = {site: torch.from_numpy(uploads[site]["image"]) for site in ("eye", "both")}
    assert found.keys() == {"image", "text"} and torch.equal(found["image"], aggregate(image, shared["text"], 1.0))


def test_a_job_of_separate_processes_is_the_same_to_the_bit(run: Runs) -> None:
    """All that lasts is in the saved state."""
    kept, forgot = (run(cream(models=MIXED), "eye", "ear", "both", forgetful=how) for how in (False, True))
    for one, other in zip(kept.sent, forgot.sent, strict=True):
        assert one[:3] == other[:3] and all(np.array_equal(array, other[3][name]) for name, array in one[3].items())


def test_sampled_sites_alone_make_a_rounds_ensemble(run: Runs) -> None:
    """A modality that none of them sees is left as it is in that round: the server learns from the other alone."""
    done = run(cream(models=MIXED, sampled=1, rounds=4), "eye", "ear", "both")
    called = [[site for task, n, site, _ in done.sent if n == number and task != "evaluate"] for number in (1, 2, 3, 4)]
    assert all(len(sites) == 1 for sites in called) and len({*map(tuple, called)}) > 1
    job = done.method
    upload = {"eye": {"image": np.eye(6, 5, dtype=np.float32)}}
    shared = {name: F.normalize(torch.ones(6, 5), dim=1) for name in ("image", "text")}
    assert job.ensemble(upload, shared).keys() == {"image"}


def test_a_task_of_another_kind_is_refused_by_the_site(site: Sites) -> None:
    """A server cannot ask a picture site for texts."""
    method, there = cream(models={"here": {"sees": "image"}}), site()
    task = method.exchange(SHAPE).task("train_multimodal")
    with pytest.raises(ConfigError, match="does not see"):
        method.handle(task, there, method.setup(there), {}, 1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sees": "image"}, "no site sees text"),
        ({"sees": "text"}, "no site sees image"),
        ({"models": {"nowhere": {}}}, "names a site that does not take part"),
        ({"trunk": "ViT-B-32@hospital"}, "bundled one by 'trunk'"),
    ],
)
def test_a_job_that_cannot_work_is_refused_before_it_trains(run: Runs, options: dict[str, Any], said: str) -> None:
    """A modality that nobody sees, an unknown site, a backbone that the server has no file of."""
    with pytest.raises(ConfigError, match=said):
        run(cream(**options), "here")


def test_options_that_make_no_sense_are_refused(vilt: Any) -> None:
    """At submission, each with its reason."""
    for options in ({"tuning": "classifier"}, {"models": {"here": {"tuning": "classifier"}}}):
        with pytest.raises(ConfigError, match="compares features"):
            cream(**options)
    with pytest.raises(ConfigError, match=r"models\.\*\.sees"):
        cream(models={"here": {"sees": "sound"}})
    with pytest.raises(ConfigError, match="every site's own upload"):
        create("creamfl", CREAM, secagg=True)
    with pytest.raises(ConfigError, match="one tower"):
        cream().exchange(vilt.shape)


def test_a_trunk_that_has_seen_a_sites_data_is_refused_there(site: Sites) -> None:
    """The public set passes on what the trunk knows."""
    there = site()
    object.__setattr__(there.data, "name", "slake")
    with pytest.raises(ConfigError, match="has seen"):
        cream().setup(there)


@pytest.mark.parametrize("order", ["alternating", "joint"])
def test_private_steps_are_paid_for_and_public_ones_are_free(
    run: Runs, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many noisy steps as the plan charges, whatever the number of public pairs."""
    finished, finish = [], PrivateStep.finish
    monkeypatch.setattr(PrivateStep, "finish", lambda self, *rest: finished.append(1) or finish(self, *rest))
    for pairs in (6, 12):
        method = cream(DP, order=order, public_pairs=pairs)
        finished.clear()
        run(method, "here")
        assert len(finished) == sum(event.steps for planned in method.plan() for event in planned.events) == 8


def test_under_differential_privacy_all_sites_are_multimodal() -> None:
    """Charges are planned for the job, the same at all sites."""
    with pytest.raises(ConfigError, match="differential privacy"):
        cream(DP, models=MIXED)
    up = cream(DP, models={"here": {"hidden": 4}}).final_exchange(SHAPE).task("train_multimodal").up
    assert {spec.name: spec.protection.private for spec in up} == {"image": True, "text": True, "epsilon": False}
