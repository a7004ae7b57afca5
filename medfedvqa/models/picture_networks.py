"""Networks that a job names and trains as a whole: MONAI's picture classifiers, and those of allowed distributions.

A job names a network and its arguments, never code. All of it is trained, from random values. Rows must not affect each
other within it: batch normalisation, and the network's own dropout, are refused by the layer's name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pkgutil import resolve_name
from threading import Lock
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from medfedvqa import plugins
from medfedvqa.errors import ConfigError
from medfedvqa.models.answer_head import HEAD
from medfedvqa.models.backbone import NOTHING, Depth
from medfedvqa.models.picture_stream import NumberedQuestions, PictureStream, distinct, streamed
from medfedvqa.models.tuned import AnswerModel
from medfedvqa.models.tuning import Shapes, Values
from medfedvqa.public_answers import fold
from privacy import Chance, Recorder, SettingsError, owned

Build = Callable[..., nn.Module]
"""Builds a network from the channels of a picture, the number of its outputs, and a job's arguments by name."""
NETWORK = "network."
"""The name prefix of all trained values except the last layer's, which is `head.answers`."""
MOST_NUMBERS = 64_000_000
"""The most trained numbers of a network."""
BINARY = ("no", "yes")
"""The answers to a finding, in the order of the answer space."""
GROUPS = 8
"""The default number of groups in the group normalisation of MONAI's networks."""

_MONAI = "monai.networks.nets"
_DENSE = "in_channels", "out_channels", frozenset({"init_features", "growth_rate", "block_config", "bn_size"})
_RESIDUAL = (
    "n_input_channels",
    "num_classes",
    frozenset({"no_max_pool", "conv1_t_size", "conv1_t_stride", "widen_factor"}),
)
CONNECTED = "FullyConnectedNet"
"""The network of MONAI that takes the features of a table."""
MONAI_NETWORKS: Mapping[str, tuple[str, str, str, frozenset[str]]] = MappingProxyType(
    {
        **{f"DenseNet{n}": (f"{_MONAI}.densenet:DenseNet{n}", *_DENSE) for n in (121, 169, 201, 264)},
        **{f"ResNet{n}": (f"{_MONAI}.resnet:resnet{n}", *_RESIDUAL) for n in (10, 18, 34, 50)},
        CONNECTED: (
            f"{_MONAI}.fullyconnectednet:{CONNECTED}",
            "in_channels",
            "out_channels",
            frozenset({"hidden_channels"}),
        ),
    }
)
"""MONAI's networks that a job may name: import path, names of the arguments for channels and outputs, and the arguments
that a job may give; networks over pictures also take `groups`, the groups of channels to normalise by."""
MOST_ARGUMENT, MOST_BLOCKS = 1024, 64
"""The largest number in an argument of MONAI's, and the largest number of blocks in a list."""

_REGISTERED: dict[str, Build] = {}
_BUILDING = Lock()
"""Held while a module is built: modules draw from torch's global generator, which sites in one process share."""


def register_network(name: str, build: Build) -> None:
    """Registers a network under a name, in this process only. A later one replaces an earlier one of the same name.

    `build(channels, outputs, **arguments)` returns a `torch.nn.Module` from pictures [n, channels, side, side] to
    logits [n, outputs], whose last layer is linear. Raises `ConfigError` for the name of one of MONAI's.
    """
    if name in MONAI_NETWORKS:
        raise ConfigError(f"'{name}' is a network of MONAI: give your own network another name")
    _REGISTERED[name] = build
    _outline.cache_clear()


def is_registered_network(name: str) -> bool:
    """Whether the network of this name is registered in this process alone."""
    return name in _REGISTERED


def outside_network(options: Mapping[str, Any]) -> str | None:
    """The network in a job's options if a distribution must bring it; None for MONAI's, and without a network."""
    name = options.get("network")
    return name if isinstance(name, str) and name not in MONAI_NETWORKS and name not in _REGISTERED else None


def builder(name: str) -> Build:
    """The function that builds a network from outside. Raises `ConfigError`; `PlugInRefused` if it is not allowed."""
    build: Build | None = _REGISTERED.get(name) or plugins.load("networks", name)
    if build is None:
        raise ConfigError(f"unknown network; MONAI's that a job may name are {', '.join(MONAI_NETWORKS)}")
    return build


