"""The page: one file that asks for nothing else."""

from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from medfedvqa.evaluation.privacy_report import appendix, drawing, parts
from medfedvqa.evaluation.privacy_report.parts import Document


def page(document: Document) -> str:
    """The document as HTML."""
    here = files("medfedvqa.evaluation.privacy_report")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["shown"] = parts.shown
    environment.tests["kind"] = lambda block, name: type(block).__name__ == name
    environment.globals.update(corners=drawing.corners, whole=appendix.anchor)
    template = environment.from_string(here.joinpath("page.html").read_text(encoding="utf-8"))
    return template.render(
        document=document,
        anchors=document.anchors,
        claim=parts.sentence(document.claim),
        css=Markup(here.joinpath("page.css").read_text(encoding="utf-8")),
    )
