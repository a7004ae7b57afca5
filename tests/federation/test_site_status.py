"""The job `site_status`: what sites say of budget and log, and that they look at no data for it."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from in_process import Sites

from audits import (
    AuditKey,
    AuditLog,
    Event,
    Kind,
    Outcome,
    VerdictState,
    Witness,
    examine,
    origin_of,
    read,
    verify,
)
from medfedvqa.core import method_names
from medfedvqa.errors import FederationError
from medfedvqa.federation.hub import Reply, TaskCall
from medfedvqa.federation.server_receipts import ServerReceipts
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_status import EXCHANGE, NAME, StatusRuntime, markdown, serve_status
from privacy import Ledger, Limits, PlannedTask, SampledGaussian

BUDGET = {"methods": [NAME], "kinds": ["public"], "require_dp": True, "max_epsilon": 8.0, "delta": 1e-3}
"""The policy of a site that lets nothing out but what is private or public."""
EVENT = SampledGaussian(0.5, 4.0, 10)


def spend(config: SiteConfig, job: str, patients: list[str], rounds: int = 2) -> None:
    """A job that charges the first of its rounds and holds budget for the others."""
    plan = [PlannedTask("train", number, (EVENT,)) for number in range(1, rounds + 1)]
    ledger, limits = Ledger(config.ledger, config.name), Limits(8.0, 1e-3)
    ledger.reserve(job, "prompt_pfl", patients, plan, limits)
    ledger.begin(job, "train", 1, limits)
    ledger.close()


def asked(configs: dict[str, SiteConfig], out: Path) -> dict[str, Any]:
    """The job over these sites, in this process."""

    def answer(call: TaskCall) -> dict[str, Reply]:
        ((site, message),) = call.messages.items()
        runtime = StatusRuntime(configs[site], "status-job")
        try:
            tensors, said = runtime.answer(call.task, call.round, message, call.audit_bytes[site])
            return {site: Reply(tensors, 0.0, said)}
        except Exception as error:
            raise FederationError(f"site '{site}' stopped the job: {error}") from error
        finally:
            runtime.close()

    with closing(ServerReceipts(EXCHANGE, "status-job", tuple(configs), out / "notary", out)) as notary:
        return serve_status(tuple(configs), answer, out, notary)


def test_the_servers_receipt_covers_the_answer(sites: Sites, tmp_path: Path) -> None:
    """The log that a status table speaks of is in the server's hands, the answer itself included."""
    configs = sites("chest", **BUDGET)
    asked(configs, tmp_path)
    found = examine(configs["chest"].audit, "chest", [tmp_path], network=False)
    assert found.consistency.state is VerdictState.SHOWN


def test_a_site_that_releases_private_figures_only_still_answers(sites: Sites, tmp_path: Path) -> None:
    """Spent, reserved, limit, jobs; the entries and the head of the log as it was before the answer."""
    configs = sites("chest", **BUDGET)
    spend(configs["chest"], "job-1", ["a", "b"])
    found = asked(configs, tmp_path)["sites"]["chest"]
    assert 0 < found["spent"] < found["authorised"] < found["limit"] == 8.0
    assert (found["jobs"], found["delta"]) == (1, 1e-3)
    entries = list(read(configs["chest"].audit))
    assert entries[found["entries"] - 1].leaf_hash == found["head"]
    assert [str(entry.event) for entry in entries[found["entries"] - 1 :]] == ["receive", "release", "close"]
    assert found["head"] in (tmp_path / "status.md").read_text()


def test_sites_that_know_each_others_logs_find_nothing_amiss(sites: Sites, tmp_path: Path) -> None:
    """Asked again, one after the other: a log that has grown since is no finding to a site that was not asked yet."""
    configs = sites("chest", "head", organ="chest", **BUDGET)
    for config in configs.values():
        known = AuditKey.at(config.audit_key, origin_of(config.name))
        for other in configs.values():
            log = AuditLog(other.audit, other.name, AuditKey.at(other.audit_key, origin_of(other.name)))
            log.append(Event.RECOVERED)
            witness = Witness(config.audit, known)
            if other is not config:
                witness.introduce(AuditKey.at(other.audit_key, origin_of(other.name)).public)
                witness.cosign(log.checkpoint())
            log.close()
    asked(configs, tmp_path)
    assert not [entry for config in configs.values() for entry in read(config.audit) if entry.event is Event.FINDING]