def _built(name: str, arguments: Mapping[str, Any], channels: int, outputs: int) -> nn.Module:
    """A network, in evaluation mode and without changes in place. Raises `ConfigError`; it quotes no argument."""
    if name in MONAI_NETWORKS:
        keywords = monai_arguments(name, arguments, channels, outputs)
        without_weights = {} if name == CONNECTED else {"pretrained": False}
        build = partial(resolve_name(MONAI_NETWORKS[name][0]), **without_weights)
    else:
        keywords, build = dict(arguments), partial(builder(name), channels, outputs)
    try:
        network: nn.Module = build(**keywords)
        if name in MONAI_NETWORKS and name != CONNECTED:
            _norm_by_groups(network, dict(arguments).get("groups", GROUPS))
    except Exception as error:  # whatever a constructor raises for arguments that do not fit
        raise ConfigError(f"the network '{name}' cannot be built of these arguments ({type(error).__name__})") from None
    if not isinstance(network, nn.Module):
        raise ConfigError(f"'{name}' builds no torch.nn.Module")
    for module in network.modules():
        if hasattr(module, "inplace"):
            vars(module)["inplace"] = False  # what was written over could not be read again for a patient's gradient
    return network.eval()


def _norm_by_groups(network: nn.Module, groups: int) -> None:
    """Replaces batch normalisation by groups: MONAI (1.6) ignores 'norm' in blocks of ResNets."""
    for module in [*network.modules()]:
        for place, child in module.named_children():
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, place, nn.GroupNorm(groups, child.num_features))


def monai_arguments(name: str, arguments: Mapping[str, Any], channels: int, outputs: int) -> dict[str, Any]:
    """The arguments of one of MONAI's networks. Raises `ConfigError` for one that a job may not give."""
    _, channels_name, outputs_name, allowed = MONAI_NETWORKS[name]
    allowed, most_listed = (allowed, MOST_ARGUMENT) if name == CONNECTED else (allowed | {"groups"}, MOST_BLOCKS)
    for key, value in arguments.items():
        numbers, most = (value, most_listed) if isinstance(value, tuple) else ((value,), MOST_ARGUMENT)
        if key not in allowed or len(numbers) > 8 or not all(0 <= number <= most for number in numbers):
            raise ConfigError(
                f"an argument of '{name}' is one of {', '.join(sorted(allowed))}, with numbers up to "
                f"{MOST_ARGUMENT}, or a list of up to 8 numbers up to {most_listed}"
            )
    given = {key: value for key, value in arguments.items() if key != "groups"}
    norm = "group", {"num_groups": dict(arguments).get("groups", GROUPS)}
    size = {channels_name: channels, outputs_name: outputs}
    if name == CONNECTED:
        return {"hidden_channels": (), **given, **size, "act": "RELU", "adn_ordering": "A"}
    return {**given, **size, "spatial_dims": 2, "norm": norm}


def last_layer(name: str, network: nn.Module, outputs: int) -> tuple[nn.Linear, str]:
    """The linear layer that gives the outputs, and its name. Raises `ConfigError`."""
    layers = [(place, module) for place, module in network.named_modules() if any(True for _ in _parameters_of(module))]
    place, last = layers[-1] if layers else ("", network)
    if not isinstance(last, nn.Linear) or last.out_features != outputs or last.bias is None:
        raise ConfigError(f"the network '{name}' has to end in a linear layer with a bias and {outputs} outputs")
    return last, place


def _parameters_of(module: nn.Module) -> Sequence[nn.Parameter]:
    """The module's parameters without those of modules within it."""
    return tuple(module.parameters(recurse=False))


def _check_layers(name: str, network: nn.Module) -> None:
    """Raises `ConfigError` for a layer that mixes rows or draws at random, with its name and what to use instead."""
    for place, module in network.named_modules():
        what = f"the layer '{place}' ({type(module).__name__}) of the network '{name}'"
        if getattr(module, "running_mean", None) is not None or isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ConfigError(
                f"{what} mixes statistics of other patients' pictures into a patient's gradient: use "
                "group normalisation, such as torch.nn.GroupNorm"
            )
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            raise ConfigError(f"{what} draws random numbers that are not the patient's: set its probability to 0")


@dataclass(frozen=True)
class NetworkSpec:
    """A network's specification in a job."""

    name: str
    arguments: tuple[tuple[str, Any], ...] = ()
    """The arguments in order of their names, with lists as tuples."""
    pixels: int = 128
    """The side of the pictures that it takes."""
    channels: int = 1
    """1: grey, 3: in colour."""
    findings: tuple[str, ...] = ()
    """The findings that it predicts, each with its own output; empty if each picture has one class."""
    features: tuple[str, ...] = ()
    """A table's features, which stand for the channels of a picture of one pixel; empty for a network over pictures."""

    def outputs(self, answers: int) -> int:
        """The number of outputs for an answer space of this size."""
        return len(self.findings) or answers

    def build(self, answers: int, seed: int = 0) -> nn.Module:
        """The network with the random values of this seed; torch's global generator keeps its state."""
        with _BUILDING, torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return _built(self.name, dict(self.arguments), self.channels, self.outputs(answers))

    def shapes(self, answers: int) -> Shapes:
        """The shapes of all trained values, by name. Raises `ConfigError` for a network that cannot be trained."""
        return dict(_outline(self, answers))


