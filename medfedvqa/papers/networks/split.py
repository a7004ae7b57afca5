"""The networks of split learning (Sun and Ochiai, 2023), as functions of named values, and UniCon's loss.

In UniCon a site holds the trunk ("MHA") and the answer projection (APN); the server holds the two adapters (NHA, LTA).
In conventional split learning a site holds the trunk and a last layer (tail), the server the one adapter between them.
Only activations and their gradients pass between them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F

from medfedvqa.errors import ConfigError, FederationError
from medfedvqa.models.backbone import Backbone, BackboneShape, Depth, TokenEmbeddings
from medfedvqa.models.tuning import Shapes, TuningConfig, Values

APN, MHA, NHA, LTA, TAIL = "apn.", "mha.", "nha.", "lta.", "tail."
Norm = Literal["layer", "batch"]
BUFFERS = (f"{NHA}norm.mean", f"{NHA}norm.variance")
"""The running statistics of batch normalisation, which are not trained."""
_MOMENTUM = 0.1


@dataclass(frozen=True)
class SiteNetworks:
    """A site's part without its values: `mha.*` projects the features of a tuned backbone, `apn.*` answers' tokens."""

    backbone: Backbone
    tuning: TuningConfig
    width: int = 512

    @property
    def depth(self) -> Depth:
        """The depth of the backbone's cache."""
        return self.tuning.depth(self.backbone.shape)

    def initial(self, generator: torch.Generator) -> Values:
        """Values before the first step."""
        shape, device = self.backbone.shape, self.backbone.device
        values = self.tuning.initial(shape, self.backbone, generator) | _linears(_cut(shape, self.width), generator)
        return {name: value.to(device) for name, value in values.items()}

    def rows(self, values: Mapping[str, torch.Tensor], batch: Any) -> torch.Tensor:
        """v_MHA of a batch's pictures and questions, [rows, width]."""
        features = self.backbone.features(batch, self.tuning.applied(self.backbone, values))
        return _linear(values, MHA, features)

    def answers(self, values: Mapping[str, torch.Tensor], words: TokenEmbeddings, mask_padding: bool) -> torch.Tensor:
        """v_APN of answers: the maximum over the projected tokens, [answers, width].

        Without `mask_padding` the zeros beyond an answer's end count as tokens, as in the released code.
        """
        tokens = _linear(values, APN, words.values).relu()
        if mask_padding:  # no value is below zero here, so a zero never exceeds the others
            tokens = tokens * words.present[..., None]
        return tokens.amax(dim=1)


def site_shapes(shape: BackboneShape, tuning: TuningConfig, width: int) -> Shapes:
    """The shapes of all that a site trains, by name. Raises `ConfigError` for a backbone without token embeddings."""
    return tuning.shapes(shape) | _cut(shape, width)


def head_shapes(shape: BackboneShape, tuning: TuningConfig, width: int) -> Shapes:
    """Like `site_shapes`, without the answer projection."""
    return tuning.shapes(shape) | _projection(shape, width)


def head_initial(networks: SiteNetworks, tail: Shapes, generator: torch.Generator) -> Values:
    """Values before the first step of a trunk with its projection, and of a last layer of these shapes."""
    backbone = networks.backbone
    values = networks.tuning.initial(backbone.shape, backbone, generator)
    values |= _linears(_projection(backbone.shape, networks.width) | tail, generator)
    return {name: value.to(backbone.device) for name, value in values.items()}


def tail_logits(values: Mapping[str, torch.Tensor], middle: torch.Tensor) -> torch.Tensor:
    """The server's output [rows, space] to logits, [rows, answers]."""
    return _linear(values, TAIL, middle)


