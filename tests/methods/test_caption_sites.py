"""Sites of captions under CreamFL and FedDAT: what they learn, how they are tested, and what they cannot do."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from medfedvqa.core import Site, State, create
from medfedvqa.core.registry import method_names, method_type
from medfedvqa.data import Row, Split, VQAData, build_site, united
from medfedvqa.errors import ConfigError, DataError
from medfedvqa.models import HEAD, Backbone, load_backbone
from medfedvqa.models.paired import PROJECTION
from medfedvqa.papers import public_outputs
from medfedvqa.papers.caption_sites import contrast_of
from medfedvqa.papers.methods.feddat import FROZEN, LOCAL
from privacy import DPSettings, RepeatableRandomness

CREAM: dict[str, Any] = {
    "rounds": 3, "local_epochs": 10, "batch_rows": 16, "reduction": 2, "hidden": 8, "learning_rate": 0.003,
    "public_pairs": 6, "public_rows": 6, "space": 16, "server_hidden": 7, "server_epochs": 1, "own": "head",
    "trunk": "medclip2-slake", "test_pairs": 0,
}  # fmt: skip
DAT: dict[str, Any] = {
    "rounds": 3, "local_epochs": 10, "batch_rows": 16, "reduction": 2, "hidden": 8, "learning_rate": 0.006,
}  # fmt: skip
WITH_CAPTIONS = {"creamfl": CREAM, "feddat": DAT}
both = pytest.mark.parametrize("name", WITH_CAPTIONS)
DP = DPSettings(noise=1.0, count_noise=1.0, sample_rate=0.5, expected_patients=2, physical_patients=4)
FINDINGS = ("opaque", "clear", "fracture left", "mass", "effusion", "nodule", "xray of nothing", "device")
"""The captions of a site. Each has a picture of its own, of which every pair has a noisy copy."""

Sites = Callable[..., Site]


@pytest.fixture(autouse=True)
def _one_trunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's frozen backbone is loaded once for all tests."""
    monkeypatch.setattr(public_outputs, "load_backbone", trunk)


@cache
def trunk(name: str) -> Backbone:
    return load_backbone(name)


def copy_of(row: Row, size: int) -> torch.Tensor:
    """The finding's picture with noise of this pair."""
    finding, number = map(int, row.image.name.split("-"))
    plain, noise = (torch.rand(1, 4, 4, generator=torch.Generator().manual_seed(s)) for s in (finding, 100 + number))
    return F.interpolate((0.85 * plain + 0.15 * noise)[None], size=size)[0]


def pairs_of(parts: dict[str, int], findings: tuple[str, ...] = FINDINGS) -> VQAData:
    """By part, so many pairs of each finding, every pair of a patient of its own."""
    rows: list[Row] = []
    for part, count in parts.items():
        for finding in [*range(len(findings))] * count:
            index = len(rows)
            picture, words = Path(f"{finding}-{index}"), findings[finding]
            rows.append(Row(index, "ward", part, True, words, words, str(index), picture, captioned=True))
    return VQAData("pairs", ("ward",), rows, copy_of, publishes_validation=True)


@pytest.fixture
def ward(single: Backbone) -> Site:
    """A site of captions: 48 pairs to train on, 8 to validate and 8 to test."""
    data = build_site(pairs_of({"train": 6, "validate": 1, "test": 1}), "ward", Split())
    return Site("ward", data, single, "cpu", 0, RepeatableRandomness(5))


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def found(method: Any, site: Site, state: State) -> int:
    return int(method.answered(site, state, {}, site.data.test).sum())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("creamfl", {"order": "alternating"}), ("feddat", {}),
        pytest.param("creamfl", {"order": "joint"}, marks=pytest.mark.slow),
        ("feddat", {"inference": "local"}), ("feddat", {"inference": "both", "direction": "paper"}),
    ],
)  # fmt: skip
def test_recall_rises_far_above_chance_while_other_sites_answer(
    ward: Site, site: Sites, federation: type, name: str, options: dict[str, Any]
) -> None:
    """One of eight captions is right by chance, and five of eight pictures once in 1000 times. Trained, most find
    theirs; the answering site is as before."""
    method = create(name, {**WITH_CAPTIONS[name], **options})
    job = federation(method, {"ward": ward, "here": site("here")})
    counts = job.run()
    before = found(method, ward, method.setup(ward))
    received = next(down for task, _, who, down in job.received if (task, who) == ("evaluate", "ward"))
    right = method.answered(ward, job.states["ward"], received, ward.data.test)
    assert before <= 3 and int(right.sum()) == counts["ward"]["correct"] >= (6 if name == "creamfl" else 5)
    assert counts["ward"]["correct"] <= counts["ward"]["first_five"] <= counts["ward"]["rows"] == 8
    assert counts["ward"]["majority_correct"] == counts["ward"]["prior_correct"] == 1
    assert counts["here"]["prior_correct"] > 1


