"""A table of what the server and others can read of a site in one job, made from the job's exchange alone."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from audits import Kind, Protection, SitePolicy, TaskSpec, TensorSpec
from audits.escaping import quantity
from audits.exchange import SITES
from medfedvqa.core import EVALUATE, Method
from medfedvqa.data import PARTS
from medfedvqa.federation.job import JobSpec

SIZES = (5, 50, 500)
"""The patients of the sites in the table, in each of the training, validation and test part."""
REFUSES = "nothing: the site refuses the job"
WITHHELD = "nothing: the site withholds it"
COLUMNS = ("what leaves a site", "when", "kind, protection, reader", *(f"tells of {size} patients" for size in SIZES))
HEADING = (
    "What the server and others can read of a site, by the number of patients in each of its training, validation and "
    "test parts, if its policy leaves `min_count` at 10:"
)
DEFAULTS = SitePolicy((), ())
"""The policy of a site that sets nothing: the table shows its `min_count`."""

_IN_CLEAR = {
    Kind.PARAMETERS: "may reproduce pictures and questions of single patients; nothing bounds it",
    Kind.ACTIVATIONS: "states of single rows, from which pictures and questions may be rebuilt; nothing bounds it",
    Kind.REPRESENTATIONS: "how its model sees public rows, which may show whom it trained on; nothing bounds it",
}
_PUBLIC = "nothing of patients: random, or from the job's settings"


@dataclass(frozen=True)
class ServerReading:
    """One row: tensors that leave a site in the same way, and what they tell about sites of `SIZES` patients."""

    tensors: str
    """The number of tensors and of their values, or the names of figures."""
    tasks: tuple[str, ...]
    times: int
    """How often a site sends them in a whole job."""
    kind: Kind
    protection: str
    reader: str
    tells: Mapping[int, str]

    @property
    def cells(self) -> tuple[str, ...]:
        """The row's cells, in the order of `COLUMNS`."""
        when = f"{', '.join(self.tasks)}: {quantity(self.times, 'time')}" if self.tasks else "all along"
        return self.tensors, when, f"{self.kind}, {self.protection}, {self.reader}", *self.tells.values()


def server_reads(job: JobSpec, policy: SitePolicy = DEFAULTS) -> list[ServerReading]:
    """The rows for a job: one for each kind of tensor, those that depend on no data last.

    The rows leave out the figures that `policy` withholds, as a site does. Raises `ConfigError` or `BackboneError`.
    """
    method, tasks = job.build(), job.exchange().tasks
    times = Counter(name for name, _ in method.tasks())
    groups: dict[tuple[Any, ...], dict[str, list[TensorSpec]]] = {}
    for task in tasks:
        for spec in task.up:
            groups.setdefault(_alike(task, spec), {}).setdefault(task.name, []).append(spec)
    rows = []
    for (kind, *_), by_task in sorted(groups.items(), key=lambda group: group[0][0] is Kind.PUBLIC):
        name, specs = max(by_task.items(), key=lambda sent: len(sent[1]))
        tells = {size: _tells(job, method, TaskSpec(name, tuple(specs), ()), policy, size) for size in SIZES}
        tells |= {size: REFUSES for size in SIZES if _refused(method, tasks, policy, size)}
        count = sum(times[task] for task in {name.partition("/")[0] for name in by_task})
        reader = "the other sites" if specs[0].recipients == (SITES,) else "the server"
        when = () if kind is Kind.PUBLIC else tuple(by_task)
        rows.append(ServerReading(_in_words(specs), when, count, kind, _protection(specs[0]), reader, tells))
    return rows


def markdown(rows: list[ServerReading]) -> str:
    """The table in Markdown, below its heading."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *(row.cells for row in rows)]
    return f"{HEADING}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def in_a_line(rows: list[ServerReading]) -> str:
    """A sentence on what leaves a site."""
    parts = (f"{row.tensors} ({row.protection}, {quantity(row.times, 'time')})" for row in rows if row.tasks)
    return "; ".join(parts) or "nothing of patients"


def _alike(task: TaskSpec, spec: TensorSpec) -> tuple[Any, ...]:
    """The properties that the tensors of one row share; the kind comes first."""
    if spec.kind is Kind.PUBLIC:
        return (spec.kind,)
    what = (_shape(spec), spec.protection.masked or spec.dtype) if spec.kind is Kind.STATISTIC else spec.meaning
    return spec.kind, what, spec.protection, spec.recipients, task.name == EVALUATE


def _in_words(specs: list[TensorSpec]) -> str:
    if specs[0].kind is Kind.PUBLIC:
        return "keys, checks, and the job's epsilon" if len(specs) > 1 else f"`{specs[0].name}`"
    if specs[0].kind is Kind.STATISTIC:
        return ", ".join(f"`{spec.name}`" for spec in specs)
    return f"{quantity(len(specs), 'tensor')}, {_numbers(specs):,} numbers: {specs[0].meaning}"


def _numbers(specs: list[TensorSpec] | tuple[TensorSpec, ...]) -> int:
    return sum(math.prod(_shape(spec)) for spec in specs)


def _shape(spec: TensorSpec) -> tuple[int, ...]:
    """The shape in numbers: a tensor of bytes has the bytes of one number in its last dimension."""
    return spec.shape[:-1] if spec.dtype == "uint8" else spec.shape


def _protection(spec: TensorSpec) -> str:
    return {
        Protection.NONE: "in clear",
        Protection.MASKED: "on shares",
        Protection.DP: "differential privacy",
        Protection.DP_MASKED: "differential privacy, on shares",
    }[spec.protection]


def _refused(method: Method[Any], tasks: tuple[TaskSpec, ...], policy: SitePolicy, size: int) -> bool:
    """Whether a site with `size` patients in each part refuses the job for a figure that it withholds."""
    patients = dict.fromkeys(PARTS, size)
    return any(method.withheld_figures(task, policy, patients) for task in tasks if task.name != EVALUATE)


def _tells(job: JobSpec, method: Method[Any], sent: TaskSpec, policy: SitePolicy, size: int) -> str:
    """What the tensors of a row tell about a site with `size` patients in each part."""
    spec, dp = sent.up[0], job.dp
    if spec.kind is Kind.PUBLIC:
        return _PUBLIC
    if spec.protection is not Protection.NONE:
        budget = f"epsilon {dp.epsilon:g}" if dp and dp.epsilon else "the epsilon of `medfedvqa privacy plan`"
        noisy = f"at most {budget} of any patient, in the whole job" if spec.protection.private else ""
        summed = f"only what is computed of at least {job.least_sites} sites together" if spec.protection.masked else ""
        return "; ".join(filter(None, (summed, noisy)))
    if method.withheld_figures(sent, policy, dict.fromkeys(PARTS, size)):
        return WITHHELD
    if spec.kind is not Kind.STATISTIC:
        return _IN_CLEAR[spec.kind]
    if spec.shape:
        return "exact means over its rows" + ("; single rows may follow" if _numbers(sent.up) > size else "")
    if spec.dtype == "int64":
        return "the exact number" if len(sent.up) == 1 else "the exact numbers"
    return f"steps of 1/{size} at one row a patient: the exact number of rows that are right"
