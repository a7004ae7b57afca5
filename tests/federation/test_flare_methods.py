"""Every method as a FLARE job in a provisioned federation, logged to the byte.

`make test` runs three of the jobs: a mean, a private mixture, and a mean on shares.
"""

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from phantoms import BACKBONE, PATIENCE, Phantoms

from audits import Kind, Outcome, TensorSpec, verify
from medfedvqa.cli.privacy_matrix import refusal
from medfedvqa.core import method_names, method_type
from medfedvqa.core.method import TESTED
from medfedvqa.federation.flare.recipe import export_job
from medfedvqa.federation.job import JobSpec, Terms
from medfedvqa.federation.job_signature import federation_of
from medfedvqa.federation.site_state import StateFile
from medfedvqa.models import shape_of
from medfedvqa.papers.networks.trunks import TRUNKS
from privacy import DPSettings

SITES = ("site-001", "site-002", "site-003")
QUICK = {
    "rounds": 1, "local_epochs": 2, "local_unit": "batches", "batch_rows": 16, "blocks": 1, "hidden": 16,
    "steps": 2, "public_pairs": 8, "test_pairs": 8, "units": 32,
}  # fmt: skip
MORE = {name: {"trunk": "medclip2-slake"} for name in ("creamfl", "fedet", "fedgems")}
"""Options that one method has, or has in a sense of its own. These have a model at the server."""
PRIVATE = {"answers": "closed", "weighting": "uniform", "local_epochs": 1}
PRIVACY = DPSettings(noise=1.0, count_noise=1.0, sample_rate=0.5, expected_patients=4, physical_patients=8)
IN_CLEAR, WITH_PRIVACY, ON_SHARES = "in clear", "differential privacy", "secure aggregation"
"""Protections of a job, by the names of the privacy matrix."""
Case = tuple[str, str]
"""A method, with a trunk behind a slash if it trains one, and its protection."""
TRUNKED: list[Case] = [(f"unicon/{name}", ON_SHARES) for name in TRUNKS]
CASES: list[Case] = [
    *((name, IN_CLEAR if refusal(name, IN_CLEAR) is None else ON_SHARES) for name in method_names()),
    ("prompt_pfl", WITH_PRIVACY),
    ("fedavg", ON_SHARES),
    ("statistics", IN_CLEAR),
    ("statistics", ON_SHARES),
    *TRUNKED,
]
IN_EVERY_TIER: set[Case] = {
    ("fedavg", IN_CLEAR),  # a mean
    ("prompt_pfl", WITH_PRIVACY),  # a mixture for each site
    ("fedavg", ON_SHARES),
}
OF_ITS_KIND: set[Case] = {
    ("creamfl", IN_CLEAR),  # representations, and a model at the server
    ("split_learning", ON_SHARES),  # features and gradients between sites in every step
}
"""What FLARE carries otherwise than those above. `methods/test_all_methods.py` runs every method in process, through
the same gate and log; through FLARE the others run before a release."""


@pytest.fixture(scope="module")
def federation(phantoms: Callable[..., Phantoms]) -> Phantoms:
    """Three phantom sites that allow every method. Two jobs on shares train alike: what they put into their sums is
    compared."""
    kinds = [kind.value for kind in Kind]
    return phantoms(SITES, introduced=True, methods=list(method_names(training=False)), kinds=kinds, repeatable_noise=1)


def tier(case: Case) -> tuple[pytest.MarkDecorator, ...]:
    """The mark of a case: one trunk stands for all of them, except in a release's tests."""
    if case in TRUNKED[:3] + TRUNKED[4:]:
        return (pytest.mark.release,)
    if case in IN_EVERY_TIER:
        return ()
    return (pytest.mark.slow if case in OF_ITS_KIND else pytest.mark.release,)


def job_of(method: str, protection: str) -> JobSpec:
    """A short job."""
    method, _, trunk = method.partition("/")
    known = method_type(method).config_type.model_fields
    private = protection == WITH_PRIVACY
    options = {name: value for name, value in (QUICK | (PRIVATE if private else {})).items() if name in known}
    options |= MORE.get(method, {})
    if trunk:
        options = {**options, "trunk": trunk, "trunk_width": 16, "tuning": "full", "rounds": 2}
    job = {"method": method, "options": options, "data": "phantom", "backbone": BACKBONE}
    return JobSpec(**job, dp=PRIVACY if private else None, secagg=protection == ON_SHARES)


def sites_of(protection: str) -> tuple[str, ...]:
    """Two, or the three that aggregating on shares needs."""
    return SITES if protection == ON_SHARES else SITES[:2]


def selected(session: pytest.Session) -> list[Case]:
    """The cases of this module that the session runs, in its order."""
    return [
        (item.callspec.params["method"], item.callspec.params["protection"])
        for item in session.items
        if isinstance(item, pytest.Function) and item.function is test_a_submitted_job_runs_and_logs_the_declared_bytes
    ]


