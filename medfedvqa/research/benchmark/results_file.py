"""`results.jsonl`: one line for the outcome of each run of a benchmark, enough to recompute its tables and p values.

A line holds which test rows are right, and the number of each row's patient within the site: no question, no answer,
no name of a picture, and no identifier. Lines are appended under a lock and never changed.
"""

import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from medfedvqa.atomic_files import PRIVATE, locked
from medfedvqa.errors import ConfigError
from medfedvqa.evaluation import FIRST
from medfedvqa.public_answers import ANSWER_TYPES


@dataclass(frozen=True)
class RunOutcome:
    """The outcome of one run, by site. It stays on the machine that runs the benchmark."""

    right: dict[str, list[bool]]
    """Whether each test row is answered right."""
    validated: dict[str, list[float]]
    """The accuracy on validation rows after each round; empty if the method does not measure it."""
    patients: dict[str, list[int]]
    """The patient of each test row, numbered within the site's test rows from 0, in order of first appearance."""
    bytes_up: float
    """Bytes per site and round."""
    bytes_down: float
    seconds: float
    """Processor seconds per round, with evaluation and without decoding pictures."""
    parameters: int
    """The number of parameters that a site trains; 0 without training."""
    personal: dict[str, list[bool]] = field(default_factory=dict)
    """The same as `right` for the site's own model before the last mean; empty if a site has no other model."""
    closed: dict[str, list[bool]] = field(default_factory=dict)
    """Whether the question of each test row is closed; a site that tests closed questions only is absent."""
    types: dict[str, str] = field(default_factory=dict)
    """The letter of the type of each test row's answer, see `ANSWER_TYPES`; empty unless all questions are tested."""
    server: dict[str, Any] = field(default_factory=dict)
    """The counts of the server's own model on public rows, see `ServerScore`; empty if there is none."""
    seed: int = 0
    cohort: int = 0
    """The first seed with the same test rows. Runs of one cohort are about the same patients."""

    @property
    def validation_curve(self) -> list[float]:
        """The accuracy on validation rows after each round, as the mean over sites; empty without such accuracies."""
        return [fmean(sites) for sites in zip(*self.validated.values(), strict=False)]


def of_kind(outcomes: Sequence[RunOutcome], closed: bool) -> list[RunOutcome]:
    """The outcomes on the test rows with a closed question, or with an open one; empty if no site has such rows.

    A site that lacks such rows in one outcome is left out of all, so that all means are over the same sites.
    """
    return _where(outcomes, lambda outcome, site: [kind is closed for kind in _kinds(outcome, site)])


def of_type(outcomes: Sequence[RunOutcome], letter: str) -> list[RunOutcome]:
    """Like `of_kind`, on the test rows whose answer is of this type; empty if an outcome does not say types."""
    return _where(outcomes, lambda outcome, site: [each == letter for each in outcome.types.get(site, "")])


def at_sites(outcomes: Sequence[RunOutcome], sites: Collection[str]) -> list[RunOutcome]:
    """The outcomes at these sites only; empty if none of them is tested."""
    return _where(outcomes, lambda outcome, site: [site in sites] * len(outcome.right[site]))


def _kinds(outcome: RunOutcome, site: str) -> list[bool]:
    return outcome.closed.get(site, [True] * len(outcome.right[site]))


def _where(outcomes: Sequence[RunOutcome], chosen: Callable[[RunOutcome, str], Sequence[bool]]) -> list[RunOutcome]:
    """The outcomes on the test rows for which `chosen`, given an outcome and a site, has a true flag."""
    sites = [
        site
        for site in (outcomes[0].right if outcomes else ())
        if all(any(chosen(outcome, site)) for outcome in outcomes)
    ]
    return [_restricted(outcome, {site: chosen(outcome, site) for site in sites}) for outcome in outcomes if sites]


def _restricted(outcome: RunOutcome, chosen: Mapping[str, Sequence[bool]]) -> RunOutcome:
    kinds = {site: list(compress(_kinds(outcome, site), flags)) for site, flags in chosen.items()}
    return replace(
        outcome,
        right={site: list(compress(outcome.right[site], flags)) for site, flags in chosen.items()},
        patients={site: numbered_patients(compress(outcome.patients[site], f)) for site, f in chosen.items()},
        personal={
            site: list(compress(rows, chosen[site])) for site, rows in outcome.personal.items() if site in chosen
        },
        closed={site: each for site, each in kinds.items() if not all(each)},
        types={site: "".join(compress(each, chosen[site])) for site, each in outcome.types.items() if site in chosen},
    )


def numbered_patients(patients: Iterable[int]) -> list[int]:
    """Patients numbered from 0 in order of first appearance. The numbers depend on the test rows alone."""
    numbers: dict[int, int] = {}
    return [numbers.setdefault(patient, len(numbers)) for patient in patients]


FORMAT: Literal[1] = 1
RESULTS = "results.jsonl"
ALL_ROWS = "all rows"
"""The regime of a plain benchmark: every site trains on all of its rows."""