@lru_cache(maxsize=8)
def _outline(spec: NetworkSpec, answers: int) -> Mapping[str, tuple[int, ...]]:
    """The shapes of a network without its values."""
    with torch.device("meta"):
        network = spec.build(answers)
    _check_layers(spec.name, network)
    if sum(value.numel() for value in network.parameters()) > MOST_NUMBERS:
        raise ConfigError(f"the network '{spec.name}' has more than {MOST_NUMBERS:,} trained numbers: make it smaller")
    _, last = last_layer(spec.name, network, spec.outputs(answers))
    return MappingProxyType({_trained_name(n, last): tuple(v.shape) for n, v in network.named_parameters()})


def _trained_name(name: str, last: str) -> str:
    place, _, part = name.rpartition(".")
    return f"{HEAD}answers.{part}" if place == last else NETWORK + name


@dataclass(frozen=True)
class PictureBatch:
    """Rows of a site, with each distinct picture once."""

    pixels: torch.Tensor
    """float32 [pictures, channels, side, side] in -1..1."""
    picture: torch.Tensor
    """The picture of each row, int64 [rows]."""
    finding: torch.Tensor
    """The output that each row asks about, int64 [rows]; 0 where a picture has one class."""
    answers: torch.Tensor
    """The answer of each row, int64 [rows]."""
    picture_owner: torch.Tensor | None = None
    """The owner of each picture, int64 [pictures], in a batch with owners."""

    @property
    def owners(self) -> Mapping[str, torch.Tensor | None]:
        return NOTHING


class PictureCache(NumberedQuestions):
    """A site's pictures at the network's size, and the finding that each question names; see `Cache`."""

    def __init__(self, pictures: PictureStream, spec: NetworkSpec, questions: Sequence[str], device: str) -> None:
        """Raises `ConfigError` for a question that names none of the network's findings."""
        super().__init__(questions)
        numbers = {finding: number for number, finding in enumerate(spec.findings)}
        asked = [numbers.get(fold(text), -1) if numbers else 0 for text in self.texts]
        if min(asked, default=0) < 0:
            raise ConfigError("a question of this site names none of the job's findings: leave its rows out")
        self._finding, self._device = torch.tensor(asked, dtype=torch.int64), device
        parts = (part.expand(-1, spec.channels, -1, -1) * 2 - 1 for part in pictures.parts(spec.channels))
        self._pictures = pictures.space.keep(len(pictures), parts, torch.device(device))

    def batch(
        self,
        pictures: torch.Tensor,
        questions: torch.Tensor,
        answers: torch.Tensor,
        owners: torch.Tensor | None = None,
    ) -> PictureBatch:
        """See `Cache`."""
        unique, picture, owner = distinct(pictures.to(self._device), owners)
        finding = self._finding[questions.cpu()].to(self._device)
        return PictureBatch(self._pictures[unique], picture, finding, answers.to(self._device), owner)


@dataclass(frozen=True)
class PictureNetwork(AnswerModel):
    """A network over pictures. Its features are the inputs of its last layer."""

    spec: NetworkSpec
    answers: int
    device: str = "cpu"

    @property
    def depth(self) -> Depth:
        return {}

    @property
    def jumps(self) -> bool:
        return True  # many have layers that take maxima, and a network of one's own may have any layer

    @property
    def image_size(self) -> int:
        return self.spec.pixels

    @property
    def cache_key(self) -> str:
        return f"{super().cache_key} {self.spec.pixels} {self.spec.channels} {self.spec.findings}"

    def cache(self, depth: Depth, pictures: torch.Tensor | PictureStream, questions: Sequence[str]) -> PictureCache:
        return PictureCache(streamed(pictures), self.spec, questions, self.device)

    def initial(self, generator: torch.Generator, head: torch.Generator) -> Values:
        """The network's initial values; the last layer's are uniform in +-1/sqrt(inputs)."""
        network = self.spec.build(self.answers, int(torch.randint(2**62, (1,), generator=generator)))
        last, place = last_layer(self.spec.name, network, self.spec.outputs(self.answers))
        values = {_trained_name(n, place): value.detach().clone() for n, value in network.named_parameters()}
        for value in (values[f"{HEAD}answers.weight"], values[f"{HEAD}answers.bias"]):
            value.uniform_(-(last.in_features**-0.5), last.in_features**-0.5, generator=head)
        return {name: value.to(self.device) for name, value in values.items()}

    @cached_property
    def body(self) -> nn.Module:
        """The network without its last layer."""
        network = self.spec.build(self.answers).to(self.device).requires_grad_(False)
        _, place = last_layer(self.spec.name, network, self.spec.outputs(self.answers))
        parent, _, child = place.rpartition(".")
        setattr(network.get_submodule(parent), child, nn.Identity())
        return network

    def features(self, values: Mapping[str, torch.Tensor], batch: PictureBatch) -> torch.Tensor:
        with owned(batch.picture_owner):
            return self.penultimate(values, batch.pixels)[batch.picture]

    def penultimate(self, values: Mapping[str, torch.Tensor], pixels: torch.Tensor) -> torch.Tensor:
        """The input of the last layer, [n, width], for pictures [n, channels, side, side]."""
        parameters = {name.removeprefix(NETWORK): v for name, v in values.items() if name.startswith(NETWORK)}
        features: torch.Tensor = functional_call(self.body, parameters, (pixels,))
        return features

    def outputs(self, values: Mapping[str, torch.Tensor], features: torch.Tensor) -> torch.Tensor:
        """The last layer's outputs, [n, outputs]."""
        return F.linear(features, values[f"{HEAD}answers.weight"], values[f"{HEAD}answers.bias"])

    def answer(
        self, values: Mapping[str, torch.Tensor], features: torch.Tensor, batch: Any, chance: Chance | None = None
    ) -> torch.Tensor:
        outputs = self.outputs(values, features)
        if not self.spec.findings:
            return outputs
        score = outputs.gather(1, batch.finding[:, None]) / 2
        return torch.cat([-score, score], dim=1)  # whose softmax is the sigmoid of the finding's output

    def attention(self, values: Mapping[str, torch.Tensor], batch: Any) -> torch.Tensor:
        raise ConfigError("this network has no attention over a picture to show")


