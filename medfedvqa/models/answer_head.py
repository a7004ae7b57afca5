"""The answer head: it joins picture and question, and has the layers from there to the answers.

| fusion       | what the two last layers see                                                                     |
|--------------|--------------------------------------------------------------------------------------------------|
| `concat`     | picture and question side by side                                                                |
| `product`    | the product of both, each in tanh units                                                          |
| `attend`     | as `product`; the picture also has the places of its frozen grid that the question's units weigh |
| `text`       | the question alone                                                                               |
| `components` | products of principal components of both, see `Components`; one linear layer, for privacy      |

The question is the text tower's features, hashed n-grams of its words, or both. In a backbone that reads picture and
question in one tower, the tower's features are the picture, and n-grams are the question.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import torch
import torch.nn.functional as F

from medfedvqa.errors import ConfigError
from medfedvqa.models.backbone import BackboneShape, Cache, Components
from medfedvqa.models.families import IMAGE, TEXT
from medfedvqa.models.ngrams import NGRAMS, hashed_ngrams
from medfedvqa.models.picture_space import Rows
from medfedvqa.models.picture_stream import NumberedQuestions
from medfedvqa.models.tuning import Shapes
from privacy import Chance, Unit

HEAD = "head."
DOWN = ".down"
"""The end of the name of a low-rank layer's first factor."""
NORM = "norm"
"""The name of the LayerNorm, with initial values 1 and 0."""
Fusion = Literal["concat", "product", "attend", "text", "components"]
QuestionInput = Literal["tower", "ngrams", "both"]
Named = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class HeadConfig:
    """The answer head. Its last two layers go to `hidden` units, through ReLU and dropout, to the answers."""

    answers: int
    hidden: int = 512
    dropout: float = 0.2
    fusion: Fusion = "concat"
    question: QuestionInput = "tower"
    units: int = 192
    """The tanh units of picture and question in a product."""
    members: int = 1
    """The number of heads, whose log-probabilities are averaged."""
    normed: bool = False
    """Whether the hidden units pass a LayerNorm before ReLU, as in FedP3's paper."""
    components: tuple[int, int] = (8, 96)
    """The principal components of picture and of question, where `fusion` joins these."""
    rank: int | None = None
    """The rank of each linear layer that so has fewer numbers; None: no layer is low-rank."""

    def __post_init__(self) -> None:
        if not 0 <= self.dropout < 1 or min(self.hidden, self.units, self.members) < 1:
            raise ConfigError("dropout must lie in [0, 1); the head's hidden width, units and members must be positive")

    def shapes(self, shape: BackboneShape, aside: int = 0) -> Shapes:
        """The shapes of the head's weights, on a backbone of this shape.

        `aside`: the width of features that come from no tower. Raises `ConfigError` for a fusion that the backbone
        does not allow.
        """
        inputs = self.layers(shape, aside)
        widths = {name: self.units for name in inputs} | {"hidden": self.hidden, "answers": self.answers}
        if "places" in inputs:
            widths["looking"] = inputs["places"]
        shapes: Shapes = {}
        for member, name in product(range(self.members), inputs):
            layer = f"{HEAD}{_layer_name(name, member)}"
            shapes |= self._weights(layer, widths[name], inputs[name])
            if self.fusion != "components":
                shapes[f"{layer}.bias"] = (widths[name],)
        if self.rank and not any(name.endswith(DOWN) for name in shapes):
            raise ConfigError(f"a rank of {self.rank} makes no layer of this head smaller: give a lower 'head_rank'")
        norms = [_layer_name(NORM, member) for member in range(self.members if self.normed else 0)]
        return shapes | {f"{HEAD}{norm}.{part}": (self.hidden,) for norm in norms for part in ("weight", "bias")}

    def _weights(self, layer: str, outputs: int, inputs: int) -> Shapes:
        """The weight of a layer, or the two factors of it: weight @ down."""
        if self.rank is None or self.rank * (outputs + inputs) >= outputs * inputs:
            return {f"{layer}.weight": (outputs, inputs)}
        return {f"{layer}.weight": (outputs, self.rank), f"{layer}{DOWN}": (self.rank, inputs)}

    def sees(self, tower: str) -> bool:
        """Whether the answer depends on the features of this tower."""
        return self.question != "ngrams" if tower == TEXT else self.fusion != "text"

    def layers(self, shape: BackboneShape, aside: int = 0) -> dict[str, int]:
        """The width of each layer's input, by the layer's name. Raises as `shapes` does."""
        picture = sum(facts.width for tower, facts in shape.towers.items() if tower != TEXT) + aside
        text = shape.towers[TEXT].width if TEXT in shape.towers and self.question != "ngrams" else 0
        question = text + (0 if self.question == "tower" else NGRAMS)
        if self.fusion == "components":
            return self._products(shape, aside)
        last = {"answers": self.hidden}
        if self.fusion == "concat":
            return {"hidden": picture + question, **last}
        if not question:
            raise ConfigError(
                f"this backbone reads picture and question in one tower, so the answer head's fusion '{self.fusion}' "
                "finds no question apart: give 'question_input' as 'ngrams' or 'both', or 'fusion' as 'concat'"
            )
        if aside or not (picture or self.fusion == "text"):
            raise ConfigError(
                f"the answer head's fusion '{self.fusion}' needs picture and question features apart: leave 'features' "
                "at 'concat', or give 'fusion' as 'concat'"
            )
        if self.fusion == "text":
            return {"hidden": question, **last}
        joined = {"picture": picture, "question": question, "hidden": self.units, **last}
        if self.fusion == "product":
            return joined
        if IMAGE not in shape.towers:
            raise ConfigError("fusion 'attend' needs a backbone with a tower for pictures alone: give 'product'")
        return {**joined, "looking": self.units, "places": shape.towers[IMAGE].width}

    def _products(self, shape: BackboneShape, aside: int) -> dict[str, int]:
        pictures, questions = self.components
        if pictures > shape.components[0] or questions > shape.components[1]:
            raise ConfigError(
                f"fusion 'components' takes up to {shape.components[0]} principal components of pictures and "
                f"{shape.components[1]} of questions from this backbone: give fewer, or a backbone that comes with them"
            )
        if self.question != "tower" or aside or self.members > 1 or not {IMAGE, TEXT} <= shape.towers.keys():
            raise ConfigError(
                "fusion 'components' is one linear layer on the features of both towers: give 'question_input' as "
                "'tower', 'features' as 'concat' and 'heads' as 1"
            )
        return {"answers": 1 + questions + pictures * questions}

    def logits(
        self,
        values: Named,
        shape: BackboneShape,
        features: torch.Tensor,
        batch: Any,
        chance: Chance | None,
        components: Components | None = None,
    ) -> torch.Tensor:
        """Features [rows, width] to logits [rows, answers]. `batch`: the rows' other inputs, an `AnswerBatch`.

        `components`: those of the backbone, for a head that joins them.
        """
        if components is not None:
            (picture,), (question,) = self._split(shape, features, batch)
            joined = components.joined(picture, question, *self.components)
            return _layer(values, "answers", joined, 0)
        each = []
        for member in range(self.members):
            hidden = _layer(values, "hidden", self._joined(values, shape, features, batch, member), member)
            if self.normed:
                norm = f"{HEAD}{_layer_name(NORM, member)}"
                hidden = F.layer_norm(hidden, (self.hidden,), values[f"{norm}.weight"], values[f"{norm}.bias"])
            each.append(_layer(values, "answers", dropped(hidden.relu(), self.dropout, chance), member))
        return each[0] if self.members == 1 else torch.stack(each).log_softmax(dim=2).mean(dim=0)

    def _joined(
        self, values: Named, shape: BackboneShape, features: torch.Tensor, batch: Any, member: int
    ) -> torch.Tensor:
        """The input of a member's two last layers, [rows, width]."""
        if self.fusion in ("product", "attend"):
            seen, asked = self.units_of(values, shape, features, batch, member)
            return seen * asked
        pictures, questions = self._split(shape, features, batch)
        return torch.cat(questions if self.fusion == "text" else [*pictures, *questions], dim=1)

    def units_of(
        self, values: Named, shape: BackboneShape, features: torch.Tensor, batch: Any, member: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A member's tanh units of picture and of question, [rows, units] each, of a head that multiplies them."""
        pictures, questions = self._split(shape, features, batch)
        asked = _layer(values, "question", torch.cat(questions, dim=1), member).tanh()
        seen = _layer(values, "picture", torch.cat(pictures, dim=1), member)
        if self.fusion == "attend":
            seen = seen + _layer(values, "places", looked_at(values, asked, batch.places, member), member)
        return seen.tanh(), asked

    def _split(
        self, shape: BackboneShape, features: torch.Tensor, batch: Any
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The picture's parts and the question's parts, [rows, width] each.

        `features` has the towers' features in order, text last, then those of no tower, which join the question.
        """
        widths = {tower: facts.width for tower, facts in shape.towers.items()}
        aside = features.shape[1] - sum(widths.values())
        *parts, beside = torch.split(features, [*widths.values(), aside], dim=1)
        by_tower = dict(zip(widths, parts, strict=True))
        text = by_tower.pop(TEXT, None)
        questions = [] if text is None or self.question == "ngrams" else [text]
        if aside:
            questions.append(beside)
        if self.question != "tower":
            questions.append(batch.grams.to(features))
        return list(by_tower.values()), questions


def looked_at(values: Named, asked: torch.Tensor, places: torch.Tensor, member: int = 0) -> torch.Tensor:
    """The mean of a picture's places [rows, places, width], weighed by the question's units [rows, units]."""
    query = _layer(values, "looking", asked, member)
    weights = (places @ query[:, :, None]).squeeze(2).div(places.shape[2] ** 0.5).softmax(dim=1)
    return (weights[:, None] @ places).squeeze(1)


def dropped(rows: torch.Tensor, share: float, chance: Chance | None) -> torch.Tensor:
    """Dropout of numbers with probability `share`, with the others scaled up. None for `chance` changes nothing."""
    if chance is None or not share:
        return rows
    return rows * (chance.uniform(rows.shape).to(rows.device) >= share) / (1 - share)


def _layer(values: Named, name: str, inputs: torch.Tensor, member: int) -> torch.Tensor:
    layer = f"{HEAD}{_layer_name(name, member)}"
    if layer + DOWN in values:
        inputs = F.linear(inputs, values[layer + DOWN])
    return F.linear(inputs, values[f"{layer}.weight"], values.get(f"{layer}.bias"))


def _layer_name(name: str, member: int) -> str:
    """The name of a member's layer. The first member's layers have the names of a single head's."""
    return f"{name}.{member}" if member else name


@dataclass(frozen=True)
class AnswerBatch:
    """Rows of a site. `rows` is the backbone's batch of them."""

    rows: Any
    grams: torch.Tensor
    """The hashed n-grams of each row's question, float32 [rows, NGRAMS]."""
    places: torch.Tensor | None = None
    """The frozen grid of each row's picture, [rows, places, width]; None if the head does not use it."""

    @property
    def answers(self) -> torch.Tensor:
        """The answer of each row, int64 [rows]."""
        answers: torch.Tensor = self.rows.answers
        return answers

    @property
    def owners(self) -> Mapping[str, torch.Tensor | None]:
        owners: Mapping[str, torch.Tensor | None] = self.rows.owners
        return owners


class AskedQuestions(NumberedQuestions):
    """A site's questions, numbered by their own text, as n-grams.

    A backbone merges questions that differ only beyond the words that it reads. Here each keeps its own n-grams, so
    that one patient's question does not get another's.
    """

    def __init__(self, questions: Sequence[str], device: torch.device, places: int = NGRAMS) -> None:
        super().__init__(questions)
        self._grams = hashed_ngrams(self.texts, places).to(device)

    def grams(self, questions: torch.Tensor) -> torch.Tensor:
        """The n-grams of questions by number, float32 [rows, places]."""
        return self._grams[questions.to(self._grams.device)]


class AnswerCache(AskedQuestions):
    """A backbone's cache, with the n-grams of all questions, and the grids of all pictures if there are any."""

    def __init__(self, cache: Cache, questions: Sequence[str], places: Rows | None, device: torch.device) -> None:
        super().__init__(questions, device)
        self._cache, self._places = cache, places
        self._backbones = cache.question_ids(self.texts)

    def batch(
        self,
        pictures: torch.Tensor,
        questions: torch.Tensor,
        answers: torch.Tensor,
        owners: torch.Tensor | None = None,
    ) -> AnswerBatch:
        """See `Cache`."""
        rows = self._cache.batch(pictures, self._backbones[questions], answers, owners)
        places = None if self._places is None else self._places[pictures.to(self._places.device)]
        return AnswerBatch(rows, self.grams(questions), places)


# Terms of losses beyond cross-entropy: penalties that depend on no data, and distillation.
#
# In L = CE + alpha * L_d + beta * ||w_mlp||^2 (Zhu et al., 2024, Eqs. 6-8) only the first term depends on data, so only
# its gradients are clipped by patient.


def prompt_distance(
    local: Mapping[str, torch.Tensor], shared: Mapping[str, torch.Tensor], unit: Unit = "prompt"
) -> torch.Tensor:
    """L_d = 1 - cos(local, shared), the mean over the units of the prompts in `local` (Eq. 7); 0 without prompts.

    `shared` is a constant.
    """
    pairs = [(prompt, shared[name].detach()) for name, prompt in local.items()]
    if unit == "upload" and pairs:
        ours, theirs = zip(*pairs, strict=True)
        pairs = [(_joined(ours), _joined(theirs))]
    start = 1 if unit == "block" else 0
    distances = [1 - F.cosine_similarity(a.flatten(start), b.flatten(start), dim=-1).mean() for a, b in pairs]
    return torch.stack(distances).mean() if distances else torch.zeros(())


def _joined(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def weight_penalty(values: Iterable[torch.Tensor]) -> torch.Tensor:
    """||w_mlp||^2: the sum of squares of all values of the answer head, biases included (Eq. 8)."""
    return torch.stack([value.square().sum() for value in values]).sum()


def divergence(teacher: torch.Tensor, student: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """tau^2 KL(teacher || student) of softened logits [rows, answers], by row (G. Hinton et al., 2015).

    The gradient to the student is tau (p_s - p_t); to the teacher tau p_t (l - <p_t, l>) with l = log(p_t / p_s).
    """
    target, answer = (F.log_softmax(logits / temperature, dim=-1) for logits in (teacher, student))
    return temperature**2 * (target.exp() * (target - answer)).sum(dim=-1)
