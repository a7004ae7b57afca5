"""The server's side of a job, the same for every engine: it runs the method and writes the results."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from medfedvqa.core import Method
from medfedvqa.errors import ConfigError
from medfedvqa.evaluation import History, RunFacts, Score, draw_plots, save_transcript, write_results, write_table
from medfedvqa.federation.error_codes import ACTIONABLE
from medfedvqa.federation.hub import Engine, ServerHub, TaskAnswer
from medfedvqa.federation.job import ANY_DATA, JobSpec
from medfedvqa.federation.journal import Journal
from medfedvqa.federation.secure_hub import SecureHub
from medfedvqa.federation.server_receipts import ServerReceipts
from medfedvqa.federation.shared_model import MODEL, SharedModel, model_for
from medfedvqa.models import seen_by
from privacy import DPSettings, merge_steps


def serve_job(
    job: JobSpec,
    sites: tuple[str, ...],
    call: Engine,
    out: Path,
    engine: str,
    watch: Callable[[TaskAnswer], None] = lambda event: None,
    stop: Callable[[], bool] = lambda: False,
    receipts: ServerReceipts | None = None,
    journal: Journal | None = None,
    models: Path | None = None,
) -> dict[str, Any]:
    """Run `job` over `sites`, write results, table, transcript and plots into `out`, and return the results.

    Results are written after every round, so that an interrupted run keeps what it reached. With the `journal` of an
    earlier process the run continues where that one died; once there are results, nothing is left in it. The model that
    the sites shared at the end is kept in `out`, and in the folder `models` by its digest, for hospitals that join.
    Raises `FederationError` if a site refuses or fails, once the results record it.
    """
    method = job.build()
    check_sites(job, len(sites))
    pretraining_sets = seen_by(job.backbone)
    facts = RunFacts(
        method=job.method,
        options=method.config.model_dump(mode="json"),
        data=None if job.data == ANY_DATA else job.data,
        split=asdict(job.split),
        backbone=job.backbone,
        backbone_seen=None if pretraining_sets is None else list(pretraining_sets),
        seed=job.seed,
        engine=engine,
        sites=sites,
        expected=job.terms.sites if job.terms else (),
        rounds_planned=method.rounds,
        secagg=job.secagg,
        dp=_privacy(job.dp, method) if job.dp else None,
    )

    def ended(history: History) -> None:
        write_results(out, facts, history, None)

    exchange = method.final_exchange(job.shape)
    context = (job.seed, job.backbone, receipts, method.gathering, job.quorum_rule(), journal)
    hub = _hub(job, method, sites, call, exchange, watch, stop, ended, *context)
    try:
        hub.model = model_for(method, models or out, out)
        uploads = method.serve(hub)
    except ACTIONABLE as error:
        write_results(out, facts, hub.history, None, failure=str(error))
        raise
    scores = {site: score_of(tensors) for site, tensors in uploads.items() if tensors}
    if not job.keeps_scores:
        hub.history.withheld = uploads.keys() - scores.keys()
    results = write_results(out, facts, hub.history, scores)
    write_table(out, results)
    if hub.model:
        kept = SharedModel(job.model_copy(update={"terms": None}), hub.model)
        kept.write(out / MODEL, *([models / f"{kept.digest}.npz"] if models else []))
    save_transcript(out, hub.history)
    draw_plots(out, results, hub.history)
    if journal is not None:
        journal.forget()
    return results


def _privacy(dp: DPSettings, method: Method[Any]) -> dict[str, Any]:
    """The settings, with the noise in force and the mechanisms that the whole job applies to each patient."""
    events = merge_steps(event for task in method.plan() for event in task.events)
    return {**asdict(dp), "noise": method.noise.gradients, "mechanisms": [event.to_dict() for event in events]}


def _hub(job: JobSpec, method: Method[Any], *arguments: Any) -> ServerHub:
    if not job.secagg:
        return ServerHub(*arguments)
    shared = {task: method.declared(job.shape).task(task) for task in method.aggregated}
    rule = job.members_rule()
    return SecureHub(*arguments, on_shares=method.aggregated, shared=shared, least=job.least_sites, rule=rule)


def check_sites(job: JobSpec, count: int) -> None:
    """Raises `ConfigError` if the job asks for more sites than there are, or its method needs more."""
    if count < job.least_sites:
        raise ConfigError(
            f"this job of '{job.method}' needs at least {job.least_sites} sites, and there is {count}: add sites, or "
            "choose a method for fewer, such as `local`"
        )


def score_of(counts: Mapping[str, Any]) -> Score:
    """The score computed from the named counts of a task `evaluate`."""
    return Score(**{name: int(count) for name, count in counts.items()})
