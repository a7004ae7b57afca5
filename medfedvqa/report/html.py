"""The page: one file that asks for nothing else."""

from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from medfedvqa.report import appendix, blocks, shapes
from medfedvqa.report.blocks import Document


def page(document: Document) -> str:
    """The document as HTML."""
    here = files("medfedvqa.report")
    environment = Environment(
        autoescape=True, finalize=_shown, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.tests["kind"] = lambda block, name: type(block).__name__ == name
    environment.globals.update(line_feed=Markup("\n"), corners=shapes.corners, whole=appendix.anchor)
    template = environment.from_string(here.joinpath("page.html").read_text(encoding="utf-8"))
    return template.render(
        document=document,
        anchors=document.anchors,
        claim=blocks.sentence(document.claim),
        css=Markup(here.joinpath("page.css").read_text(encoding="utf-8")),
    )


def _shown(value: Any) -> Any:
    """What the template writes, as `blocks.shown` has it; its own markup stays as it is."""
    return blocks.shown(value) if isinstance(value, str) and not isinstance(value, Markup) else value
