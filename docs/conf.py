"""How the pages of this folder become a site that needs no network: `make docs`."""

from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from sphinx.application import Sphinx
from sphinx.util.typing import stringify_annotation

from audits import Tensors
from medfedvqa.version import code_version

project = "medfedvqa"
release = code_version()
copyright = "the authors of medfedvqa, Apache-2.0"

extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
myst_heading_anchors = 4
highlight_language = "text"
default_role = "code"  # docstrings mark code with single backticks, as Markdown does
autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
add_module_names = False
toc_object_entries = False  # thousands of names in each page's navigation; the search and the index have them

html_theme = "furo"
html_title = "medfedvqa"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["_static"]
html_css_files = ["doors.css"]
html_search_scorer = str(Path(__file__).with_name("_static") / "scorer.js")
html_show_search_summary = False  # summaries are fetched, which browsers refuse to pages opened from a disk

METHODS = Path(__file__).parent.joinpath("methods").glob("*.md")
NAVIGATION: dict[str, dict[str, list[str]]] = {
    "index": {
        "Start": ["quickstart", "library", "commands", "faq", "roadmap"],
        "Concepts": ["concepts"],
        "Methods": ["methods/index", "own-network", "extending", "examples/own_method/README"],
        "Data": ["data", "ingest"],
        "Privacy": [
            *("privacy", "secure-aggregation", "empirical-audit", "report", "examples/report/README", "compliance"),
            "requirements",
        ],
        "Hospital IT": [
            "hospital-it",
            "site",
            "federation",
            "operations",
            "hardening",
            "flare",
            "audit-log",
            "audit-tools",
            "verifier",
            "containers",
        ],
        "Research": ["comparison", "benchmark", "reproduce", "answer", "backbones", "benchmarks"],
        "Inside": ["architecture", "libraries", "maintainers", "formats", "api/index"],
    },
    "methods/index": {
        "": [
            "methods/matrix",
            *sorted(f"methods/{page.stem}" for page in METHODS if page.stem not in ("index", "matrix")),
        ]
    },
    "benchmark": {"": [f"benchmark/{name}" for name in ("slake", "vqa-rad", "slake-all", "vqa-rad-all")]},
    "api/index": {
        "": [
            *("api/library", "api/core", "api/methods", "api/data", "api/ingest", "api/models", "api/training"),
            *("api/evaluation", "api/federation", "api/attack", "api/benchmark", "api/privacy", "api/audits"),
        ]
    },
}
"""The pages below each page, by caption. Kept here, so that the pages themselves read well on a Git host."""


def add_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """Appends to a page's text the hidden lists from which Sphinx makes the site's navigation."""
    for caption, pages in NAVIGATION.get(page, {}).items():
        head = f":caption: {caption}\n" if caption else ""
        below = "\n".join(f"/{name}" for name in pages)
        source[0] += f"\n\n```{{toctree}}\n:hidden:\n{head}\n{below}\n```\n"


def add_values(app: Sphinx, what: str, name: str, found: Any, options: Any, lines: list[str]) -> None:
    """Appends to a class's docstring the described fields of a model of settings, or the values of an enumeration."""
    if what == "class" and issubclass(found, BaseModel):
        described = {field: info for field, info in found.model_fields.items() if info.description}
        lines += ["", *(f"- `{field}` = `{info.default}`: {info.description}" for field, info in described.items())]
    elif what == "class" and issubclass(found, Enum):
        lines += ["", "Values: " + ", ".join(f"`{member.name}`" for member in found) + "."]


def shorten(
    app: Sphinx, what: str, name: str, found: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Signatures without what is said elsewhere: fields of settings are in a list, arrays by name have a name."""
    if what == "class" and issubclass(found, BaseModel):
        return "", None
    return _named(signature), _named(returned)


def _named(text: str | None) -> str | None:
    return text and text.replace(stringify_annotation(Tensors, "smart"), "Tensors")


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_navigation)
    app.connect("autodoc-process-docstring", add_values)
    app.connect("autodoc-process-signature", shorten)
