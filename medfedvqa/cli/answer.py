"""`medfedvqa answer` and `export`: the model that a site kept of a run answers a question, or becomes a folder."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from medfedvqa.cli.options import JsonOption, writable
from medfedvqa.cli.terminal import Terminal, sentence
from medfedvqa.errors import ConfigError

if TYPE_CHECKING:
    from medfedvqa.answering.answerer import Answerer
    from medfedvqa.evaluation.accuracy import Proportion

Answers = tuple[tuple[str, float], ...]

RunOption = Annotated[Path, typer.Option(help="A finished run's folder, with its results.json.")]
SiteOption = Annotated[str, typer.Option(help="The site's name in the run, or the path of its site.yml.")]
JobIdOption = Annotated[
    str | None,
    typer.Option("--job", help="The job whose model answers, if the site keeps several; the log names them."),
]


def answer(
    run: RunOption,
    site: SiteOption,
    picture: Annotated[Path | None, typer.Option(help="The picture: a PNG, JPEG or DICOM file.")] = None,
    question: Annotated[str | None, typer.Option(help="The question about it.")] = None,
    job: JobIdOption = None,
    top: Annotated[int, typer.Option(help="How many answers to show, the most probable first.", min=1)] = 5,
    page: Annotated[
        bool,
        typer.Option("--page", help="Serve a page for a browser on this machine until Ctrl-C, instead of one answer."),
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="With --page: port on 127.0.0.1; 0: any free port.")] = 0,
    structured_report: Annotated[
        Path | None,
        typer.Option(help="For a DICOM picture: also write the answers as a DICOM Structured Report to this new file."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Answer a question about a picture with the model that a site kept of a finished run.

    Research software, not a medical device. The site's log counts every answer.
    """
    content = None if picture is None else read_picture(picture)
    if page == (content is not None or question is not None) or (content is None) != (question is None):
        raise ConfigError("give --picture and --question together, or --page alone, whose form asks for both")
    if structured_report is not None and (page or structured_report.exists()):
        needs = "needs --picture and --question" if page else "names a file that exists: give a new one"
        raise ConfigError(f"--structured-report {needs}")
    from medfedvqa.answering.answerer import Answerer
    from medfedvqa.answering.kept_run import load_kept

    write_report = _report_writer(structured_report, content) if structured_report and content else None
    with Answerer(load_kept(run, site, job)) as answerer:
        if content is None or question is None:
            _serve(answerer, port)
            return
        answers = answerer.ask(content, question, top).answers
        if write_report:
            write_report(question, answers, answerer.tested)
        if as_json:
            _print_json(answerer, answers)
        else:
            _print(answerer, answers)


def _report_writer(path: Path, picture: bytes) -> Callable[[str, Answers, "Proportion"], None]:
    """The function that writes the Structured Report. Refuses at once a picture that no report can refer to."""
    from medfedvqa.answering.structured_report import source_of, structured_report
    from medfedvqa.atomic_files import PRIVATE, write_whole

    source = source_of(picture)

    def write(question: str, answers: Answers, tested: "Proportion") -> None:
        write_whole(path, structured_report(source, question, answers, tested), PRIVATE)

    return write


def _serve(answerer: "Answerer", port: int) -> None:
    from medfedvqa.answering.page import AnswerServer

    terminal = Terminal()
    with AnswerServer(answerer, port) as server, contextlib.suppress(KeyboardInterrupt):
        terminal.print(server.url, highlight=False, soft_wrap=True)
        terminal.print("Open this address on this machine; whoever has it can ask the model. Ctrl-C ends it.")
        server.serve_forever()


def read_picture(path: Path) -> bytes:
    """The bytes of a picture's file. Raises `ConfigError`, which does not name it."""
    from audits.bounded_files import read_bounded

    try:
        return read_bounded(path, 1 << 27)
    except OSError:
        raise ConfigError("the file of --picture is missing, not a plain file, or larger than 128 MB") from None


def _print_json(answerer: "Answerer", answers: Answers) -> None:
    from medfedvqa.answering.answerer import UNCALIBRATED, WARNING

    tested = answerer.tested
    document = {
        "answers": [{"answer": text, "probability": share} for text, share in answers],
        "tested": {"correct": tested.correct, "rows": tested.rows, "interval": list(tested.wilson())},
        "notes": [UNCALIBRATED, WARNING],
    }
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))


def _print(answerer: "Answerer", answers: Answers) -> None:
    from medfedvqa.answering.answerer import UNCALIBRATED, WARNING, tested_sentence

    terminal = Terminal()
    for text, share in answers:
        terminal.print(f"{share:7.1%}  {sentence(text)}", highlight=False, soft_wrap=True)
    terminal.print(f"{tested_sentence(answerer.tested)} {UNCALIBRATED}", highlight=False, soft_wrap=True)
    terminal.print(f"[bold]{WARNING}[/]", highlight=False, soft_wrap=True)


def export(
    run: RunOption,
    site: SiteOption,
    out: Annotated[Path, typer.Option(help="The folder to write; new or empty.", callback=writable)],
    job: JobIdOption = None,
) -> None:
    """Write the model that a site kept of a finished run into a folder: weights, program, answers, model card.

    The site's policy must allow it, and its log names it. The folder needs torch and safetensors only.
    """
    from medfedvqa.answering.answerer import WARNING, Answerer
    from medfedvqa.answering.export import check_allowed, export
    from medfedvqa.answering.kept_run import load_kept
    from medfedvqa.federation.launch import check_new

    check_new(out)
    kept = load_kept(run, site, job)
    check_allowed(kept)
    with Answerer(kept) as answerer:
        export(kept, answerer, out)
    terminal = Terminal()
    terminal.print(f"The model is in [bold]{sentence(out)}[/]; read its README.md first.", soft_wrap=True)
    terminal.print(f"[bold]{WARNING}[/]", highlight=False, soft_wrap=True)
