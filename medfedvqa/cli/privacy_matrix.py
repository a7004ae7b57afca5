"""Which methods run in the clear, under differential privacy, with secure aggregation, and with both, or why not."""

from medfedvqa.core.registry import create, method_names, method_type
from medfedvqa.errors import ConfigError
from privacy import DPSettings, PrivacyError

PRIVACY = DPSettings(noise=1.0, count_noise=1.0)
"""Any settings serve. They name the noise, since its calibration to an epsilon takes seconds."""
CELLS: dict[str, tuple[DPSettings | None, bool]] = {
    "in clear": (None, False),
    "differential privacy": (PRIVACY, False),
    "secure aggregation": (None, True),
    "both": (PRIVACY, True),
}
PUBLIC = {"weighting": "uniform", "answers": "closed"}
"""Options for differential privacy, under which nothing public may follow from a site's rows: all sites weigh the same,
since row counts are not released, and the answer space is a public list."""


def refusal(method: str, cell: str) -> str | None:
    """Why the job of this cell of the matrix is refused when it is made; None if it runs."""
    dp, secagg = CELLS[cell]
    try:
        options = {} if dp is None else public_options(method)
        create(method, options, dp, secagg).plan()
    except (ConfigError, PrivacyError) as error:
        return str(error)
    return None


def markdown_matrix() -> str:
    """The whole matrix in Markdown, methods with the same row together, and below it each refusal in words."""
    lines = ["| method | " + " | ".join(CELLS) + " |", "|---|" + ":---:|" * len(CELLS)]
    reasons: list[str] = []
    rows: dict[tuple[str, ...], list[str]] = {}
    for method in method_names():
        marks = []
        for cell in CELLS:
            reason = refusal(method, cell)
            if reason is not None:  # without the method's name, so that methods with one reason share its line
                reason = reason.replace(f"the method '{method}'", "the method").replace(f"'{method}'", "the method")
                reasons += [] if reason in reasons else [reason]
            marks.append("runs" if reason is None else f"no ({1 + reasons.index(reason)})")
        rows.setdefault(tuple(marks), []).append(f"[`{method}`]({method}.md)")
    lines += ["| " + " | ".join([", ".join(methods), *marks]) + " |" for marks, methods in rows.items()]
    return "\n".join([*lines, "", *(f"{number}. {reason}" for number, reason in enumerate(reasons, 1))]) + "\n"


def public_options(method: str) -> dict[str, str]:
    """The options of `PUBLIC` that the method has."""
    fields = method_type(method).config_type.model_fields
    return {name: value for name, value in PUBLIC.items() if name in fields}
