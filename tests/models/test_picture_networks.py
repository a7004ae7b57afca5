"""Networks that a job names: what is trained, what each patient's gradient is, and which networks are refused."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from medfedvqa.errors import ConfigError
from medfedvqa.models import picture_networks
from medfedvqa.models.picture_networks import (
    NetworkSpec,
    PictureBatch,
    PictureNetwork,
    check_network,
    outside_network,
    register_network,
)
from privacy import PrivateStep, Recorder, owned

SMALL_DENSE = (("block_config", (2, 2)), ("bn_size", 2), ("groups", 2), ("growth_rate", 4), ("init_features", 4))
SMALL_RESIDUAL = (("groups", 2), ("widen_factor", 0.0625))
MONAI = {"DenseNet121": SMALL_DENSE, "ResNet10": SMALL_RESIDUAL, "ResNet50": SMALL_RESIDUAL}


def plain(channels: int, outputs: int, middle: nn.Module | None = None, last: nn.Module | None = None) -> nn.Module:
    """A small network with a layer of the test's own in its middle or at its end."""
    body = [nn.Conv2d(channels, 4, 3), *([middle] if middle else []), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*body, nn.Flatten(), last or nn.Linear(4, outputs))


@pytest.fixture(autouse=True)
def only_here() -> Iterator[None]:
    """What a test registers is gone after it."""
    yield
    picture_networks._REGISTERED.clear()
    picture_networks._outline.cache_clear()


def network(name: str, arguments: Any = (), answers: int = 3, **others: Any) -> PictureNetwork:
    return PictureNetwork(NetworkSpec(name, arguments, pixels=32, **others), answers)


def batch(model: PictureNetwork, owners: torch.Tensor | None = None, count: int = 4) -> PictureBatch:
    """Drawn pictures, one a row, and answers."""
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randn(count, model.spec.channels, 32, 32, generator=generator)
    rows = torch.arange(count)
    return PictureBatch(pixels, rows, rows % max(1, len(model.spec.findings)), rows % model.answers, owners)


