"""What the model that a site kept of a run does: `answer` a question, become a folder (`export`), and more of a run."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from medfedvqa.cli.options import JsonOption, writable
from medfedvqa.cli.terminal import Terminal, plain, sentence
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
    from medfedvqa.answering.answerer import AnswerServer

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


# `medfedvqa groups` and `contribution`: who pays for privacy, and what each part of the models does to answers.


def groups(
    run: Annotated[Path, typer.Argument(help="A finished run's folder, with its results.json.")],
    site: SiteOption,
    baseline: Annotated[Path | None, typer.Option(help="The folder of the same run without privacy.")] = None,
    job: JobIdOption = None,
    baseline_job: Annotated[
        str | None, typer.Option(help="The job without privacy, where the site keeps several.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show who pays for privacy at a site: accuracies and clipped gradients by groups of at least 20 patients.

    Groups are by sex, age and modality, as far as the site's data tell. Nothing is trained, and nothing is sent.
    """
    from rich.table import Table

    from medfedvqa.answering.kept_run import by_group, load_kept

    figures = by_group(load_kept(run, site, job), load_kept(baseline, site, baseline_job) if baseline else None)
    if as_json:
        typer.echo(json.dumps(figures, indent=2))
        return
    terminal, names = Terminal(), ("accuracy with privacy", "without") if figures["private"] else ("accuracy", "")
    table = Table("group", "patients", "model", *names, "points lost, 95 %")
    for each in figures["groups"]:
        shares = [f"{100 * share['accuracy']:.1f} %" if share else "" for share in (each["private"], each["without"])]
        table.add_row(_name(each), str(each["patients"]), each["model"], *shares, _cost(each["cost"]))
    terminal.print(table)
    if figures["clipped"]:
        clipped = Table("group", "patients in training", "gradients clipped")
        for each in figures["clipped"]:
            share = "none drawn" if each["clipped"] is None else f"{each['clipped']:.1%} of {each['gradients']}"
            clipped.add_row(_name(each), str(each["patients"]), share)
        terminal.print(clipped)
    terminal.print("\n".join(figures["notes"]), highlight=False, soft_wrap=True, markup=False)


def _name(group: dict[str, Any]) -> str:
    return f"{plain(group['by'])}: {plain(group['group'])}"


def _cost(cost: dict[str, Any] | None) -> str:
    if cost is None:
        return ""
    interval = cost["interval"] and " [{:.1f}, {:.1f}]".format(*(100 * bound for bound in cost["interval"]))
    return f"{100 * cost['mean']:.1f}{interval or ''}"


STAYS = "The figures count answers about test patients: they stay with whoever may see the sites' rows."
PRIVATE = "The job trained under differential privacy: its epsilon covers none of these figures."
NO_OTHERS = "Another site's prompts are not at hand: only a run whose sites are all on this machine has that row."


def contribution(
    run: Annotated[Path, typer.Argument(help="A finished run's folder, with its results.json.")],
    site: Annotated[
        str, typer.Option(help="One site's name in the run, or the path of its site.yml; default: all sites of a run.")
    ] = "",
    job: JobIdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how many answers change, and how many points of accuracy are lost, without each part of the sites' models.

    Parts are prompts, n-grams, the picture and all that is tuned. Nothing is trained, and nothing is sent.
    """
    from rich.table import Table

    from medfedvqa.answering.kept_run import load_kept
    from medfedvqa.core.contribution import PARTS, contributions, tests_of
    from medfedvqa.library.run_results import Results

    results = Results.read(run).document
    kept = {name: load_kept(run, name, job) for name in ([site] if site else results["sites"])}
    sites = {name: (each.site(tests_of(each.own_data())), each.state) for name, each in kept.items()}
    parts = contributions(next(iter(kept.values())).job.build(), sites)
    lacking = [NO_OTHERS] if len(sites) == 1 and "shared_prompts" in parts else []
    notes = [STAYS, *[PRIVATE] * (results["dp"] is not None), *lacking]
    if as_json:
        typer.echo(json.dumps({"method": results["method"], "sites": list(sites), "parts": parts, "notes": notes}))
        return
    table = Table("the model answers", "answers that change", "points lost, mean over sites, 95 % interval")
    for part, figures in parts.items():
        lost, (low, high) = figures["lost"], figures["interval"] or (figures["lost"],) * 2
        changed = f"{figures['changed']} of {figures['rows']} ({figures['changed'] / figures['rows']:.1%})"
        table.add_row(PARTS[part], changed, f"{100 * lost:.1f} [{100 * low:.1f}, {100 * high:.1f}]")
    Terminal().print(table)
    Terminal().print("\n".join(notes), highlight=False, soft_wrap=True)
