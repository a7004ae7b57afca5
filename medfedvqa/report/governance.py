"""What a site tells about its own decisions, and epsilons that others chose, so that one is not read in a void."""

from audits.escaping import bounded
from medfedvqa.report.blocks import NONE, Facts, Section, Table, Text, fact, row
from privacy.report.model_conduct import Report
from privacy.settings import Governance

LABELS = {
    "purpose": "Purpose",
    "controller": "Controller",
    "contact": "Contact",
    "legal_basis": "Legal basis",
    "retention": "Retention",
    "epsilon_decided_by": "Epsilon decided by",
    "epsilon_reason": "Reason for this epsilon",
    "permitted_use": "Permitted use",
    "review_date": "Next review",
}
MISSING = "not given by the site"
FIRST = ("controller", "contact", "purpose", "permitted_use", "epsilon_decided_by", "review_date")
"""What the first page has of them."""
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
"""What was deployed, who is protected, epsilon, delta, source."""


def words_of(report: Report) -> Facts:
    """Every text that the site gave, and the names of those that it did not."""
    governance = report.evidence.governance or Governance()
    facts = tuple(
        fact(label, getattr(governance, name) or MISSING, "the site's word") for name, label in LABELS.items()
    )
    return Facts("In the site's own words, which nobody checked", facts)


def summary(report: Report) -> Section:
    """The same for the first page, shortened."""
    governance = report.evidence.governance or Governance()
    given = [
        f"{LABELS[name]}: {bounded(text, SHORT)}" for name in FIRST if (text := getattr(governance, name)) is not None
    ]
    missing = [label.lower() for name, label in LABELS.items() if getattr(governance, name) is None]
    lines = [f"{'. '.join(given)}."] if given else []
    lines += [f"Not given by the site: {', '.join(missing)}."] if missing else []
    return Section("who", "Who decides, in the site's own words", (Text((" ".join(lines),)),))


def deployments() -> Table:
    """Epsilons of others."""
    rows = tuple(row(*cells) for cells in DEPLOYMENTS)
    caption = "Epsilons of known deployments, which protect other units and are no yardstick"
    return Table(caption, ("Deployment", "Protected", "#Epsilon", "#Delta", "Source"), rows, NONE)
