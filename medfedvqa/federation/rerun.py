"""Runs a finished run again from its own record, and compares every digest of a tensor in the sites' logs."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from audits import Entry, Event, JobCode, Outcome, read
from medfedvqa.code_identity import running_code
from medfedvqa.data import load_site, reader_function
from medfedvqa.errors import ConfigError
from medfedvqa.evaluation.results import RESULTS
from medfedvqa.federation.hub import TaskAnswer
from medfedvqa.federation.launch import Launch, plan, run
from medfedvqa.federation.site_runtime import SiteRuntime
from medfedvqa.models import load_backbone


@dataclass(frozen=True)
class TensorPlace:
    """One tensor of one message, as a site's log names it."""

    site: str
    round: int | None
    task: str | None
    tensor: str
    direction: str | None
    """`out` for what left the site, `in` for what it received."""


@dataclass(frozen=True)
class LogComparison:
    """The digests of a run's logs beside those of its rerun."""

    equal: Mapping[str, int]
    """The number of equal digests, by site."""
    total: int
    """The number of places in either log."""
    first: TensorPlace | None = None
    """The first place, in order of rounds and messages, whose digests differ."""
    logged: bool = True
    """Whether the run's log has the first place at all."""
    repeated: bool = True
    """Whether the rerun's log has the first place."""


def recorded_run(out: Path) -> tuple[Launch, int]:
    """The launch of the finished run in a folder, and the number of its rounds.

    Raises `ConfigError` if there is none, or if no rerun can give its tensors.
    """
    launch = Launch.read(out)
    if launch.job.dp is not None:
        raise ConfigError("the run was private: its noise is fresh and secret, so no rerun gives the same tensors")
    if launch.job.secagg:
        raise ConfigError("the run aggregated on shares: its masks are secret, so no rerun gives the same tensors")
    try:
        results = json.loads((out / RESULTS).read_text(encoding="utf-8"))
        status, rounds, missing = results["status"], results["rounds"], results["missing_at_end"]
        missing = missing or any(record["missing"] for record in rounds)
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(f"'{out}' has no {RESULTS} of this version: give the folder of a finished run") from None
    if status not in ("finished", "stopped"):
        raise ConfigError(f"the run in '{out}' has not finished: its {RESULTS} has the status '{status}'")
    if missing:
        raise ConfigError(
            "a site missed rounds of this run, so its means are over fewer sites: a rerun cannot repeat that"
        )
    return launch, len(rounds)


@contextmanager
def planned_rerun(launch: Launch) -> Iterator[Launch]:
    """A launch of the same job in a temporary folder, which is gone afterwards. Raises as `plan` does."""
    # All sites answered in time, and a slower machine must not lose one.
    job = launch.job.model_copy(update={"wait_for": None, "round_timeout": None, "terms": None})
    with TemporaryDirectory(prefix="medfedvqa-rerun-") as folder:
        yield plan(
            job,
            launch.root,
            Path(folder) / "rerun",
            launch.sites,
            launch.threads,
            launch.backbone_files,
            device=launch.device,
            precision=launch.precision,
            start_from=launch.first_model if launch.job.options.get("start_from") else None,
        )


def changes(launch: Launch, again: Launch) -> list[str]:
    """Sentences on what may make tensors differ: what has changed since the run, data first, and a graphics card."""
    now = again.digests()
    changed = [site for site in launch.sites if launch.data_digests.get(site, now[site]) != now[site]]
    sentences = [f"The data of site '{site}' have changed since the run." for site in changed]
    if not launch.data_digests:
        sentences.append("The run's record has no digest of its data: nobody can say whether they have changed.")
    opened = [entry for log in _logs(launch).values() for entry in log if entry.event is Event.OPEN]
    backbone = load_backbone(launch.job.backbone, launch.backbone_files or {})
    if any(entry.model_digest != (backbone.digest or None) for entry in opened):
        sentences.append("The backbone has changed since the run.")
    loads = (load_backbone, load_site, reader_function(launch.job.data))
    code = running_code(SiteRuntime, *launch.job.build().code, type(backbone), *loads)
    if any(entry.code_digest != code.digest for entry in opened):
        sentences.append(f"The code has changed since the run: {', '.join(_changed_parts(code, opened))}.")
    if again.device != "cpu":
        sentences.append("A graphics card adds up in an order of its own: tensors may differ for that alone.")
    return sentences


def rerun(again: Launch, rounds: int, watch: Callable[[TaskAnswer], None]) -> None:
    """Run the job again, in this process, for this number of rounds. Raises as `run` does."""
    reached = 0

    def seen(event: TaskAnswer) -> None:
        nonlocal reached
        reached = max(reached, event.round)
        watch(event)

    run(again, "local", seen, stop=lambda: reached >= rounds)


def compare(launch: Launch, again: Launch) -> LogComparison:
    """Compare the logs of a run with those of its rerun, digest by digest. Raises `LogError` for a broken log."""
    order: dict[TensorPlace, int] = {}
    before, now = _digests(launch, order), _digests(again, order)
    differ = [place for place in order if before.get(place) != now.get(place)]
    equal = dict.fromkeys(launch.sites, 0)
    for place in order.keys() - set(differ):
        equal[place.site] += 1
    if not differ:
        return LogComparison(equal, len(order))
    first = min(differ, key=lambda place: (place.round or 0, order[place], place.site))
    return LogComparison(equal, len(order), first, first in before, first in now)


def _logs(launch: Launch) -> dict[str, list[Entry]]:
    return {site: list(read(folder)) for site, folder in launch.audit_folders.items()}


def _digests(launch: Launch, order: dict[TensorPlace, int]) -> dict[TensorPlace, set[str]]:
    """The digests of each tensor that passed; a run that died and was continued has logged some of them twice.

    `order` gets the number of each place in its site's log.
    """
    places: dict[TensorPlace, set[str]] = {}
    for site, log in _logs(launch).items():
        passed = [entry for entry in log if entry.outcome in (Outcome.SENT, Outcome.ACCEPTED)]
        for number, (message, tensor) in enumerate((entry, tensor) for entry in passed for tensor in entry.tensors):
            place = TensorPlace(site, message.round, message.task, tensor.name, message.direction)
            places.setdefault(place, set()).add(tensor.sha256 or "")
            order.setdefault(place, number)
    return places


def _changed_parts(code: JobCode, opened: Iterable[Entry]) -> list[str]:
    """The names of all parts of the code that have changed since the run."""
    then = [JobCode.from_record(entry.code) for entry in opened if entry.code is not None]
    others = {part for each in then for part in {*each.parts} ^ {*code.parts}}
    return sorted({part.name or "a module without a name" for part in others}) or ["its parts were not logged"]
