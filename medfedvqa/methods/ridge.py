"""Ridge regression in one exchange: each site sends sums of fixed random features once, and solves with their mean.

min over W of mean |W phi - y|^2 + penalty |W|^2, with y the one-hot answer and phi a constant, random tanh units of the
question, and their products with random tanh units of the picture, on frozen features and n-grams. All sites compute
the same phi, so the mean of their sums over rows is that of one site with all rows. A site solves with a mix of that
mean and its own sums: all sites' rows count, and its own count more.

The sums are not a model, and reveal facts about rows: the constant's row of `moments` holds the share of each answer at
the site, and sums over few rows can reveal single ones. Aggregate on shares.

| paper | here | why |
|---|---|---|
| random features (Huang et al., 2006) | products with the question's units | the question decides what counts |
| one penalty, one W | each site chooses both on its validation rows | these never leave; sites differ |
"""

from collections.abc import Iterator, Mapping
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field

from audits import Exchange, Kind, TaskSpec, Tensors, TensorSpec
from medfedvqa.bounds import MOST_SPACE, MOST_WEIGHT
from medfedvqa.core.averaging import ROWS
from medfedvqa.core.head_options import ListedAnswers
from medfedvqa.core.hub import Hub
from medfedvqa.core.method import PARTS_BEHIND, Method, State, tensors_of
from medfedvqa.core.on_shares import MeanOnShares, OnShares
from medfedvqa.core.registry import register
from medfedvqa.core.scores import SCORED, counts, scored, validated
from medfedvqa.data import Examples
from medfedvqa.models import BackboneShape, HeadConfig, QuestionInput, TunedModel, TuningConfig
from medfedvqa.training import Site, SiteRows

GRAM, MOMENTS = "gram", "moments"
Penalty = Annotated[float, Field(gt=0, le=MOST_WEIGHT)]
Share = Annotated[float, Field(ge=0, le=1)]

Choice = tuple[float, float]
"""A penalty and a mix."""
CHUNK = 256
"""Rows whose features are computed together."""


