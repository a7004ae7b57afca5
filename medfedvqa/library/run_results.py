"""The results of a run: tables, pandas frames, figures, and an object for each site."""

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from audits import Entry, Examination, examine, find_logs, read
from audits.bounded_files import MAX_DOCUMENT, read_bounded
from audits.examination import sites_of
from audits.verifier import Totals, totals
from medfedvqa.errors import ConfigError
from medfedvqa.evaluation import History, RoundRecord, load_transcript
from medfedvqa.evaluation.accuracy_table import answering, markdown_table, text_table
from medfedvqa.evaluation.results import RESULTS
from medfedvqa.evaluation.run_plots import accuracy_figure, final_figure, prompts_figure
from medfedvqa.federation.job_budget import look_into
from medfedvqa.federation.site_config import SiteConfig, load_site_config
from medfedvqa.figures import styled
from medfedvqa.library.data_set import frame_of
from medfedvqa.library.site_report import write_report
from privacy import Account
from privacy.report import Report

# One site of a finished run: its accuracy, its log, its ledger and its report.


@dataclass(frozen=True)
class SiteResults:
    """One site after a run. Everything except the accuracy is read from the site's own folder."""

    name: str
    run: Path = field(repr=False)
    """The folder of the run."""
    network: bool
    """Whether messages crossed a network, so that the log must explain every byte on it."""
    document: Mapping[str, Any] = field(repr=False)
    """The site's part of results.json."""

    @property
    def folder(self) -> Path:
        """The site's own folder: its site.yml, state, audit log and ledger."""
        return self.run / "sites" / self.name

    @property
    def rows(self) -> int | None:
        """The number of test questions; None if the site did not release it."""
        count: int | None = self.document["n"]
        return count

    @property
    def accuracy(self) -> float | None:
        """The share of test questions that the method answers right, in 0..1."""
        share: float | None = self.document["accuracy"]
        return share

    @property
    def interval(self) -> tuple[float, float] | None:
        """The Wilson 95 % interval of the accuracy."""
        bounds = self.document["interval"]
        return None if bounds is None else (bounds[0], bounds[1])

    @property
    def epsilon(self) -> float | None:
        """The job's cost to each patient, in nats at the job's delta; None without differential privacy."""
        nats: float | None = self.document["epsilon"]
        return nats

    @cached_property
    def config(self) -> SiteConfig:
        """The site's own settings, from its site.yml."""
        return load_site_config(self.folder / "site.yml", self.name)

    def log(self) -> Iterator[Entry]:
        """The entries of the site's audit log in order, one for each message in or out. Raises `LogError`."""
        return read(self.config.audit)

    def totals(self) -> Totals:
        """The messages and bytes that the site sent and received, in all and by tensor, from its log."""
        return totals(self.config.audit)

    def examine(self) -> Examination:
        """Examines the site's log, by itself and against the copies that the server and the other sites hold."""
        folder, against = sites_of(find_logs(self.run), self.run)[self.name]
        return examine(folder, self.name, against, network=self.network)

    def verdicts(self) -> dict[str, str]:
        """The state of each of the three verdicts on the log: `shown`, `not shown` or `broken`."""
        return {name: judgement.state.value for name, judgement in self.examine().verdicts()}

    def spent(self) -> tuple[Account, ...]:
        """Each cohort's account of spent and reserved budget, from the site's ledger; empty without a ledger."""
        if not self.config.ledger.is_dir():
            return ()
        with closing(look_into(self.config)) as ledger:
            return ledger.accounts(self.config.policy.delta)

    def report(self, out: str | Path) -> Report:
        """Writes the privacy-budget report of this run, as JSON, HTML and PDF, into the new folder `out`."""
        return write_report(self.config, Path(out), run=self.run)


if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

LEAST_ROUNDS = 2
"""The fewest rounds that make a curve."""