def test_nothing_is_told_of_who_was_in_which_job(sites: Sites, tmp_path: Path) -> None:
    """Two jobs on the same patients and two on others give the same figures, though the worst patient's differ."""
    configs = sites("chest", "head", organ="chest", **BUDGET)
    for job, patients in (("job-1", ["a", "b"]), ("job-2", ["a", "b"])):
        spend(configs["chest"], job, patients)
    for job, patients in (("job-1", ["a", "b"]), ("job-2", ["c", "d"])):
        spend(configs["head"], job, patients)
    worst = [max(a.spent.epsilon for a in Ledger(c.ledger, c.name).accounts(1e-3)) for c in configs.values()]
    assert worst[0] > worst[1]
    answers = asked(configs, tmp_path)["sites"].values()
    told = [{name: site[name] for name in ("spent", "authorised", "jobs")} for site in answers]
    assert told[0] == told[1] and told[0]["spent"] == worst[0]


def test_all_that_leaves_is_declared_public_and_logged(sites: Sites, tmp_path: Path) -> None:
    """One release of the declared tensors, nothing before and nothing after."""
    configs = sites("chest", **BUDGET)
    asked(configs, tmp_path)
    (sent,) = [entry for entry in read(configs["chest"].audit) if entry.outcome == Outcome.SENT]
    assert {tensor.name for tensor in sent.tensors} == {spec.name for spec in EXCHANGE.task("status").up}
    assert {tensor.kind for tensor in sent.tensors} == {Kind.PUBLIC} and sent.method == NAME


def test_no_data_is_opened(sites: Sites, tmp_path: Path) -> None:
    """A site whose data and backbone cannot be read answers all the same, and makes no ledger where there is none."""
    configs = sites("chest", root=str(tmp_path / "nowhere"), reader="vqa-rad", **BUDGET)
    found = asked(configs, tmp_path)["sites"]["chest"]
    assert (found["spent"], found["authorised"], found["jobs"]) == (0.0, 0.0, 0)
    assert not configs["chest"].ledger.exists() and not configs["chest"].state.exists()


def test_a_site_that_does_not_list_the_job_refuses_and_the_others_answer(sites: Sites, tmp_path: Path) -> None:
    """The table says who refused and why."""
    configs = sites("chest", "head", organ="chest", **BUDGET)
    silent = replace(configs["chest"].policy, methods=("prompt_pfl",))
    configs["chest"] = configs["chest"].model_copy(update={"policy": silent})
    answers = asked(configs, tmp_path)["sites"]
    assert "does not allow the method 'site_status'" in answers["chest"]["refused"]
    assert answers["head"]["entries"] and "site 'chest' stopped" in (tmp_path / "status.md").read_text()


def test_a_log_that_was_changed_has_no_head_to_tell(sites: Sites, tmp_path: Path) -> None:
    """The site says that its log does not hold, and nothing else."""
    configs = sites("chest", **BUDGET)
    asked(configs, tmp_path)
    log = configs["chest"].audit / "log.jsonl"
    first, rest = log.read_text().split("\n", 1)
    log.write_text(first.replace('"method":"site_status"', '"method":"prompt_pfl"') + "\n" + rest)
    assert not verify(configs["chest"].audit).ok
    assert "the audit log is broken" in asked(configs, tmp_path)["sites"]["chest"]["refused"]


@pytest.mark.parametrize("lost", ["set back", "removed"])
def test_a_ledger_that_lacks_a_logged_charge_is_refused(lost: str, sites: Sites, tmp_path: Path) -> None:
    """As after restoring an older backup of the ledger beside a newer log."""
    configs = sites("chest", **BUDGET)
    spend(configs["chest"], "job-1", ["a"])
    log = AuditLog(configs["chest"].audit, "chest")
    log.append(Event.RELEASE, dp_event={"ledger": {"seq": 99, "head": "0" * 64}})
    log.close()
    if lost == "removed":
        (configs["chest"].ledger).rename(tmp_path / "elsewhere")
    refused = asked(configs, tmp_path)["sites"]["chest"]["refused"]
    assert "lacks a charge that the audit log recorded" in refused


def test_it_is_no_method() -> None:
    """It trains nothing, so that no benchmark and no matrix lists it."""
    assert NAME not in method_names()


def test_a_name_or_a_refusal_is_no_markup_of_the_table() -> None:
    """A name with a bar is one cell, and a refusal with a link, a tag and a line's end is one item of the list."""
    figures = {"spent": 0.0, "authorised": 0.0, "limit": None, "delta": 1e-5, "jobs": 0, "entries": 1, "head": "00"}
    text = markdown({"a|b\x1b": figures, "c": {"refused": "[x](http://example.org)\n# <b>no</b>"}})
    assert "| a\\|b\\\\u001b | 0.0000 |" in text
    assert text.endswith("- \\[x\\](http\\://example.org)\\\\u000a# \\<b\\>no\\</b\\>\n")