def test_private_captions_train_towers_and_projections_and_there_is_no_head(ward: Site, federation: type) -> None:
    """Alone, with gamma 0: both towers' adapters and both projections move, by the site's pairs alone."""
    method = create("creamfl", {**CREAM, "gamma": 0, "rounds": 1})
    before = method.setup(ward)
    job = federation(method, {"ward": ward})
    job.run()
    after = job.states["ward"]
    assert not any(name.startswith(HEAD) for name in method.trained(after))
    moved = {n for n, each in method.trained(after).items() if not torch.equal(each, method.trained(before)[n])}
    assert moved == method.trained(before).keys() and {f"{PROJECTION}image", f"{PROJECTION}text"} < moved
    assert {name.split(".")[1] for name in moved if not name.startswith(PROJECTION)} == {"image", "text"}


@both
def test_a_site_of_captions_sends_what_every_multimodal_site_sends(
    ward: Site, site: Sites, federation: type, name: str
) -> None:
    """What the exchange declares, representations or adapters, and counts: nothing shows which kind of site it is."""
    method = create(name, {**WITH_CAPTIONS[name], "local_epochs": 1})
    job = federation(method, {"ward": ward, "here": site("here")})
    job.run()
    sent = [
        [(task, round, {n: (a.dtype, a.shape) for n, a in up.items()}) for task, round, who, up in job.sent if who == w]
        for w in ("ward", "here")
    ]
    assert sent[0] == sent[1] and len(sent[0]) == 4
    declared = {spec.name for task in method.exchange(ward.backbone.shape).tasks for spec in task.up}
    assert declared == {tensor for _, _, up in sent[0] for tensor in up}


@both
def test_a_job_of_separate_processes_is_the_same_to_the_bit(ward: Site, federation: type, name: str) -> None:
    """All that a site of captions needs is in its saved state."""
    method = create(name, {**WITH_CAPTIONS[name], "rounds": 2, "local_epochs": 2})
    kept, forgot = (federation(method, {"ward": ward}, forgetful=how) for how in (False, True))
    kept.run(), forgot.run()
    for one, other in zip(kept.sent, forgot.sent, strict=True):
        assert one[:3] == other[:3] and all(np.array_equal(array, other[3][name]) for name, array in one[3].items())


@both
def test_the_best_round_of_a_site_of_captions_has_its_projections(ward: Site, federation: type, name: str) -> None:
    """`keep` as 'best' tests the towers with the projections of the same round, by recall on validation pairs."""
    method = create(name, {**WITH_CAPTIONS[name], "keep": "best", "evaluated": "personal"})
    job = federation(method, {"ward": ward})
    counts = job.run()
    curve = job.states["ward"]["validated"].tolist()
    assert found(method, ward, job.states["ward"]) == counts["ward"]["correct"]
    assert int(method.answered(ward, job.states["ward"], {}, ward.data.validate).sum()) == 8 * max(curve) >= 6