@dataclass(frozen=True)
class ServerNetworks:
    """The server's part without its values: `nha.*` (two layers, normalised) and `lta.*` (one), into a common space."""

    width: int = 512
    space: int = 256
    norm: Norm = "layer"

    @property
    def shapes(self) -> Shapes:
        """The shapes of all values, with `BUFFERS` if batches are normalised."""
        shapes: Shapes = {
            f"{NHA}hidden.weight": (self.width, self.width),
            f"{NHA}hidden.bias": (self.width,),
            f"{NHA}out.weight": (self.space, self.width),
            f"{NHA}out.bias": (self.space,),
            f"{NHA}norm.weight": (self.space,),
            f"{NHA}norm.bias": (self.space,),
            f"{LTA}weight": (self.space, self.width),
            f"{LTA}bias": (self.space,),
        }
        return shapes | dict.fromkeys(BUFFERS if self.norm == "batch" else (), (self.space,))

    @property
    def middle_shapes(self) -> Shapes:
        """The shapes of `nha.*` alone."""
        return {name: size for name, size in self.shapes.items() if name.startswith(NHA)}

    def initial(self, generator: torch.Generator) -> Values:
        """Values before the first step."""
        inputs = {name: size for name, size in self.shapes.items() if ".norm." not in name}
        values = _linears(inputs, generator)
        for name, size in self.shapes.items():
            if name not in values:
                values[name] = torch.ones(size) if name.endswith(("weight", "variance")) else torch.zeros(size)
        return values

    def rows(self, values: Mapping[str, torch.Tensor], activations: torch.Tensor, training: bool) -> torch.Tensor:
        """v_NHA [rows, space] from v_MHA [rows, width]. In training, `BUFFERS` change in place."""
        out = _linear(values, f"{NHA}out.", _linear(values, f"{NHA}hidden.", activations).relu())
        weight, bias = values[f"{NHA}norm.weight"], values[f"{NHA}norm.bias"]
        if self.norm == "layer":
            return F.layer_norm(out, (self.space,), weight, bias)
        mean, variance = (values[name] for name in BUFFERS)
        return F.batch_norm(out, mean, variance, weight, bias, training, _MOMENTUM)

    def answers(self, values: Mapping[str, torch.Tensor], activations: torch.Tensor) -> torch.Tensor:
        """v_LTA [answers, space] from v_APN [answers, width]."""
        return _linear(values, LTA, activations)


@dataclass(frozen=True)
class RowContrast:
    """The loss that contrasts each row with the answers of the other rows in its batch."""

    variant: Literal["reference", "paper"] = "reference"
    """`reference` (released code): cosine, own answer in the denominator, mean. `paper`: dot product, without, sum."""
    temperature: float = 0.07
    mask_duplicates: bool = True
    """Whether rows with the same answer are not negatives of each other."""

    @property
    def cosine(self) -> bool:
        """Whether similarities are cosines."""
        return self.variant == "reference"

    def __call__(self, rows: torch.Tensor, answers: torch.Tensor, same: torch.Tensor) -> torch.Tensor:
        """The loss of v_NHA and v_LTA [rows, space]. `same`: which rows have the same answer, bool [rows, rows]."""
        scores = similarities(rows, answers, self.cosine) / self.temperature
        negatives = ~same if self.mask_duplicates else torch.ones_like(same)
        losses = info_nce(scores, negatives, included=self.variant == "reference")
        return losses.mean() if self.variant == "reference" else losses.sum()


def similarities(rows: torch.Tensor, answers: torch.Tensor, cosine: bool) -> torch.Tensor:
    """The similarity of each row to each answer, [rows, answers]: cosines, or dot products."""
    if cosine:
        rows, answers = F.normalize(rows, dim=-1), F.normalize(answers, dim=-1)
    return rows @ answers.T


def info_nce(scores: torch.Tensor, negatives: torch.Tensor, included: bool) -> torch.Tensor:
    """The InfoNCE loss of each row, [rows]. The score of its positive is on the diagonal of `scores` [rows, rows].

    `negatives`: the keys that a row is contrasted with, bool [rows, rows]. `included`: the positive is in the
    denominator as well, which keeps the loss above 0. A row without negatives counts 0.
    """
    positive = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    negatives = negatives & ~positive
    counted = negatives | (positive if included else positive & ~negatives.any(dim=1, keepdim=True))
    return scores.masked_fill(~counted, -torch.inf).logsumexp(dim=1) - scores.diagonal()


def same_rows(activations: torch.Tensor) -> torch.Tensor:
    """Which rows of [rows, width] are equal, bool [rows, rows]. Rows with the same answer have the same bits in
    v_APN.
    """
    group: torch.Tensor = torch.unique(activations, dim=0, return_inverse=True)[1]
    return group[:, None] == group


def _cut(shape: BackboneShape, width: int) -> Shapes:
    if not shape.words:
        raise ConfigError("this backbone gives no embeddings of single tokens: choose another")
    return _projection(shape, width) | {f"{APN}weight": (width, shape.words), f"{APN}bias": (width,)}