class RidgeConfig(ListedAnswers, frozen=True):
    """Options of the method `ridge`."""

    units: int = Field(1024, ge=1, le=MOST_SPACE // 2, description="random units; there are twice as many features")
    question_input: QuestionInput = Field("both", description="the tower's features, hashed n-grams, or both")
    penalties: tuple[Penalty, ...] = Field(
        (1e-5, 1e-4, 1e-3, 1e-2, 1e-1),
        min_length=1,
        max_length=64,
        description="penalties, of which a site takes the one that its validation rows favour",
    )
    mixes: tuple[Share, ...] = Field(
        (0.0, 0.25, 0.5, 0.75, 1.0),
        min_length=1,
        max_length=64,
        description="shares of all sites' mean in the sums that a site solves with; only 0: nothing is exchanged",
    )

    @property
    def rounds(self) -> int:
        """One exchange."""
        return 1


@register
class Ridge(Method[RidgeConfig]):
    """Ridge regression on random features of frozen features, exact over all sites after one exchange."""

    name = "ridge"
    config_type = RidgeConfig
    parts_behind = {**PARTS_BEHIND, GRAM: "train", MOMENTS: "train"}

    @property
    def public_answers(self) -> tuple[str, ...]:
        """See `Method.public_answers`."""
        return self.config.listed

    @property
    def exchanges(self) -> bool:
        """Whether the sites exchange their sums."""
        return any(self.config.mixes)

    @property
    def on_shares(self) -> Mapping[str, OnShares]:
        """The sums of the one exchange."""
        return {"start": MeanOnShares(ROWS)} if self.exchanges else {}

    def exchange(self, shape: BackboneShape) -> Exchange:
        """Means of products over a site's training rows go up, those over all sites' rows come down."""
        self._head.layers(shape)
        up, down = (self._sums(whose) if self.exchanges else () for whose in ("the site's", "all sites'"))
        start = (TaskSpec("start", (*up, *counts(ROWS)), ()),) if self.exchanges else ()
        return Exchange(self.name, (*start, TaskSpec("evaluate", counts(*SCORED), down)))

    def tasks(self) -> Iterator[tuple[str, int]]:
        """One exchange, and the evaluation."""
        if self.exchanges:
            yield "start", 1
        yield "evaluate", 1

    def setup(self, site: Site) -> State:
        """The random layers, which follow from the job's seed and are equal at all sites."""
        generator = torch.Generator().manual_seed(site.seed)
        return {"values": self._model(site).initial(generator, generator)}

    def start(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """The site's sums over its training rows, divided by their number."""
        sums, count = self._own(site, state)
        return state, {**{name: value.float().numpy() for name, value in sums.items()}, ROWS: np.array(count, np.int64)}

    def evaluate(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """Solves for each penalty and mix, keeps the best on validation rows, and counts the test rows that are right.

        Of equally good ones the larger penalty is kept, and then the larger mix.
        """
        own, _ = self._own(site, state)
        mean = {name: value.double() for name, value in tensors_of(received).items()} or own
        solved = {
            (penalty, mix): solution(
                torch.lerp(own[GRAM], mean[GRAM], mix), torch.lerp(own[MOMENTS], mean[MOMENTS], mix), penalty
            )
            for penalty in self.config.penalties
            for mix in self.config.mixes
        }
        right = self._right(site, state, solved, site.data.validate)
        best = max(solved, key=lambda choice: (int(right[choice].sum()), choice))
        state = {**state, "solution": solved[best].float()} | validated({}, right[best])
        tested = self._right(site, state, {best: solved[best]}, site.data.test)
        return scored(state, site.data, tested[best])

    def serve(self, hub: Hub) -> dict[str, Tensors]:
        """One mean, and the evaluation."""
        mean: Tensors = {}
        for _ in hub.rounds(1):
            mean = hub.mean("start", weight=ROWS) if self.exchanges else {}
        return hub.collect("evaluate", {site: mean for site in hub.sites})

    @property
    def _head(self) -> HeadConfig:
        """The head whose first layers, never trained, make the random features."""
        return HeadConfig(
            len(self.public_answers), 1, 0.0, "product", self.config.question_input, units=self.config.units
        )

    @property
    def _width(self) -> int:
        """The number of features."""
        return 1 + 2 * self.config.units

    def _sums(self, whose: str) -> tuple[TensorSpec, ...]:
        shapes = {GRAM: (self._width, self._width), MOMENTS: (self._width, len(self.public_answers))}
        meaning = {GRAM: "products of random features", MOMENTS: "random features by answer"}
        return tuple(
            TensorSpec(n, shape, "float32", Kind.STATISTIC, f"mean over {whose} rows of {meaning[n]}", bounds=(-1, 1))
            for n, shape in shapes.items()
        )

    def _model(self, site: Site) -> TunedModel:
        return TunedModel(site.backbone, TuningConfig("classifier"), self._head)

    def _rows(self, site: Site) -> SiteRows:
        model = self._model(site)
        return SiteRows(site, model, model.depth, 1, self.public_answers)

    @torch.no_grad()
    def _batches(
        self, site: Site, state: State, rows: SiteRows, encoded: Examples
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The features, float64 [rows, width] in -1..1, and the answers of encoded examples, part by part."""
        model = self._model(site)
        for part in torch.split(torch.arange(len(encoded)), CHUNK) if len(encoded) else ():
            batch = rows.rows(encoded, part).batch
            features = model.features(state["values"], batch)
            seen, asked = model.head.units_of(state["values"], model.shape, features, batch)
            one = torch.ones(len(part), 1, device=seen.device)
            yield torch.cat([one, asked, seen * asked], dim=1).double().cpu(), batch.answers.cpu()

    def _own(self, site: Site, state: State) -> tuple[dict[str, torch.Tensor], int]:
        """The site's sums over its training rows divided by their number, float64, and that number."""
        rows = self._rows(site)
        train = rows.encoded(site.data.train).answered
        gram, moments = (torch.zeros(spec.shape, dtype=torch.float64) for spec in self._sums("the site's"))
        for features, answers in self._batches(site, state, rows, train):
            gram += features.T @ features
            moments += features.T @ F.one_hot(answers, moments.shape[1]).double()
        return {name: value / max(1, len(train)) for name, value in ((GRAM, gram), (MOMENTS, moments))}, len(train)

    def _right(
        self, site: Site, state: State, solved: Mapping[Choice, torch.Tensor], examples: Examples
    ) -> dict[Choice, torch.Tensor]:
        """Whether weights [width, answers] answer each row right, bool [rows], by their penalty and mix."""
        rows = self._rows(site)
        batches = list(self._batches(site, state, rows, rows.encoded(examples)))
        none = torch.zeros(0, dtype=torch.bool)
        return {
            choice: torch.cat([none, *((x @ weights).argmax(dim=1) == y for x, y in batches)])
            for choice, weights in solved.items()
        }


def solution(gram: torch.Tensor, moments: torch.Tensor, penalty: float) -> torch.Tensor:
    """(gram + penalty I)^-1 moments, float64 [width, answers]."""
    solved: torch.Tensor = torch.linalg.solve(gram + penalty * torch.eye(len(gram), dtype=gram.dtype), moments)
    return solved
