"""Finds the evidence for a report in a run's folder, so that users need not pass its paths."""

import json
from dataclasses import dataclass
from pathlib import Path

from audits.bounded_files import MAX_DOCUMENT, read_bounded
from medfedvqa.errors import ConfigError
from medfedvqa.evaluation.results import RESULTS
from medfedvqa.federation.launch import LAUNCH, Launch


@dataclass(frozen=True)
class RunEvidence:
    """The evidence in a run's folder for the reports of its sites."""

    run: Path
    """The folder itself. It holds the server's receipts and, on one machine, the other sites' copies of each log."""
    results: Path | None
    """The run's results.json; None while the run has written none."""
    network: bool
    """Whether the run's messages crossed a network, so that a log has to explain every byte on it."""

    @classmethod
    def find(cls, run: Path) -> "RunEvidence":
        """The evidence in a run's folder. Raises `ConfigError` if the folder holds no run.

        It does not look for the results of the job without privacy: a report with them shares the site's accuracies,
        and that is the site's decision.
        """
        results = run / RESULTS
        if results.is_file():
            return cls(run, results, _engine_of(results) != "local")
        if (run / LAUNCH).is_file():
            return cls(run, None, Launch.read(run).engine != "local")
        raise ConfigError(f"'{run}' holds neither {RESULTS} nor {LAUNCH}: give the folder of a run")

    @property
    def sites(self) -> dict[str, Path]:
        """The site.yml of each site that has its folder in the run's, by site."""
        return {path.parent.name: path for path in sorted(self.run.glob("sites/*/site.yml"))}


def _engine_of(results: Path) -> str:
    try:
        return str(json.loads(read_bounded(results, MAX_DOCUMENT))["engine"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise ConfigError(f"'{results}' is not the results file of a run, or is of another version") from None
