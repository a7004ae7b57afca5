"""The page: one file that asks for nothing else."""

from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from medfedvqa.evaluation.privacy_report import appendix, drawing, parts
from medfedvqa.evaluation.privacy_report.parts import Document


def page(document: Document) -> str:
    """The document as HTML."""
    here = files("medfedvqa.evaluation.privacy_report")
    environment = Environment(
        autoescape=True, finalize=_shown, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.tests["kind"] = lambda block, name: type(block).__name__ == name
    environment.globals.update(line_feed=Markup("\n"), corners=drawing.corners, whole=appendix.anchor)
    template = environment.from_string(here.joinpath("page.html").read_text(encoding="utf-8"))
    return template.render(
        document=document,
        anchors=document.anchors,
        claim=parts.sentence(document.claim),
        css=Markup(here.joinpath("page.css").read_text(encoding="utf-8")),
    )


def _shown(value: Any) -> Any:
    """What the template writes, as `parts.shown` has it; its own markup stays as it is."""
    return parts.shown(value) if isinstance(value, str) and not isinstance(value, Markup) else value