def _projection(shape: BackboneShape, width: int) -> Shapes:
    return {f"{MHA}weight": (width, shape.width), f"{MHA}bias": (width,)}


def _linear(values: Mapping[str, torch.Tensor], name: str, inputs: torch.Tensor) -> torch.Tensor:
    return F.linear(inputs, values[f"{name}weight"], values[f"{name}bias"])


def _linears(shapes: Shapes, generator: torch.Generator) -> Values:
    """Initial values, uniform in +-1/sqrt(inputs) like torch's default."""
    values: Values = {}
    for name, size in shapes.items():
        inputs = shapes[f"{name.rpartition('.')[0]}.weight"][1]
        values[name] = torch.empty(size).uniform_(-(inputs**-0.5), inputs**-0.5, generator=generator)
    return values


class _Trained:
    """Values of the server for one site, with their optimiser."""

    def __init__(self, values: Values) -> None:
        self.values = values
        trained = {name: value.requires_grad_() for name, value in values.items() if name not in BUFFERS}
        self._optimizer = adam(trained, 0.0)

    def step(self, rate: float, loss: torch.Tensor, gradient: torch.Tensor | None = None) -> None:
        """One step of Adam. `gradient`: the gradient with respect to `loss`, if that is not a scalar."""
        self._optimizer.zero_grad()
        torch.autograd.backward(loss, gradient)
        self._optimizer.param_groups[0]["lr"] = rate
        self._optimizer.step()


class ServerPart(_Trained):
    """The server's adapters for one site, in training."""

    def __init__(self, networks: ServerNetworks, contrast: RowContrast, seed: int) -> None:
        """Parts with the same seed have the same initial values."""
        self._networks, self._contrast = networks, contrast
        super().__init__(networks.initial(torch.Generator().manual_seed(seed)))

    def learn(self, rows: torch.Tensor, answers: torch.Tensor, rate: float) -> tuple[torch.Tensor, ...]:
        """One step on a batch's v_MHA and v_APN, [rows, width] each. Returns the loss's gradients at both."""
        leaves = tuple(_leaf(tensor) for tensor in (rows, answers))
        projected = self._networks.rows(self.values, leaves[0], training=True)
        keys = self._networks.answers(self.values, leaves[1])
        self.step(rate, self._contrast(projected, keys, same_rows(answers)))
        return tuple(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves)


class MiddlePart(_Trained):
    """The part between a site's first and last one, in training: `forward`, then `backward`, for each batch."""

    def __init__(self, networks: ServerNetworks, seed: int) -> None:
        """Parts with the same seed have the same initial values."""
        self._networks = networks
        values = networks.initial(torch.Generator().manual_seed(seed))
        super().__init__({name: values[name] for name in networks.middle_shapes})
        self._batch: tuple[torch.Tensor, torch.Tensor] | None = None

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """The output for a batch's activations [rows, width], [rows, space]."""
        leaf = _leaf(rows)
        output = self._networks.rows(self.values, leaf, training=True)
        self._batch = leaf, output
        return output.detach()

    def backward(self, gradient: torch.Tensor, rate: float) -> torch.Tensor:
        """One step, given the loss's gradient at the output. Returns the gradient at the activations, [rows, width].

        Raises `FederationError` if no batch went forward before.
        """
        if self._batch is None:
            raise FederationError("a gradient arrived that belongs to no batch: start the job again")
        (leaf, output), self._batch = self._batch, None
        self.step(rate, output, gradient)
        return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_()


@torch.no_grad()
def average(parts: Sequence[_Trained], chosen: Callable[[str], bool]) -> None:
    """Gives every part the mean of the chosen values, accumulated in float64. Buffers are values as well."""
    for name in filter(chosen, parts[0].values):
        mean = torch.stack([part.values[name].double() for part in parts]).mean(dim=0)
        for part in parts:
            part.values[name].copy_(mean)


def adam(values: Values, rate: float, saved: dict[str, Any] | None = None) -> torch.optim.Optimizer:
    """The optimiser of either side at this learning rate, with its `saved` state."""
    optimizer = torch.optim.Adam(values.values(), rate)
    if saved is not None:
        optimizer.load_state_dict(saved)
        optimizer.param_groups[0]["lr"] = rate
    return optimizer
