"""What is true of every registered method: a new one joins by being registered."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_clip import TINY

from audits import Kind, read, verify
from medfedvqa.cli.privacy_matrix import CELLS, markdown_matrix, refusal
from medfedvqa.core import EVALUATE, Method, Site, Tensors, create, method_names, method_type, registry, withheld
from medfedvqa.errors import ConfigError
from medfedvqa.federation.hub import Reply, ServerHub, TaskCall
from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_runtime import SiteRuntime
from medfedvqa.models import shape_of
from privacy import DPSettings

Sites = Callable[..., dict[str, SiteConfig]]
QUICK = {
    "rounds": 2, "local_epochs": 2, "local_unit": "batches", "batch_rows": 16, "blocks": 1, "hidden": 16,
    "steps": 2, "aggregate": "none", "public_pairs": 8, "test_pairs": 8, "units": 32,
}  # fmt: skip
MORE = {name: {"trunk": "medclip2-slake"} for name in ("creamfl", "fedet", "fedgems")}
"""Options that one method has, or has in a sense of its own."""
KINDS = [kind.value for kind in Kind]
PRIVATE = {"weighting": "uniform", "answers": "closed", "local_epochs": 1}
ROOT = Path(__file__).parents[2]


def quick(name: str, **options: object) -> dict[str, object]:
    """Those of the options that the method has."""
    known = method_type(name).config_type.model_fields
    return {key: value for key, value in {**QUICK, **MORE.get(name, {}), **options}.items() if key in known}


def job_of(name: str, dp: DPSettings | None = None, **options: object) -> JobSpec:
    settings = {"method": name, "options": quick(name, **options), "data": "phantom", "backbone": TINY}
    return JobSpec.from_dict({**settings, "dp": dp})


@dataclass(frozen=True)
class Run:
    """A whole job in this process, and all messages of it."""

    job: JobSpec
    configs: dict[str, SiteConfig]
    results: dict[str, Any]
    messages: list[tuple[str, int, str, Tensors, Tensors]]
    """Task, round, site, down, up."""


def run(job: JobSpec, configs: dict[str, SiteConfig], out: Path) -> Run:
    engine, messages = LocalEngine(configs, job, "test"), []

    def recorded(call: TaskCall) -> dict[str, Reply]:
        replies = engine.call(call)
        down = call.messages
        messages.extend((call.task, call.round, site, down[site], replies[site].tensors) for site in down)
        return replies

    results = serve_job(job, tuple(configs), recorded, out, "local")
    engine.close()
    return Run(job, configs, results, messages)


@pytest.fixture(scope="module", params=method_names())
def ran(request: pytest.FixtureRequest, sites_in: Sites, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Each method's quick job over two small sites."""
    folder = tmp_path_factory.mktemp(request.param)
    configs = sites_in(folder, "site-001", "site-002", methods=[request.param], kinds=KINDS)
    return run(job_of(request.param), configs, folder / "out")


def test_a_method_is_found_in_the_file_of_its_name() -> None:
    """Each name leads to a file that registers it, and each file registers the methods that lead to it and no other."""
    method_names()
    modules = {name: method.__module__.split(".") for name, method in registry._METHODS.items()}
    ours = {name: module[: module.index("methods") + 2] for name, module in modules.items() if "methods" in module[:3]}
    assert {name: ".".join(module) for name, module in ours.items()} == registry._homes()


def test_every_message_is_exactly_what_the_exchange_declares(ran: Run) -> None:
    """Names, shapes and dtypes, up and down, of every task of the job."""
    exchange = ran.job.build().final_exchange(shape_of(ran.job.backbone))
    assert {task for task, *_ in ran.messages} == {task.name for task in exchange.tasks} - {withheld(EVALUATE)}
    for name, _, _, down, up in ran.messages:
        task = exchange.task(name)
        for declared, message in ((task.down, down), (task.up, up)):
            facts = {spec.name: (spec.shape, spec.dtype) for spec in declared}
            assert {name: (array.shape, str(array.dtype)) for name, array in message.items()} == facts


def test_every_site_s_log_is_whole_and_tells_what_left(ran: Run) -> None:
    """The chain verifies, and its releases are the messages, tensor for tensor."""
    for site, config in ran.configs.items():
        assert not verify(config.audit).torn_bytes
        released = [entry for entry in read(config.audit) if entry.outcome == "sent"]
        sent = [(task, round, up) for task, round, name, _, up in ran.messages if name == site]
        assert [(e.task, e.round, {t.name for t in e.tensors}) for e in released] == [(*m[:2], set(m[2])) for m in sent]
        assert [entry.nbytes for entry in released] == [sum(a.nbytes for a in up.values()) for *_, up in sent]


