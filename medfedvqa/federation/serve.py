"""The server's side of a job, the same for every engine: run the method, write what came of it."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from audits import AuditError
from medfedvqa.errors import ConfigError, MedfedvqaError
from medfedvqa.evaluation import History, RunFacts, Score, draw_plots, save_transcript, write_results, write_table
from medfedvqa.federation.hub import Call, Event, ServerHub
from medfedvqa.federation.job import ANY_DATA, JobSpec
from medfedvqa.methods import Tensors, create
from medfedvqa.models import seen_by


def serve_job(
    job: JobSpec,
    sites: tuple[str, ...],
    call: Call,
    out: Path,
    engine: str,
    watch: Callable[[Event], None] = lambda event: None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Run `job` over `sites` and write results, table, transcript and plots into `out`.

    Results are written after every round, so that an interrupted run leaves what it reached.
    Returns the results. Raises `FederationError` (a site refused or failed), after having recorded it.
    """
    method = create(job.method, job.options)
    if len(sites) < method.least_sites:
        raise ConfigError(f"method '{job.method}' needs at least {method.least_sites} sites; this job has {len(sites)}")
    seen = seen_by(job.backbone)
    facts = RunFacts(
        method=job.method,
        options=method.config.model_dump(mode="json"),
        data=None if job.data == ANY_DATA else job.data,
        split=asdict(job.split),
        backbone=job.backbone,
        backbone_seen=seen and list(seen),
        seed=job.seed,
        engine=engine,
        sites=sites,
        rounds_planned=method.config.rounds,
    )

    def ended(history: History) -> None:
        write_results(out, facts, history, {})

    hub = ServerHub(sites, call, watch, stop, ended)
    try:
        uploads = method.serve(hub)
    except (MedfedvqaError, AuditError) as error:
        write_results(out, facts, hub.history, {}, failure=str(error))
        raise
    scores = {site: _score(tensors) for site, tensors in uploads.items()}
    results = write_results(out, facts, hub.history, scores)
    write_table(out, results)
    save_transcript(out, hub.history)
    draw_plots(out, results, hub.history)
    return results


def _score(counts: Tensors) -> Score:
    figures: dict[str, Any] = {name: int(count) for name, count in counts.items()}
    return Score(**{"local_correct": None, **figures})
