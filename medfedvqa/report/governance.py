"""A site's statements on its own decisions, and known deployments' epsilons for comparison."""

from audits.escaping import bounded
from medfedvqa.report.blocks import NONE, Section, Table, Text, row
from privacy.report.figures import REPORT, Report
from privacy.settings import Governance

_PREFIX = "evidence.governance."
_LINES = (line.removeprefix(_PREFIX).split(" | ") for line in REPORT.lines if line.startswith(_PREFIX))
LABELS = {name: label for name, *_, label in _LINES}
"""The names of the texts that a site may give, by its settings."""
MISSING = "not given by the site"
FIRST = ("controller", "contact", "purpose", "permitted_use", "epsilon_decided_by", "review_date")
"""The texts that the first page shows."""
SHORT = 110
"""Characters of each on the first page."""
DEPLOYMENTS = (
    (
        "US census of 2020, redistricting data",
        "person; homes besides",
        "19.61: 17.14 and 2.47",
        "1e-10",
        "US Census Bureau, press release of 9 June 2021; delta: its published code",
    ),
    ("Google, Community Mobility Reports", "user and day", "2.64", "none", "Aktay et al., arXiv 2004.04145, 2020"),
    (
        "LinkedIn, Audience Engagements API",
        "member, for one analyst and month",
        "34.9",
        "7e-9",
        "Rogers et al., arXiv 2002.05839, 2020",
    ),
    (
        "Apple, emoji suggestions (noise on the device)",
        "user and day",
        "4",
        "none",
        "Apple, Differential Privacy Overview",
    ),
)
"""Known deployments: name, privacy unit, epsilon, delta, source."""


def summary(report: Report) -> Section:
    """The site's texts for the first page, shortened, and the names of those that it did not give."""
    governance = report.evidence.governance or Governance()
    given = [
        f"{LABELS[name]}: {bounded(text, SHORT)}" for name in FIRST if (text := getattr(governance, name)) is not None
    ]
    missing = [label.lower() for name, label in LABELS.items() if getattr(governance, name) is None]
    lines = [f"{'. '.join(given)}."] if given else []
    lines += [f"Not given by the site: {', '.join(missing)}."] if missing else []
    return Section("who", "Who decides, in the site's own words", (Text((" ".join(lines),)),))


def deployments() -> Table:
    """The table of epsilons in known deployments."""
    rows = tuple(row(*cells) for cells in DEPLOYMENTS)
    caption = "Epsilons of known deployments, which protect other units and are no yardstick"
    return Table(caption, ("Deployment", "Protected", "#Epsilon", "#Delta", "Source"), rows, NONE)