def check_network(model: PictureNetwork, private: bool) -> None:
    """Tries a network on two random pictures. Raises `ConfigError` if one affects the other, or changes a buffer.

    `private`: also check that each picture has its own gradient, layer by layer.
    """
    name, generator = model.spec.name, torch.Generator().manual_seed(0)
    side = model.spec.pixels
    pixels = torch.rand(2, model.spec.channels, side, side, generator=generator, dtype=torch.float32) * 2 - 1
    values, nobody = model.initial(generator, generator), torch.zeros(2, dtype=torch.int64)

    def logits(which: torch.Tensor, of: Mapping[str, torch.Tensor], owners: torch.Tensor | None) -> torch.Tensor:
        rows = PictureBatch(pixels[which].to(model.device), torch.arange(len(which)), nobody[which], nobody, owners)
        return model.logits(of, rows)

    before = {place: value.clone() for place, value in model.body.named_buffers()}
    try:
        both = logits(torch.arange(2), values, None)
        alone = torch.cat([logits(torch.tensor([n]), values, None) for n in range(2)])
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"the network '{name}' does not take pictures of {side} pixels and {model.spec.channels} channels "
            f"({type(error).__name__})"
        ) from None
    if both.shape != (2, model.answers):
        raise ConfigError(f"the network '{name}' gives outputs of another shape than [pictures, {model.answers}]")
    if not torch.allclose(both, alone, rtol=1e-3, atol=1e-4):
        raise ConfigError(f"the network '{name}' gives outputs that depend on the other pictures in the batch")
    if any(not torch.equal(before[place], value) for place, value in model.body.named_buffers()):
        raise ConfigError(f"the network '{name}' has buffers that pictures change: they would travel without a bound")
    if private:
        _check_gradients(model, values, logits)


RULED = (nn.Linear, nn.Conv2d, nn.ConvTranspose2d, nn.GroupNorm, nn.LayerNorm, nn.InstanceNorm2d, nn.Embedding)
"""Layers with rules for gradients by patient."""


def _check_gradients(model: PictureNetwork, values: Values, logits: Callable[..., torch.Tensor]) -> None:
    """Raises `ConfigError` if some trained value has no gradient by patient, with the layers to look at."""
    leaves = {name: value.detach().clone().requires_grad_() for name, value in values.items()}
    owners = torch.arange(2, device=model.device)
    try:
        with owned(owners), (recorder := Recorder(list(leaves.values()))):
            loss = F.cross_entropy(
                logits(torch.arange(2), leaves, owners), torch.zeros(2, dtype=torch.int64).to(owners)
            )
        parts, _ = recorder.contributions(loss * 2, 2, {})
        if {part.value for part in parts} != {*leaves.values()}:
            raise SettingsError("a parameter that is trained does not influence the loss")
    except SettingsError as error:
        others = [
            f"'{place}' ({type(module).__name__})"
            for place, module in model.body.named_modules()
            if _parameters_of(module) and not isinstance(module, RULED)
        ]
        ruled = ", ".join(kind.__name__ for kind in RULED)
        where = f"; look at {', '.join(others[:3])}: layers with a rule are {ruled}" if others else ""
        raise ConfigError(
            f"the network '{model.spec.name}' cannot be trained under differential privacy: {error}{where}"
        ) from None