def test_equal_captions_are_no_negatives_of_each_other() -> None:
    """The loss by hand: the target is spread over the rows with the same caption, in both directions."""
    image, text = (F.normalize(torch.randn(4, 3, generator=torch.Generator().manual_seed(n)), dim=1) for n in (0, 1))
    captions, cosines = torch.tensor([7, 7, 2, 3]), image @ text.T / 0.2
    target = torch.tensor([[0.5, 0.5, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    wanted = -sum((target * each.log_softmax(dim=1)).sum(dim=1) for each in (cosines, cosines.T)) / 2
    assert torch.allclose(contrast_of(cosines, captions), wanted)
    assert torch.equal(contrast_of(cosines[:1, :1], captions[:1]), torch.zeros(1))


@pytest.mark.parametrize("direction", ["reference", "paper"])
def test_a_step_of_feddat_at_a_site_of_captions_is_algorithm_1_written_by_hand(ward: Site, direction: str) -> None:
    """The contrast stands for the cross-entropy, and each picture's softmax over the batch's captions for the answers'.

    The teacher's step sees the student as it was before its own; projections learn in both.
    """
    options = {"alpha": 0.7, "beta": 0.4, "direction": direction, "optimizer": "sgd", "learning_rate": 0.01}
    method = create("feddat", {**DAT, **options, "local_epochs": 1, "batch_rows": 48})
    state = method.setup(ward)
    trainer, start = method.trainer(ward), dict(state["values"])
    ended = method.local(trainer, state, start, 1, 5)
    shared, projection = ({n: v for n, v in start.items() if (PROJECTION in n) == wanted} for wanted in (False, True))
    local, rows = state[LOCAL], trainer.all_rows(ward.data.train)
    assert len(rows.answers) == 48 and same(ended[FROZEN], shared)

    def cosines(values: dict[str, torch.Tensor]) -> torch.Tensor:
        seen = trainer.model.represent(values, rows.batch)
        return seen["image"] @ seen["text"].T / 0.07

    def stepped(values: dict[str, torch.Tensor], other: dict[str, torch.Tensor], taught: bool) -> dict[str, Any]:
        leaves = {name: value.clone().requires_grad_() for name, value in values.items()}
        own = cosines(leaves if not taught else method.teacher(shared, local_of(leaves)) | heads_of(leaves))
        p, q = (own / 3).softmax(1), (cosines(other) / 3).softmax(1).detach()
        apart = p * (p / q).log() if direction == "paper" else q * (q / p).log()
        loss = contrast_of(own, rows.answers).mean() + (0.4 if taught else 0.7) * 9 * apart.sum(1).mean()
        slopes = torch.autograd.grad(loss, [*leaves.values()])
        return dict(zip(leaves, slopes, strict=True))

    def heads_of(values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: value for name, value in values.items() if name.startswith(PROJECTION)}

    def local_of(values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: value for name, value in values.items() if not name.startswith(PROJECTION)}

    first = stepped(start, method.teacher(shared, local) | projection, taught=False)
    student = {name: value - 0.01 * (first[name] + 0.01 * value) for name, value in start.items()}
    second = stepped(local | heads_of(student), start, taught=True)
    for name in shared:
        assert torch.allclose(ended["values"][name], student[name], rtol=0, atol=1e-6), name
        wanted = local[name] - 0.01 * (second[name] + 0.01 * local[name])
        assert torch.allclose(ended[LOCAL][name], wanted, rtol=0, atol=1e-6), name
    for name in projection:  # momentum 0.9
        before = 0.9 * (first[name] + 0.01 * start[name]) + second[name] + 0.01 * student[name]
        assert torch.allclose(ended["values"][name], student[name] - 0.01 * before, rtol=0, atol=1e-6), name


@pytest.mark.parametrize("name", sorted({*method_names()} - {*WITH_CAPTIONS}))
def test_every_other_method_refuses_a_site_of_captions_by_name(ward: Site, site: Sites, name: str) -> None:
    """Before anything is trained; a site of questions is taken."""
    kind = method_type(name)
    method = kind.__new__(kind)  # the check is the same under all options
    with pytest.raises(ConfigError, match=f"the method '{name}' answers questions"):
        method.check_kind(ward)
    method.check_kind(site())


@pytest.mark.parametrize(
    ("name", "options", "dp", "sentence"),
    [
        ("creamfl", {"models": {"ward": {"sees": "image"}}}, None, "sees pictures and texts"),
        ("feddat", {"own": "nothing"}, None, "no answer head to share"),
        *((name, {"finish_epochs": 1}, None, "no answers to train on") for name in WITH_CAPTIONS),
        *((name, {"weighting": "uniform", "answers": "closed"}, DP, "different patients") for name in WITH_CAPTIONS),
    ],
)
def test_what_a_site_of_captions_cannot_do_is_refused_at_the_site(
    ward: Site, site: Sites, name: str, options: dict[str, Any], dp: DPSettings | None, sentence: str
) -> None:
    """One modality, a shared head, answers after the last release, noise by patient; a site of questions takes the
    same job."""
    method = create(name, {**WITH_CAPTIONS[name], **options}, dp)
    with pytest.raises(ConfigError, match=sentence):
        method.setup(ward)
    with pytest.raises(ConfigError, match=sentence):
        method.check_kind(ward)
    method.check_kind(site("here"))


def test_feddat_refuses_captions_on_a_backbone_that_reads_both_in_one_tower(ward: Site, vilt: Backbone) -> None:
    """A caption has no features of its own there."""
    with pytest.raises(ConfigError, match="in one tower"):
        create("feddat", DAT).check_kind(replace(ward, backbone=vilt))


@both
def test_nobody_asks_or_attacks_a_model_without_a_head(ward: Site, name: str) -> None:
    """The kept model answers no question, and no single row has a loss."""
    method = create(name, WITH_CAPTIONS[name])
    state = method.setup(ward)
    with pytest.raises(ConfigError, match="no answer head"):
        method.answering_with(ward, state, {})
    with pytest.raises(ConfigError, match="cannot be attacked"):
        method.probe(ward, state, {})


def test_fewer_than_two_pairs_and_a_site_of_both_kinds_are_refused(site: Sites, ward: Site) -> None:
    """By the number of different captions; a declared list of answers changes neither."""
    for findings in (("clear",), ("clear", "Clear ")):
        with pytest.raises(DataError, match="at least two train pairs"):
            build_site(pairs_of({"train": 2, "test": 1}, findings), "ward", Split(), ("yes", "no"))
    data = pairs_of({"train": 2})
    mixed = [*data.rows[:-1], replace(data.rows[-1], captioned=False)]
    with pytest.raises(DataError, match="either captions or questions"):
        build_site(replace(data, rows=mixed), "ward", Split())
    with pytest.raises(DataError, match="as one site"):
        united([site().data, ward.data])
    assert united([ward.data, ward.data]).captioned


def test_captions_are_trained_on_whatever_kind_of_questions_the_job_asks() -> None:
    """The option `questions` is about questions."""
    data = pairs_of({"train": 1, "test": 1})
    sizes = [len(build_site(data, "ward", Split(questions=kind)).train) for kind in ("closed", "open", "all")]
    assert sizes == [8, 8, 8]