@pytest.fixture(scope="module")
def submit(federation: Phantoms, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], str]:
    """Submits a case's job, unless it is submitted already; its id."""
    folder = tmp_path_factory.mktemp("jobs")

    @cache
    def submit(method: str, protection: str) -> str:
        job = folder / f"{method} {protection}".replace(" ", "-").replace("/", "-")
        # A site takes a private job once only, by its terms.
        terms = Terms.fresh(federation_of(federation.admin_kit / "startup" / "rootCA.pem"), sites_of(protection))
        export_job(job_of(method, protection).model_copy(update={"terms": terms}), job)
        meta = job / "meta.json"
        deployed = {"deploy_map": {"app": ["server", *sites_of(protection)]}}
        meta.write_text(json.dumps(json.loads(meta.read_text()) | deployed))
        return federation.submit(job)

    return submit


@pytest.mark.parametrize(
    ("method", "protection"),
    [pytest.param(*case, marks=tier(case)) for case in CASES],
)
def test_a_submitted_job_runs_and_logs_the_declared_bytes(
    method: str,
    protection: str,
    federation: Phantoms,
    submit: Callable[[str, str], str],
    request: pytest.FixtureRequest,
) -> None:
    """It finishes, beside another job at the same sites; every log verifies, and each release and message is as large
    as the exchange says. Trunks have two rounds, others one."""
    order = selected(request.session)
    # While one job ends, the next one begins.
    job_id, *_ = [submit(*case) for case in order[order.index((method, protection)) :][:2]]
    job = job_of(method, protection)
    assert federation.wait(job_id, PATIENCE) == "FINISHED:COMPLETED"
    results = federation.outcome(job_id)
    assert (results["status"], results["method"]) == ("finished", job.method)
    assert (results["server_model"] is not None) is (job.method in MORE)
    exchange = job.build().final_exchange(shape_of(BACKBONE))
    for site in sites_of(protection):
        assert verify(federation.kits / site / "audit").ok
        log = federation.log(site, job_id)
        sent = [entry for entry in log if entry.outcome == Outcome.SENT]
        received = [entry for entry in log if entry.outcome == Outcome.ACCEPTED]
        assert sent and received and ("/" not in method or {entry.round for entry in sent} == {1, 2})
        assert all(entry.nbytes == nbytes(exchange.task(entry.task).up, entry.peer) for entry in sent)
        assert all(entry.nbytes == nbytes(exchange.task(entry.task).down, entry.peer) for entry in received)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["fedavg", *(pytest.param(name, marks=pytest.mark.release) for name in ("feddat", "fedp3"))]
)
def test_crypten_gives_the_mean_of_the_masks(
    method: str, federation: Phantoms, submit: Callable[[str, str], str], tmp_path: Path
) -> None:
    """From the same seed every site ends with the same mean, bit for bit. With CrypTen its log says that it shared its
    part, that a sum of all was opened, and that nothing under masks left."""
    export_job(JobSpec.from_dict(job_of(method, ON_SHARES).to_dict() | {"secagg": "crypten"}), tmp_path / "job")
    means = []
    for job_id in (submit(method, ON_SHARES), federation.submit(tmp_path / "job")):
        assert federation.wait(job_id, PATIENCE) == "FINISHED:COMPLETED"
        saved = {site: StateFile(federation.kits / site / "state", job_id).load() for site in SITES}
        means.append({site: state.state[TESTED] for site, state in saved.items() if state is not None})
    masked, summed = means
    assert masked.keys() == summed.keys() == {*SITES}
    for site in SITES:
        assert masked[site] and masked[site].keys() == summed[site].keys()
        assert all(torch.equal(masked[site][name], summed[site][name]) for name in masked[site])
        log = federation.log(site, job_id)
        shared = [(entry.task, entry.peer) for entry in log if entry.outcome == Outcome.SENT and entry.sharing]
        assert shared == [("start/mean", "sites"), ("start/mean/sum", "server")]


@pytest.mark.slow
def test_a_later_step_on_shares_is_one_task(federation: Phantoms, tmp_path: Path) -> None:
    """Of a stepwise job only the first mean has tasks of its own; then a site sends its masked answer, and no other."""
    options = {"schedule": "stepwise", "tuning": "classifier", "rounds": 3, "batch_rows": 16, "hidden": 16, "units": 32}
    fields = {"method": "fedavg", "options": options, "data": "phantom", "backbone": BACKBONE, "secagg": True}
    job = JobSpec.from_dict(fields)
    export_job(job, tmp_path / "job")
    job_id = federation.submit(tmp_path / "job")
    assert federation.wait(job_id, PATIENCE) == "FINISHED:COMPLETED"
    declared = job.build().final_exchange(shape_of(BACKBONE)).task("train/masked").up
    for site in SITES:
        sent = [
            entry for entry in federation.log(site, job_id) if (entry.outcome, entry.peer) == (Outcome.SENT, "server")
        ]
        tasks = [(entry.task, entry.round) for entry in sent if entry.round > 1]
        assert tasks == [("train/masked", 2), ("train/masked", 3), ("evaluate", 3)]
        assert {entry.nbytes for entry in sent if entry.task == "train/masked"} == {nbytes(declared, "server")}
        assert verify(federation.kits / site / "audit").ok


def nbytes(specs: Sequence[TensorSpec], peer: str) -> int:
    """What is declared for this peer."""
    return sum(spec.nbytes for spec in specs if peer in spec.recipients)
