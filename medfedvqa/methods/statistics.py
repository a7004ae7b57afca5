"""Counts of patients at each site, before anybody trains: by organ, modality, answer and type of answer.

Every category is public and named by the method or the job, so that what is counted tells nothing about a site; what
fits none counts as `other`. Training and validation rows count, whose patients a ledger charges.

In clear, a count is the number of patients with such a row, rounded down to a multiple of the smallest group: a group
below it is 0, and sums of counts do not show a single patient. Under differential privacy each patient is one whole,
dealt out evenly over the tables and, within a table, over the patient's rows, so that the vector of all counts has
sensitivity 1 in the L1 norm; it leaves once, with the noise of a mechanism for counts (`CountsMechanism`). On shares
the server learns the sums over all sites alone.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field, field_validator

from audits import Exchange, Kind, SitePolicy, TaskSpec, Tensors, TensorSpec
from medfedvqa.core.head_options import ListedAnswers
from medfedvqa.core.hub import Hub
from medfedvqa.core.method import Method, State
from medfedvqa.core.on_shares import MeanOnShares, OnShares
from medfedvqa.core.registry import register
from medfedvqa.core.scores import MOST_ROWS
from medfedvqa.data import Examples, Part, SiteData, numbered
from medfedvqa.data.site_cuts import organ_of
from medfedvqa.models import BackboneShape
from medfedvqa.public_answers import ANSWER_TYPES, fold
from medfedvqa.training import Site
from privacy import Cost, released_counts

OTHER = "other"
ORGANS = ("abdomen", "brain", "chest", "head", "lung", "neck", "pelvis", OTHER)
MODALITIES = ("ct", "mri", "x-ray", "ultrasound", OTHER)
COUNT = "count"
Table = Literal["organ", "modality", "answer", "answer_type"]


class StatisticsConfig(ListedAnswers, frozen=True):
    """Options of the method `statistics`."""

    by: Annotated[tuple[Table, ...], Field(min_length=1, max_length=4)] = Field(
        ("organ", "modality", "answer_type", "answer"), description="the tables that are counted"
    )
    smallest: int = Field(
        10, ge=2, le=1000, description="in clear, counts are rounded down to multiples of this; below it they are 0"
    )

    @field_validator("by", mode="before")
    @classmethod
    def _have_public_categories(cls, by: object) -> object:
        if isinstance(by, list | tuple) and {"question", "patient"} & {*map(str, by)}:
            raise ValueError("questions and patients' keys are free text, whose values no list names: leave them out")
        if isinstance(by, list | tuple) and len({*map(str, by)}) < len(by):
            raise ValueError("'by' names a table twice: name each table once")
        return by


@register
class Statistics(Method[StatisticsConfig]):
    """One task that counts patients by public categories. Nothing is trained."""

    name = "statistics"
    config_type = StatisticsConfig
    trains = False
    needs_rows = False

    @property
    def parts_behind(self) -> Mapping[str, Part]:  # type: ignore[override]
        """See `Method.parts_behind`."""
        return dict.fromkeys(self.tables, "train")

    @property
    def public_answers(self) -> tuple[str, ...]:
        """See `Method.public_answers`."""
        return self.config.listed

    @property
    def tables(self) -> dict[str, tuple[str, ...]]:
        """The categories of each table."""
        every = {
            "organ": ORGANS,
            "modality": MODALITIES,
            "answer_type": tuple(ANSWER_TYPES),
            "answer": (*self.public_answers, OTHER),
        }
        return {table: every[table] for table in self.config.by}

    @property
    def on_shares(self) -> Mapping[str, OnShares]:
        """See `Method.on_shares`."""
        return {COUNT: MeanOnShares()}

    @property
    def rounds(self) -> int:
        """One message."""
        return 1

    def cost(self, task: str) -> Cost:
        """One release of all counts."""
        return Cost(counts=1)

    def exchange(self, shape: BackboneShape) -> Exchange:
        """A vector of counts for each table."""
        meaning = "number of patients by {}" if self.dp is None else "patients by {}, in parts, with noise"
        up = tuple(
            TensorSpec(
                table, (len(names),), "float64", Kind.STATISTIC, meaning.format(table), bounds=(-MOST_ROWS, MOST_ROWS)
            )
            for table, names in self.tables.items()
        )
        return Exchange(self.name, (TaskSpec(COUNT, up, ()),))

    def withheld_figures(self, task: TaskSpec, policy: SitePolicy, patients: Mapping[Part, int]) -> list[str]:
        """See `Method.withheld_figures`. A policy with larger groups than the job's withholds all counts in clear."""
        if policy.min_count > self.config.smallest:
            patients = dict.fromkeys(patients, 0)
        return super().withheld_figures(task, policy, patients)

    def tasks(self) -> Iterator[tuple[str, int]]:
        """The one task."""
        yield COUNT, 1

    def trained(self, state: State) -> Mapping[str, torch.Tensor]:
        """Nothing."""
        return {}

    def setup(self, site: Site) -> State:
        """Nothing is kept."""
        return {}

    def count(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """The site's counts."""
        rows = {table: self._rows(site.data, table) for table in self.tables}
        tables = [patients_by(*rows[table], len(names)) for table, names in self.tables.items()]
        if self.dp is None:
            groups = [(table > 0).sum(0).numpy() // self.config.smallest * self.config.smallest for table in tables]
        else:
            shares = torch.cat([table / len(tables) for table in tables], dim=1)
            noisy = np.array(released_counts(shares, self.noise.counts, site.randomness))
            groups = np.split(np.clip(noisy * len(tables), -MOST_ROWS, MOST_ROWS), np.cumsum(_widths(self.tables))[:-1])
        return state, {table: np.asarray(group, np.float64) for table, group in zip(self.tables, groups, strict=True)}

    def serve(self, hub: Hub) -> dict[str, Tensors]:
        """Collects the counts; on shares, their sums over all sites."""
        for _ in hub.rounds(1):
            if self.secagg:
                sums = hub.means(COUNT, {"": hub.sites})[""]
                counted = {"all sites": {name: value * sums.weight for name, value in sums.tensors.items()}}
            else:
                counted = hub.collect(COUNT)
            hub.counted({site: self._named(tensors) for site, tensors in counted.items()})
        return {}

    def _named(self, tensors: Tensors) -> dict[str, dict[str, float]]:
        """Counts by table and category. A noisy count below 0 is 0."""
        return {
            table: dict(zip(names, (max(0.0, float(value)) for value in tensors[table]), strict=True))
            for table, names in self.tables.items()
        }

    def _rows(self, data: SiteData, table: str) -> tuple[torch.Tensor, torch.Tensor]:
        """The patient and the category of each training and validation row, int64 [rows] each."""
        parts = data.train, data.validate
        patients = torch.cat([part.patients for part in parts])
        places = torch.cat([self._categories(data, part, table) for part in parts])
        return patients, places

    def _categories(self, data: SiteData, part: Examples, table: str) -> torch.Tensor:
        names = self.tables[table]
        if table == "answer":
            answers = numbered(data.answers, self.public_answers, part.answers)
            return torch.where(answers < 0, len(names) - 1, answers)
        if table == "organ":
            words = [organ_of(data.organ)] * len(part)
        elif table == "modality":
            words = list(part.modalities) or [OTHER] * len(part)
        else:
            of_letter = {letter: name for name, letter in ANSWER_TYPES.items()}
            words = [of_letter[letter] for letter in part.types] or [OTHER] * len(part)
        return torch.tensor([_place(names, word) for word in words], dtype=torch.int64)


def patients_by(patients: torch.Tensor, places: torch.Tensor, width: int) -> torch.Tensor:
    """The share of each patient's rows in each category, float64 [patients, width]; every row sums to 1."""
    numbers, rows = torch.unique(patients, return_inverse=True)
    table = torch.zeros(len(numbers), width, dtype=torch.float64)
    table.index_put_((rows, places), torch.ones(len(places), dtype=torch.float64), accumulate=True)
    return table / table.sum(1, keepdim=True).clamp(min=1)


def _place(names: tuple[str, ...], word: str) -> int:
    folded = fold(word)
    return names.index(folded) if folded in names else len(names) - 1


def _widths(tables: Mapping[str, tuple[str, ...]]) -> list[int]:
    return [len(names) for names in tables.values()]