def test_results_are_counts_of_the_sites_test_rows(ran: Run) -> None:
    """The run finished, and every site was scored."""
    assert ran.results["status"] == "finished" and set(ran.results["sites"]) == set(ran.configs)
    for facts in ran.results["sites"].values():
        assert 0 <= facts["correct"] <= facts["n"] and facts["n"] > 0


def test_a_task_asked_again_is_answered_from_what_was_saved(ran: Run, phantom_site: Site) -> None:
    """A new process's runtime gives the same bytes for the last task, and saves nothing."""
    for name, config in ran.configs.items():
        task, round, _, down, up = next(message for message in reversed(ran.messages) if message[2] == name)
        saved = (config.state / "test.pt").read_bytes()
        runtime = SiteRuntime(config, ran.job, "test", lambda *loaded: phantom_site.backbone)
        again = runtime.handle(task, round, down)
        runtime.close(ended=False)
        assert all(np.array_equal(array, again[tensor]) for tensor, array in up.items()) and up.keys() == again.keys()
        assert (config.state / "test.pt").read_bytes() == saved


def test_a_server_that_starts_anew_sends_the_same_bytes(ran: Run) -> None:
    """Given the answers that the sites gave, the loop makes the same calls with the same messages, bit for bit: so a
    server that died can continue from its journal."""
    recorded = {(task, round, site): (down, up) for task, round, site, down, up in ran.messages}
    calls = []

    def recall(call: TaskCall) -> dict[str, Reply]:
        calls.append((call.task, call.round))
        replies = {}
        for site, message in call.messages.items():
            down, up = recorded[call.task, call.round, site]
            assert {name: array.tobytes() for name, array in message.items()} == {
                name: array.tobytes() for name, array in down.items()
            }
            replies[site] = Reply(up, 0.0)
        return replies

    job = ran.job
    hub = ServerHub(tuple(ran.configs), recall, job.exchange(), seed=job.seed, backbone=job.backbone)
    uploads = job.build().serve(hub)
    assert calls == list(dict.fromkeys((task, round) for task, round, *_ in ran.messages))
    assert set(uploads) == set(ran.configs)


PRIVACY = DPSettings(noise=1.0, count_noise=1.0, sample_rate=0.5, expected_patients=4, physical_patients=8)


def private(name: str) -> Method:
    """The method under differential privacy, or a refusal."""
    return create(name, quick(name, **PRIVATE), PRIVACY)


@pytest.mark.parametrize("name", method_names())
def test_under_differential_privacy_every_upload_carries_it_or_the_job_is_refused(name: str) -> None:
    """A refusal says why; otherwise all that leaves is private, or public."""
    try:
        method = private(name)
    except ConfigError as refusal:
        assert "differential privacy" in str(refusal)
        return
    exchange = method.final_exchange(shape_of(TINY))
    for spec in (spec for task in exchange.tasks for spec in task.up):
        assert spec.protection.private or spec.kind == "public"
    assert method.plan()


def cells(cell: str) -> list[str]:
    """The methods that run so."""
    return [name for name in method_names() if refusal(name, cell) is None]


@pytest.mark.slow
@pytest.mark.parametrize("name", cells("differential privacy"))
def test_a_private_job_runs_to_its_end(name: str, sites_in: Sites, tmp_path: Path) -> None:
    """Noise, charges and the gate together; the scores stay at the sites."""
    configs = sites_in(tmp_path, "site-001", "site-002", methods=[name], kinds=KINDS, repeatable_noise=1)
    done = run(job_of(name, PRIVACY, **PRIVATE), configs, tmp_path / "out")
    assert done.results["status"] == "finished"
    assert all(not up for task, *_, up in done.messages if task == "evaluate")


def kept_scores(configs: dict[str, SiteConfig]) -> dict[str, dict[str, int]]:
    """What each site found at the end of the job, which it keeps."""
    return {site: json.loads((config.state / "test.evaluate.json").read_text()) for site, config in configs.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*cells("secure aggregation")} & {*cells("in clear")}))
