"""What follows from the registered methods: their pages, the lists of them, the matrix, and a job folder for each.

Besides, the table of the architectures that cannot be used as backbones.

`make generated` writes all of it. A page that somebody wrote stays: only pages that end with `MARK` are generated.
"""

import re
import shutil
import sys
from collections.abc import Iterator
from inspect import getdoc
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from audits import TensorSpec
from medfedvqa.backbone_names import architectures, configuration, takes_prompts
from medfedvqa.backbone_names import refusal as unusable
from medfedvqa.cli.privacy_matrix import markdown_matrix
from medfedvqa.core import Method, create, method_names, method_type
from medfedvqa.core.averaging import AveragingConfig
from medfedvqa.core.local_training import AloneConfig
from medfedvqa.federation.shipped_jobs import shipped_job, shipped_names, to_allow
from medfedvqa.models import shape_of
from medfedvqa.papers.public_outputs import PublicOutputsConfig, TaughtServerConfig

ROOT = Path(__file__).parents[1]
METHODS = ROOT / "docs" / "methods"
JOBS = ROOT / "nvflare_jobs"
SHAPE = shape_of("medclip2-slake")
MARK = "<!-- This page is generated from the method's file: `make generated` writes it. -->\n"
SHARED_OPTIONS = {
    "fedet": TaughtServerConfig,
    "fedmd": PublicOutputsConfig,
    "fedavg": AveragingConfig,
    "local": AloneConfig,
}
"""The page that describes the options of a common base, the most special base first."""
BEGIN, END = "<!-- generated -->\n", "<!-- end of generated -->\n"


def documents() -> dict[Path, str]:
    """The text of every generated document, and of every document with a generated part."""
    names = [name for name in method_names() if not _is_written_by_hand(METHODS / f"{name}.md")]
    pages = {METHODS / f"{name}.md": _page(name) for name in names}
    matrix, index, start = METHODS / "matrix.md", METHODS / "index.md", ROOT / "docs" / "index.md"
    head = matrix.read_text(encoding="utf-8").partition("| method |")[0]
    rows = ["| method | idea | what a site sends in a round |\n|---|---|---|\n", *map(_row, names)]
    links = ", ".join(f"[{name}](methods/{name}.md)" for name in names)
    lists = {index: "".join(rows), start: f"- Methods with a generated page: {links}\n"}
    lists[ROOT / "docs" / "backbones.md"] = _architectures()
    return pages | {matrix: head + markdown_matrix()} | {path: _replaced(path, text) for path, text in lists.items()}


def _architectures() -> str:
    """How many of open_clip's architectures can be used, and those that cannot, by reason."""
    reasons: dict[str, list[str]] = {}
    for name in architectures():
        reasons.setdefault(unusable(configuration(name)) or "", []).append(name)
    usable = reasons.pop("")
    unprompted = [name for name in usable if not takes_prompts(configuration(name))]
    rows = "".join(f"| {', '.join(f'`{name}`' for name in names)} | {reason} |\n" for reason, names in reasons.items())
    return (
        f"{len(usable)} of open_clip's {len(architectures())} architectures can be used. {len(unprompted)} of these "
        f"have convolutions for pictures and take no prompts there.\n\n| refused | because |\n|---|---|\n{rows}"
    )


def export_jobs(folder: Path) -> None:
    """A job folder for every method; its README says what a hospital has to allow, and what the server can read."""
    # FLARE takes seconds to import.
    from medfedvqa.federation.flare.recipe import export_job
    from medfedvqa.federation.server_reads import markdown, server_reads

    for name in shipped_names():
        job = shipped_job(name)
        export_job(job, folder / name)
        text = f"{to_allow(name)}\n\n{markdown(server_reads(job))}"
        (folder / name / "README.md").write_text(text, encoding="utf-8")


def _is_written_by_hand(page: Path) -> bool:
    return page.exists() and not page.read_text(encoding="utf-8").endswith(MARK)


def _page(name: str) -> str:
    """Title, objective and deviations stand in the docstring of the method's module; the rest is what it declares."""
    kind = method_type(name)
    source, _, rest = (sys.modules[kind.__module__].__doc__ or "").partition("\n\n")
    objective, _, deviations = rest.partition("| paper |")
    parts = {
        "Objective": objective,
        "What leaves": "\n".join(_exchange(create(name, {}))),
        "Options": "\n".join(_options(kind)),
        "Deviations from the paper, and why": f"| paper |{deviations}" if deviations else "None.",
    }
    return "\n\n".join([f"# {name}", source, *(f"## {title}\n{text.strip()}" for title, text in parts.items()), MARK])


def _exchange(method: Method[Any]) -> Iterator[str]:
    common = create("fedavg", {}).exchange(SHAPE).tasks
    if [(task.name, task.up) for task in method.exchange(SHAPE).tasks] == [(task.name, task.up) for task in common]:
        yield "The same tensors as [fedavg](fedavg.md). The server sends its model back."
        return
    yield "| task | up | down |\n|---|---|---|"
    for task in method.exchange(SHAPE).tasks:
        yield f"| `{task.name}` | {_meanings(task.up)} | {_meanings(task.down)} |"


def _meanings(specs: tuple[TensorSpec, ...]) -> str:
    """What the tensors are, each meaning once: parameters have hundreds of names."""
    told = dict.fromkeys(spec.meaning if spec.kind == "parameters" else f"`{spec.name}`" for spec in specs)
    return ", ".join(told) or "nothing"


def _options(kind: type[Method[Any]]) -> Iterator[str]:
    """A method's own options; another page describes those of a common base."""
    described: set[str] = set()
    for page, base in SHARED_OPTIONS.items():
        if issubclass(kind.config_type, base) and page != kind.name:
            own, shared = kind.config_type.model_fields, method_type(page).config_type.model_fields
            same = {name for name in own.keys() & shared.keys() if own[name].description == shared[name].description}
            described = set(base.model_fields) | same
            absent = [f"`{name}`" for name in shared if name not in described]
            without = f" without {', '.join(absent)}" if absent else ""
            listed = f" that `medfedvqa methods {kind.name}` lists"
            yield f"Those of [{page}]({page}.md){without if len(absent) < 5 else listed}, and:\n"
            break
    yield "| option | default | meaning |\n|---|---|---|"
    for option, field in kind.config_type.model_fields.items():
        if option not in described:
            yield f"| `{option}` | {field.default} | {field.description} |"


def _row(name: str) -> str:
    kind = method_type(name)
    idea = (getdoc(kind) or "").partition("\n")[0].rstrip(".")
    tasks = {task.name: task for task in create(name, {}).exchange(SHAPE).tasks}
    up = tasks.get("train", tasks["start"]).up
    return f"| [`{name}`]({name}.md) | {idea[:1].lower()}{idea[1:]} | {_meanings(up)} |\n"


def _replaced(path: Path, text: str) -> str:
    """The document with this text between its two marks."""
    pattern = re.compile(f"(?<={re.escape(BEGIN)}).*?(?={re.escape(END)})", re.DOTALL)
    return pattern.sub(lambda match: text, path.read_text(encoding="utf-8"))


def main() -> None:
    """Write everything in its place."""
    for path, text in documents().items():
        path.write_text(text, encoding="utf-8")
    with TemporaryDirectory() as scratch:
        export_jobs(Path(scratch))
        for folder in Path(scratch).iterdir():
            shutil.rmtree(JOBS / folder.name, ignore_errors=True)
            shutil.copytree(folder, JOBS / folder.name)


if __name__ == "__main__":
    main()