Bits = Annotated[str, Field(pattern=r"^[01]*$")]
Letters = Annotated[str, Field(pattern=rf"^[{''.join(ANSWER_TYPES.values())}]*$")]
Count = Annotated[int, Field(ge=0)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class SiteResult(BaseModel, frozen=True, extra="forbid"):
    """One site's part of a result."""

    right: Bits
    """One character for each test row: 1 if it is answered right."""
    patients: tuple[Count, ...]
    """The patient of each test row, numbered within the site."""
    personal: Bits = ""
    """Like `right`, for the site's own model before the last averaging; empty if the site has no such model."""

    closed: Bits = ""
    """One character for each test row: 1 if its question is closed; empty, and not in the line, if all are."""
    types: Letters = ""
    """The letter of the type of each test row's answer; empty, and not in the line, unless all questions are tested."""

    @model_validator(mode="after")
    def _check_lengths(self) -> "SiteResult":
        rows = len(self.right)
        lengths = {len(self.personal), len(self.closed), len(self.types)}
        if not rows or len(self.patients) != rows or not lengths <= {0, rows}:
            raise ValueError("a site has one bit and one patient for each test row")
        return self

    @model_serializer(mode="wrap")
    def _as_before(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves out later versions' fields if they are empty: the line is then that of earlier versions."""
        content: dict[str, Any] = whole(self)
        return {name: value for name, value in content.items() if name not in ("closed", "types") or value}


class ServerResult(BaseModel, frozen=True, extra="forbid"):
    """The counts of the server's own model on public rows, see `ServerScore`."""

    questions: Annotated[int, Field(gt=0)]
    correct: Count
    pictures: Count
    captions: Count
    image_to_text: tuple[Count, ...]
    text_to_image: tuple[Count, ...]

    @model_validator(mode="after")
    def _check_counts(self) -> "ServerResult":
        places = len(FIRST) if self.pictures and self.captions else 0
        within = (
            self.correct <= self.questions
            and max(self.image_to_text, default=0) <= self.pictures
            and max(self.text_to_image, default=0) <= self.captions
        )
        if not within or {len(self.image_to_text), len(self.text_to_image)} != {places}:
            raise ValueError("a server's model finds and answers at most what there is")
        return self


class Result(BaseModel, frozen=True, extra="forbid"):
    """The result of one run, a line of `results.jsonl`."""

    format: Literal[1] = FORMAT
    version: str
    """The version of medfedvqa that ran it."""
    data: str
    split: dict[str, Any]
    """The rule of the split, without its seed."""
    backbone: str
    budget: dict[str, Any]
    """The options of all systems."""
    job: dict[str, Any]
    """The other settings of the jobs that differ from their defaults."""
    regime: str = ALL_ROWS
    """How the rows were divided among sites."""
    system: str
    """The label in tables."""
    method: str
    """The method's name; empty for answers without training."""
    options: dict[str, Any]
    """The method's options, the budget's included."""
    baseline: bool
    alone: str
    """The label of the same model without the other sites; empty if there is none."""
    without_picture: str
    """The label of the same system without the picture; empty if there is none."""
    seed: Count
    cohort: Count
    """The first seed with the same test rows."""
    sites: Annotated[dict[str, SiteResult], Field(min_length=1)]
    validated: dict[str, tuple[float, ...]]
    """The accuracy on validation rows after each round, by site."""
    bytes_up: Amount
    """Bytes per site and round."""
    bytes_down: Amount
    seconds: Amount
    """Processor seconds per round."""
    parameters: Count
    server: ServerResult | None = None
    """The test of the server's own model; None, and not in the line, if there is none."""

    @model_serializer(mode="wrap")
    def _as_before(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves out later versions' fields if they are empty, as in `SiteResult`."""
        content: dict[str, Any] = whole(self)
        return {name: value for name, value in content.items() if name != "server" or value is not None}

    @property
    def setting(self) -> dict[str, Any]:
        """The settings that two results must share to be in one table."""
        names = ("data", "split", "backbone", "budget", "job", "regime")
        return {**{name: getattr(self, name) for name in names}, "sites": list(self.sites)}

    @property
    def processor_seconds(self) -> float:
        """Processor seconds of the whole run, without decoding pictures."""
        rounds: int = self.options.get("rounds", max(map(len, self.validated.values()), default=0))
        return self.seconds * rounds

    @property
    def outcome(self) -> RunOutcome:
        """The outcome of the run."""
        personal = {site: _flags(each.personal) for site, each in self.sites.items() if each.personal}
        closed = {site: _flags(each.closed) for site, each in self.sites.items() if each.closed}
        return RunOutcome(
            right={site: _flags(each.right) for site, each in self.sites.items()},
            validated={site: list(values) for site, values in self.validated.items()},
            patients={site: list(each.patients) for site, each in self.sites.items()},
            bytes_up=self.bytes_up,
            bytes_down=self.bytes_down,
            seconds=self.seconds,
            parameters=self.parameters,
            personal=personal,
            closed=closed,
            types={site: each.types for site, each in self.sites.items() if each.types},
            server={} if self.server is None else self.server.model_dump(),
            seed=self.seed,
            cohort=self.cohort,
        )


def parts_of(outcome: RunOutcome) -> dict[str, Any]:
    """The fields of a result that an outcome gives."""
    sites = {
        site: {
            "right": _bits(rows),
            "patients": outcome.patients[site],
            "personal": _bits(outcome.personal.get(site, [])),
            "closed": _bits(outcome.closed.get(site, [])),
            "types": outcome.types.get(site, ""),
        }
        for site, rows in outcome.right.items()
    }
    names = ("validated", "bytes_up", "bytes_down", "seconds", "parameters", "seed", "cohort")
    return {"sites": sites, "server": outcome.server or None, **{name: getattr(outcome, name) for name in names}}


def append(path: Path, results: Iterable[Result]) -> None:
    """Appends each result that the file does not hold yet as a line, and syncs. Raises `ConfigError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path, ConfigError(f"the file '{path}' cannot be written")):
        content = path.read_bytes()
        present = set(content.splitlines())
        lines = [result.model_dump_json().encode() for result in results]
        new = [line for line in dict.fromkeys(lines) if line not in present]
        torn = b"\n" if content and not content.endswith(b"\n") else b""
        with open(path, "ab", opener=lambda name, flags: os.open(name, flags, PRIVATE)) as file:
            file.write(torn + b"".join(line + b"\n" for line in new))
            file.flush()
            os.fsync(file.fileno())


def read(paths: Sequence[Path]) -> tuple[list[Result], list[str]]:
    """The results in the first line's setting, one for each system and seed, and remarks on lines left out.

    A line is left out if it is not a result, has another format or setting, names a system that has other options in an
    earlier line, or if a later line repeats its run. Raises `ConfigError` if no line is left.
    """
    left_out: dict[tuple[str, str], list[int]] = {}
    results: dict[tuple[str, int], Result] = {}
    options: dict[str, tuple[str, Mapping[str, Any]]] = {}
    first: Result | None = None
    for path in paths:
        for number, line in enumerate(_lines(path), 1):
            result = _parsed(line)
            reason = result if isinstance(result, str) else _unlike(result, first or result, options)
            if isinstance(result, Result) and not reason:
                first = first or result
                repeats = (result.system, result.seed) in results
                reason = "made again: the last line of a run counts" if repeats else ""
                results[result.system, result.seed] = result
            if reason:
                left_out.setdefault((path.name, reason), []).append(number)
    remarks = [_remark(name, reason, numbers) for (name, reason), numbers in left_out.items()]
    if not results:
        raise ConfigError("; ".join(["these files hold no results", *remarks]))
    return list(results.values()), remarks


def _unlike(result: Result, first: Result, options: dict[str, tuple[str, Mapping[str, Any]]]) -> str:
    """The reason why the result cannot be compared with the first one; empty if it can."""
    other = [name for name, value in result.setting.items() if name != "budget" and value != first.setting[name]]
    budgets = result.budget, first.budget
    changed = {name for name in {*budgets[0], *budgets[1]} if budgets[0].get(name) != budgets[1].get(name)}
    # A system with a value of its own ran alike under either budget.
    if any(result.options.get(name, result.budget.get(name)) == result.budget.get(name) for name in changed):
        other.append("budget")
    if other:
        return f"left out: other {', '.join(other)} than in the first line"
    content = result.method, result.options
    if options.setdefault(result.system, content) != content:
        return "left out: other options than in an earlier line of the same system"
    return ""


def _remark(name: str, reason: str, numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:_SHOWN])) + (f" and {len(numbers) - _SHOWN} more" * (len(numbers) > _SHOWN))
    return f"'{name}', line {shown}: {reason}"


_SHOWN = 5
"""The most line numbers that a remark lists."""


def _parsed(line: bytes) -> Result | str:
    """The line's result, or the reason why it is left out."""
    try:
        record = json.loads(line)
    except ValueError:
        return "left out: no JSON, as an interrupted write leaves it"
    if not isinstance(record, dict) or type(record.get("format")) is not int:
        return "left out: not a result of a benchmark"
    if record["format"] != FORMAT:
        return f"left out: format {record['format']}, which another version wrote; this version reads {FORMAT}"
    try:
        return Result.model_validate_json(line)
    except ValidationError:
        return "left out: damaged"


def _lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines()
    except OSError:
        raise ConfigError(f"the file '{path}' cannot be read: give --from files that a benchmark wrote") from None


def _bits(rows: Iterable[bool]) -> str:
    return "".join("1" if row else "0" for row in rows)


def _flags(bits: str) -> list[bool]:
    return [bit == "1" for bit in bits]