def test_on_shares_sites_end_with_the_same_accuracies_as_in_clear(name: str, introduced: Sites, tmp_path: Path) -> None:
    """Three sites; the server sees no upload in clear, and every site answers the same test rows right."""
    found = {}
    for kind, secagg in (("clear", False), ("shares", True)):
        folder = tmp_path / kind
        folder.mkdir()
        allowed = {"methods": [name], "kinds": KINDS, "repeatable_noise": 1}  # both train from the job's seed alone
        configs = introduced("site-001", "site-002", "site-003", **allowed)
        places = {site: {part: folder / site / part for part in ("state", "audit", "ledger")} for site in configs}
        configs = {site: config.model_copy(update=places[site]) for site, config in configs.items()}
        done = run(job_of(name).model_copy(update={"secagg": secagg}), configs, folder / "out")
        assert done.results["status"] == "finished"
        if secagg:
            assert not [name for *_, up in done.messages for name, array in up.items() if array.dtype.kind == "f"]
            found[kind] = {site: score["correct"] for site, score in kept_scores(configs).items()}
        else:
            found[kind] = {site: facts["correct"] for site, facts in done.results["sites"].items()}
    assert found["clear"] == found["shares"]


@pytest.mark.slow
@pytest.mark.parametrize("name", cells("both"))
def test_a_private_job_on_shares_runs_to_its_end(name: str, introduced: Sites, tmp_path: Path) -> None:
    """What is shared carries noise and its charge."""
    configs = introduced("site-001", "site-002", "site-003", methods=[name], kinds=KINDS, repeatable_noise=1)
    job = job_of(name, PRIVACY, **PRIVATE).model_copy(update={"secagg": True})
    assert run(job, configs, tmp_path / "out").results["status"] == "finished"
    for config in configs.values():
        kinds = {record.protection for entry in read(config.audit) for record in entry.tensors}
        assert "dp and masked" in kinds and "dp" not in kinds


def test_the_matrix_in_the_docs_is_what_the_code_says_today() -> None:
    """If this fails: `make generated`."""
    page = (ROOT / "docs" / "methods" / "matrix.md").read_text(encoding="utf-8")
    assert page.endswith(markdown_matrix())


@pytest.mark.parametrize("cell", CELLS)
def test_every_refusal_says_why(cell: str) -> None:
    """In a sentence that names what stands in the way."""
    for name in method_names():
        reason = refusal(name, cell)
        assert reason is None or ("privacy" in reason or "secure aggregation" in reason)


@pytest.mark.parametrize("name", method_names())
def test_every_method_has_its_page(name: str) -> None:
    """With what leaves, the options and the deviations; and the index names it."""
    page = (ROOT / "docs" / "methods" / f"{name}.md").read_text(encoding="utf-8")
    assert all(f"## {part}" in page for part in ("Objective", "What leaves", "Options", "Deviations"))
    assert f"methods/{name}.md" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", method_names())
def test_options_round_trip_as_json(name: str) -> None:
    """What results and job folders hold makes the same method again."""
    config = create(name, quick(name)).config
    assert type(config).model_validate_json(config.model_dump_json()) == config


def test_a_site_that_never_trains_tests_what_the_others_share(sites_in: Sites, tmp_path: Path) -> None:
    """It releases its scores alone, of the last mean, also where the others test their own models."""
    configs = sites_in(tmp_path, "site-001", "site-002", "site-003", methods=["fedavg"])
    done = run(job_of("fedavg", unseen=("site-003",), evaluated="personal"), configs, tmp_path / "out")
    released = [entry.task for entry in read(configs["site-003"].audit) if entry.outcome == "sent"]
    assert released == ["evaluate"] and done.results["sites"]["site-003"]["n"] > 0
    runtime = SiteRuntime(configs["site-003"], done.job, "again")
    with pytest.raises(ConfigError, match="only tests"):
        runtime.handle("start", 1, {})


@pytest.mark.parametrize("unseen", [("site-009",), ("site-001", "site-002")])
def test_unseen_sites_must_be_there_and_leave_some_to_train(
    unseen: tuple[str, ...], sites_in: Sites, tmp_path: Path
) -> None:
    """Refused before anything is trained."""
    configs = sites_in(tmp_path, "site-001", "site-002", methods=["fedavg"])
    with pytest.raises(ConfigError, match="unseen"):
        run(job_of("fedavg", unseen=unseen), configs, tmp_path / "out")


@pytest.mark.parametrize("options", [{"own": "head"}, {"method": "local"}])
def test_unseen_sites_need_something_shared(options: dict[str, str]) -> None:
    """A head that stays, or nothing shared at all, answers nobody else's questions."""
    with pytest.raises(ConfigError, match="unseen"):
        create(options.pop("method", "fedavg"), {"unseen": ("site-009",), **options})