def initial(model: PictureNetwork, seed: int = 0) -> dict[str, torch.Tensor]:
    return model.initial(torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", MONAI)
@pytest.mark.usefixtures("sharp_relu")
def test_each_patients_gradient_of_a_monai_network_is_that_of_its_own_pictures(name: str) -> None:
    """As back-propagation of the patient's rows alone gives it, layer by layer."""
    model = network(name, MONAI[name])
    assert model.spec.shapes(3)
    check_network(model, private=True)
    values = {key: value.requires_grad_() for key, value in initial(model).items()}
    owners = torch.tensor([0, 0, 1, 1])
    rows = batch(model, owners)
    with owned(owners), (recorder := Recorder(list(values.values()))):
        loss = F.cross_entropy(model.logits(values, rows), rows.answers, reduction="none").sum()
    parts, sound = recorder.contributions(loss, 2, {})
    assert bool(sound.all())
    for patient in range(2):
        sums = {key: torch.zeros_like(value, dtype=torch.float64) for key, value in values.items()}
        names = {id(value): key for key, value in values.items()}
        weights = torch.nn.functional.one_hot(torch.tensor(patient), 2).double()
        for part in parts:
            part.add(sums[names[id(part.value)]], weights)
        mine = owners == patient
        alone = PictureBatch(rows.pixels[mine], torch.arange(2), rows.finding[mine], rows.answers[mine])
        own = F.cross_entropy(model.logits(values, alone), alone.answers, reduction="none").sum()
        for key, gradient in zip(values, torch.autograd.grad(own, list(values.values())), strict=True):
            torch.testing.assert_close(sums[key].float(), gradient, rtol=1e-3, atol=1e-4)


def test_all_parameters_are_trained_and_named_as_declared() -> None:
    """The shapes that a server derives without values are those that a site trains, and the last layer is the head."""
    model = network("DenseNet121", SMALL_DENSE)
    values, built = initial(model), model.spec.build(3)
    assert {name: tuple(value.shape) for name, value in values.items()} == model.spec.shapes(3)
    assert len(values) == len(list(built.parameters())) and "head.answers.weight" in values
    assert not [buffer for buffer in built.buffers()]


def test_sites_begin_alike_by_the_seed_alone() -> None:
    """Whatever torch's global generator is at, which stays where it was."""
    model = network("DenseNet121", SMALL_DENSE)
    torch.manual_seed(7)
    first, drawn = initial(model), torch.rand(3)
    torch.manual_seed(7)
    again = torch.rand(3)
    assert torch.equal(drawn, again)
    assert all(torch.equal(value, initial(model)[name]) for name, value in first.items())
    assert not torch.equal(first["head.answers.weight"], initial(model, 1)["head.answers.weight"])


def test_sites_of_one_process_begin_alike_although_they_build_at_the_same_time() -> None:
    """Each site is a thread of a run in process."""
    model = network("DenseNet121", SMALL_DENSE)
    with ThreadPoolExecutor(8) as pool:
        each = list(pool.map(lambda _: torch.cat([v.flatten() for v in initial(model).values()]), range(16)))
    assert all(torch.equal(values, each[0]) for values in each)


def test_findings_have_an_output_each_and_no_other_one() -> None:
    """Changing one finding's weights changes the answers to its rows alone, by the sigmoid of its output."""
    model = network("DenseNet121", SMALL_DENSE, answers=2, findings=("effusion", "nodule"))
    values, rows = initial(model), batch(network("DenseNet121", SMALL_DENSE, 2, findings=("effusion", "nodule")))
    before = model.logits(values, rows).softmax(dim=1)
    output = F.linear(model.features(values, rows), values["head.answers.weight"], values["head.answers.bias"])
    torch.testing.assert_close(before[:, 1], output.gather(1, rows.finding[:, None])[:, 0].sigmoid())
    values["head.answers.bias"][1] += 1
    moved = (model.logits(values, rows).softmax(dim=1) != before).any(dim=1)
    assert torch.equal(moved, rows.finding == 1)


class Coupled(nn.Module):
    """Takes away the mean of the batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(dim=0, keepdim=True)


class Counting(nn.Module):
    """Keeps the mean of all pictures in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean += x.mean().detach()
        return x


class Scaled(nn.Module):
    """Multiplies by a trained matrix, for which there is no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.eye(30))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.matrix


REFUSED: Mapping[str, tuple[dict[str, Any], str]] = {
    "batch norm": ({"middle": nn.BatchNorm2d(4)}, r"'1' \(BatchNorm2d\).*use group normalisation"),
    "tracked instance norm": ({"middle": nn.InstanceNorm2d(4, track_running_stats=True)}, "InstanceNorm2d"),
    "dropout": ({"middle": nn.Dropout2d(0.1)}, r"Dropout2d.*set its probability to 0"),
    "rows that reach each other": ({"middle": Coupled()}, "depend on the other pictures in the batch"),
    "a buffer that pictures change": ({"middle": Counting()}, "buffers that pictures change"),
    "another last layer": ({"last": nn.Linear(4, 7)}, "end in a linear layer with a bias and 3 outputs"),
    "no last layer": ({"last": nn.Identity()}, "end in a linear layer"),
    "another size": ({"middle": nn.Conv2d(4, 4, 64)}, "does not take pictures of 32 pixels"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_network_that_would_break_a_guard_is_refused_with_the_layer_or_the_reason(case: str) -> None:
    """Also without privacy: statistics and buffers would neither travel nor be bounded."""
    arguments, sentence = REFUSED[case]
    register_network("tried", lambda channels, outputs: plain(channels, outputs, **arguments))
    with pytest.raises(ConfigError, match=sentence):
        model = network("tried")
        model.spec.shapes(3)
        check_network(model, private=False)


def test_a_layer_without_a_rule_is_refused_by_name_under_privacy_alone() -> None:
    register_network("tried", lambda channels, outputs: plain(channels, outputs, Scaled()))
    check_network(network("tried"), private=False)
    with pytest.raises(ConfigError, match=r"no gradient per patient.*'1' \(Scaled\).*Linear, Conv2d"):
        check_network(network("tried"), private=True)


@pytest.mark.parametrize(
    "arguments",
    [
        (("pretrained", 1),),
        (("init_features", 100_000),),
        (("block_config", (10_000, 2)),),
        (("block_config", (1,) * 9),),
        (("init_features", 3),),
        (("init_features", 1024), ("growth_rate", 1024)),
    ],
)
def test_arguments_beyond_the_list_or_the_bounds_are_refused(arguments: Any) -> None:
    """A job can neither fetch weights nor ask a site for any amount of memory, and no value is quoted."""
    with pytest.raises(ConfigError) as refusal:
        network("DenseNet121", arguments).spec.shapes(3)
    assert "10000" not in str(refusal.value) and "100000" not in str(refusal.value)


def test_an_unknown_network_is_refused_and_monais_names_cannot_be_taken() -> None:
    assert outside_network({"network": "strangers-net"}) == "strangers-net"
    assert outside_network({"network": "ResNet18"}) is None and outside_network({}) is None
    with pytest.raises(ConfigError, match="unknown network; MONAI's"):
        network("strangers-net").spec.shapes(3)
    with pytest.raises(ConfigError, match="another name"):
        register_network("ResNet18", plain)


def test_a_step_bounds_what_one_patient_adds() -> None:
    """A patient with a hundred times larger pictures adds no more than the clipping norm."""
    model = network("DenseNet121", SMALL_DENSE)
    values = {key: value.requires_grad_() for key, value in initial(model).items()}
    owners = torch.zeros(4, dtype=torch.int64)
    rows = batch(model, owners)
    rows = PictureBatch(100 * rows.pixels, rows.picture, rows.finding, rows.answers, owners)
    with owned(owners), (recorder := Recorder(list(values.values()))):
        loss = 50 * F.cross_entropy(model.logits(values, rows), rows.answers, reduction="none").sum()
    step = PrivateStep(values.values(), 1.0)
    step.add(*recorder.contributions(loss, 1, {}))
    size, sums = step.rounded_sums
    norm = torch.stack([(total * size).square().sum() for total in sums.values()]).sum().sqrt()
    assert 0.5 < float(norm) <= 1.001