class Results:
    """The results of a run. `document` is the content of results.json, `folder` the run's folder."""

    def __init__(self, folder: Path, document: Mapping[str, Any]) -> None:
        self.folder, self.document = folder, document
        network = document["engine"] != "local"
        self.sites = {site: SiteResults(site, folder, network, entry) for site, entry in document["sites"].items()}

    @classmethod
    def read(cls, folder: str | Path) -> "Results":
        """The results of a run that has ended, from its folder. Raises `ConfigError`."""
        place = Path(folder)
        try:
            return cls(place, json.loads(read_bounded(place / RESULTS, MAX_DOCUMENT)))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise ConfigError(f"the folder '{place}' holds no {RESULTS} of a run: give the folder of a run") from None

    @property
    def accuracy(self) -> float | None:
        """The mean of the sites' accuracies in 0..1; None if the sites keep theirs."""
        mean: float | None = self.document["average"]["accuracy"]
        return mean

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that a reader of the figures must know."""
        return tuple(self.document["notes"])

    def table(self, form: Literal["text", "markdown"] = "text") -> str:
        """The accuracies with 95 % intervals and the free baselines; in Markdown also the facts of the run."""
        if form not in ("text", "markdown"):
            raise ConfigError("the form of a table must be 'text' or 'markdown'")
        return text_table(self.document) if form == "text" else markdown_table(self.document)

    def frame(self) -> "DataFrame":
        """The accuracies as a pandas frame: one row per way of answering and site."""
        return frame_of(list(self._accuracies()))

    def rounds(self) -> "DataFrame":
        """The rounds as a pandas frame: one row per round and site, with seconds of the whole round, and bytes."""
        return frame_of(
            [
                {
                    "round": record["round"],
                    "site": site,
                    "accuracy": record["accuracy"].get(site),
                    "bytes_up": nbytes["up"],
                    "bytes_down": nbytes["down"],
                    "epsilon": record["epsilon"].get(site, (None, None))[1],
                    "seconds": record["seconds"],
                }
                for record in self.document["rounds"]
                for site, nbytes in record["bytes"].items()
            ]
        )

    def plot(self, kind: Literal["final", "rounds", "prompts"] = "final") -> "Figure":
        """A matplotlib figure: `final` accuracies, validation accuracy by `rounds`, or the `prompts` of the sites.

        Raises `ConfigError` for another kind, or if the run has nothing to draw.
        """
        with styled():
            return self._figure(kind)

    def _figure(self, kind: str) -> "Figure":
        if kind == "final":
            if self.accuracy is None:
                raise ConfigError("the sites did not release their test results: there is no final accuracy to draw")
            return final_figure(self.document)
        if kind not in ("rounds", "prompts"):
            raise ConfigError("the plot must be 'final', 'rounds' or 'prompts'")
        history = _history(self.folder, self.document)
        if kind == "prompts":
            if not history.uploads:
                raise ConfigError(f"the method '{self.document['method']}' sends no prompts that could be drawn")
            return prompts_figure(history)
        if sum(bool(record.accuracy) for record in history.rounds) < LEAST_ROUNDS:
            raise ConfigError("fewer than two rounds released an accuracy: there is no curve to draw")
        return accuracy_figure(self.document, history)

    def _accuracies(self) -> Iterator[dict[str, Any]]:
        names = [*self.document["sites"], "average"]
        counts = [*(entry["n"] for entry in self.document["sites"].values()), None]
        for way in answering(self.document):
            for site, rows, entry in zip(names, counts, way.entries, strict=True):
                figures = entry or {"accuracy": None, "interval": None}
                low, high = figures["interval"] or (None, None)
                share = figures["accuracy"]
                yield {"system": way.label, "site": site, "n": rows, "accuracy": share, "low": low, "high": high}

    def _repr_markdown_(self) -> str:
        """The Markdown table, which notebooks show."""
        return self.table("markdown")

    def __repr__(self) -> str:
        """The method, the run's final status, and its accuracy."""
        share = "kept by the sites" if self.accuracy is None else f"{100 * self.accuracy:.1f} %"
        return f"<Results of {self.document['method']}, {self.document['status']}: accuracy {share}>"


def _history(folder: Path, document: Mapping[str, Any]) -> History:
    """The server's history of the rounds, with the last prompts."""
    transcript = load_transcript(folder)
    sites = tuple(document["sites"])
    rounds = [
        RoundRecord(
            round=record["round"],
            seconds=record["seconds"],
            site_seconds={},
            bytes_up={site: record["bytes"][site]["up"] for site in sites},
            bytes_down={site: record["bytes"][site]["down"] for site in sites},
            accuracy=record["accuracy"],
            reliability=record.get("reliability", {}),
            epsilon=record["epsilon"],
        )
        for record in document["rounds"]
    ]
    return History(sites=sites, rounds=rounds, uploads=transcript.uploads, shared=transcript.shared)
