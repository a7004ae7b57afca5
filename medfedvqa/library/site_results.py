"""One site of a finished run: its accuracy, its log, its ledger and its report."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from audits import Entry, Examination, examine, find_logs, read
from audits.examination import sites_of
from audits.verifier import Totals, totals
from medfedvqa.evaluation.results import RESULTS
from medfedvqa.federation.job_budget import look_into
from medfedvqa.federation.site_config import SiteConfig, load_site_config
from medfedvqa.library.site_report import write_report
from privacy import Account
from privacy.report import Report


@dataclass(frozen=True)
class SiteResults:
    """One site after a run. Everything except the accuracy is read from the site's own folder."""

    name: str
    run: Path = field(repr=False)
    """The folder of the run."""
    network: bool
    """Whether messages crossed a network, so that the log has to explain every byte on it."""
    document: Mapping[str, Any] = field(repr=False)
    """The site's part of results.json."""

    @property
    def folder(self) -> Path:
        """The site's own folder: its site.yml, state, audit log and ledger."""
        return self.run / "sites" / self.name

    @property
    def rows(self) -> int | None:
        """How many test questions there are; None if the site did not release it."""
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
        """What the job has cost each patient, in nats at the job's delta; None without differential privacy."""
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
        """What left the site and what it received, in messages and bytes by tensor, from its log."""
        return totals(self.config.audit)

    def examine(self) -> Examination:
        """Checks the site's log against itself, and against what the server and the other sites hold of it."""
        folder, against = sites_of(find_logs(self.run), self.run)[self.name]
        return examine(folder, self.name, against, network=self.network)

    def verdicts(self) -> dict[str, str]:
        """The state of each of the three verdicts on the log: `shown`, `not shown` or `broken`."""
        return {name: judgement.state.value for name, judgement in self.examine().verdicts()}

    def spent(self) -> tuple[Account, ...]:
        """What each cohort has spent and reserved, from the site's ledger; empty without differential privacy."""
        if not self.config.ledger.is_dir():
            return ()
        with closing(look_into(self.config)) as ledger:
            return ledger.accounts(self.config.policy.delta)

    def report(self, out: str | Path) -> Report:
        """Write the privacy-budget report of this run, as JSON, HTML and PDF, into the new folder `out`."""
        _, against = sites_of(find_logs(self.run), self.run)[self.name]
        results = self.run / RESULTS
        return write_report(self.config, Path(out), results=results, against=against, network=self.network)
