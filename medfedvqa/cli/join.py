"""`medfedvqa join`: hospitals receive the model of an earlier run, answer with it, and train on from it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from medfedvqa.cli import options
from medfedvqa.cli.terminal import Terminal, sentence
from medfedvqa.errors import ConfigError

if TYPE_CHECKING:
    from medfedvqa.data import SiteData
    from medfedvqa.federation.job import JobSpec


def join(
    run: Annotated[Path, typer.Argument(help="The folder of a run of an averaging method, or of its results.")],
    site: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A hospital that joins, by its organ; repeatable.")
    ] = None,
    data: options.DataOption = "",
    data_root: options.RootOption = None,
    backbone_file: options.BackboneFileOption = None,
    organ: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="An organ whose hospitals trained the model; repeatable. Default: those of a run on this machine.",
        ),
    ] = None,
    finish: Annotated[
        int, typer.Option(help="Epochs of further training on the hospital's rows; 0: none.", min=0)
    ] = 20,
    device: options.DeviceOption = "auto",
    threads: options.ThreadsOption = 1,
    cache: options.CacheOption = None,
    out: options.OutOption = None,
    job_folder: Annotated[
        Path | None,
        typer.Option(
            help="Write a job folder for `nvflare job submit` instead of running here.", callback=options.writable
        ),
    ] = None,
    kit: Annotated[
        Path | None, typer.Option(help="With --job-folder: your administrator's kit, to make a job that runs once.")
    ] = None,
    days: Annotated[float, typer.Option(help="With --kit: days until the job expires.", min=0.01, max=31)] = 7.0,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Let hospitals join: each receives the model of a run, tests it, and trains it further for itself.

    A hospital sends counts of its test alone, under its own policy. Without labelled rows it answers with the model as
    received. `medfedvqa answer` then asks the model that it keeps.
    """
    from medfedvqa.cli.run import announced, watched
    from medfedvqa.cli.run import finish as show

    progress = announced("medfedvqa join: loading PyTorch and the model", quiet)
    from medfedvqa.data.site_cuts import organ_of
    from medfedvqa.federation.launch import LAUNCH, Launch, data_of, plan
    from medfedvqa.federation.shared_model import MODEL, SharedModel

    model = SharedModel.read(run / MODEL)
    trained = Launch.read(run).sites if (run / LAUNCH).exists() else ()
    organs = tuple(organ or dict.fromkeys(map(organ_of, trained)))
    if job_folder is not None:
        _export(model.joining(organs, finish, data="any"), job_folder, kit, site, days)
        return
    from medfedvqa.data.data_roots import find_root
    from medfedvqa.library.run_job import new_folder
    from medfedvqa.library.training_job import check_site_names

    reader, root = find_root(data or model.job.data, data_root)
    job = model.joining(organs, finish, data=reader, round_timeout=None)
    sites = tuple(site or ())
    if not sites:
        raise ConfigError("give at least one hospital that joins by --site")
    check_site_names(reader, root, sites)
    files = options.check_backbone_file(job.backbone, backbone_file)
    folder = out or new_folder("join", reader)
    launch = plan(job, root, folder, sites, threads, files, None, device, cache)
    model.write(folder / MODEL)
    results = watched(launch, "local", progress)
    for name in sites:
        for note in remarks(data_of(job, root, name), organs, job.build().public_answers or ()):
            progress.print(f"Note: {sentence(name)}: {note}", soft_wrap=True, highlight=False)
    show(launch, results, as_json, quiet)


def remarks(data: "SiteData", organs: tuple[str, ...], answers: tuple[str, ...]) -> list[str]:
    """Sentences on what the model of other hospitals cannot know about this one. They stay on this machine."""
    from medfedvqa.data import numbered
    from medfedvqa.data.site_cuts import organ_of

    labelled = [part.answers for part in (data.train, data.validate)]
    places = [int((numbered(data.answers, answers, part) < 0).sum()) for part in labelled]
    rows, unknown = sum(map(len, labelled)), sum(places)
    texts = []
    if not len(data.train):
        texts.append("it has no labelled rows to train on, and answers with the model as received.")
    if organs and organ_of(data.organ) not in organs:
        texts.append("no hospital of its organ trained the model: what it knows of this organ, its own rows taught it.")
    if unknown:
        texts.append(f"{unknown} of its {rows} labelled rows have an answer that the model cannot give.")
    return texts


def _export(job: "JobSpec", out: Path, kit: Path | None, sites: list[str] | None, days: float) -> None:
    """Write the job's folder, for these sites of a federation if there is a kit."""
    from medfedvqa.cli.jobs import fresh_terms
    from medfedvqa.federation.flare.recipe import export_job

    if kit or sites:
        job = job.model_copy(update={"terms": fresh_terms(kit, sites, days)})
    export_job(job, out)
    Terminal().print(f"Submit it by: nvflare job submit -j {sentence(out)}", soft_wrap=True)
