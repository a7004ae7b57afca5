"""The privacy-budget report of a real job: everything in it follows from the log and the ledger, and shows it."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiers import examples

from audits import AuditKey, Judgement, VerdictState, VerifierKey, origin_of
from medfedvqa.cli.options import config_of
from medfedvqa.data import load_site
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.report.collect import evidence_of
from medfedvqa.version import code_digest
from privacy import Ledger
from privacy.report import (
    Accuracy,
    AccuracyMeasurement,
    Attack,
    AttackEstimate,
    Report,
    ReportError,
    ReportEvidence,
    read_report,
    report_bytes,
    report_of,
    sections_of,
    sign_report,
    verify_report,
)
from privacy.report.egress_and_costs import NOT_COVERED
from privacy.report.figures import differences
from privacy.report.report_files import ENVELOPE, HTML, JSON, PDF, document_bytes

SITE = "chest"
PAGES = {HTML: b"<p>page</p>", PDF: b"%PDF-paper"}


@pytest.fixture(scope="module")
def config(private_run: Path) -> SiteConfig:
    return config_of(private_run / "sites" / SITE / "site.yml")


@pytest.fixture(scope="module")
def report(private_run: Path, config: SiteConfig) -> Report:
    """Of a site that gave the job's settings, and what the other parties hold of its log."""
    return report_of(evidence_of(config, None, private_run / "results.json", None, None, [private_run], False))


@pytest.fixture(scope="module")
def key(config: SiteConfig) -> AuditKey:
    return AuditKey.at(config.audit_key, origin_of(SITE))


@pytest.fixture
def folder(tmp_path: Path, report: Report, key: AuditKey) -> Path:
    """The report's files, signed."""
    return put(tmp_path, report, report_bytes(report), key)


def put(folder: Path, report: Report, said: bytes, key: AuditKey) -> Path:
    files = {JSON: said, **PAGES}
    for name, content in {**files, ENVELOPE: sign_report(report, files, key)}.items():
        (folder / name).write_bytes(content)
    return folder


def broken(found: Judgement) -> list[str]:
    return [part.name for part in found.parts if part.state is VerdictState.BROKEN]


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The way to each figure, sentence and null."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not isinstance(value, dict | list):
        yield path
    for step, item in items:
        yield from leaves(item, (*path, step))


def paths(report: Report) -> list[tuple[str | int, ...]]:
    """All leaves of the report's file but the name of the format."""
    return [path for path in leaves(json.loads(report_bytes(report))) if path != ("format",)]


def is_most_counted(report: Report, path: tuple[str | int, ...]) -> bool:
    return path[0] == "rows" and path[-1] == "value" and list(report.rows)[int(path[1])] == "summary.most_counted"


def edited(value: Any) -> Any:
    """Something else of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return f"{value}x" if isinstance(value, str) else 0.5


def with_edit(report: Report, path: tuple[str | int, ...]) -> bytes:
    """The report's file with one leaf edited."""
    changed = json.loads(report_bytes(report))
    where = changed
    for step in path[:-1]:
        where = where[step]
    where[path[-1]] = edited(where[path[-1]])
    return document_bytes(changed["rows"], changed["evidence"])


def test_the_claim_is_what_the_ledger_says_beside_both_accountants(report: Report, config: SiteConfig) -> None:
    """And the sentence holds the figure, rounded up."""
    ledger = Ledger(config.ledger, SITE)
    [account] = ledger.accounts(1e-5)
    ledger.close()
    claim, spending = report.sections.claim, report.sections.accounting
    assert claim.made and not claim.provisional and claim.epsilon == pytest.approx(account.spent.epsilon)
    assert spending.job and (spending.job.rdp, spending.job.prv) == (account.spent.rdp, account.spent.prv)
    recorded = [item.job_epsilon_after for item in spending.charges]
    assert [item.replayed for item in spending.charges] == pytest.approx(recorded) and len(recorded) == 2
    written_down = float(claim.sentence.partition("epsilon ")[2].partition(" ")[0])
    assert claim.epsilon <= written_down < claim.epsilon + 0.002


def test_every_release_is_listed_with_its_entry_its_proof_and_its_charge(report: Report) -> None:
    """Sums are of the rows; what is under differential privacy names a charge that the report has."""
    egress = report.sections.egress
    quoted = {item.record["seq"]: item.record for item in report.evidence.log.entries}
    charges = {item.record for item in report.sections.accounting.charges}
    assert egress.nbytes == sum(row.nbytes for row in egress.releases) == sum(item.nbytes for item in egress.by_kind)
    assert {row.tensor for row in egress.releases} == {
        "epsilon", "prompt.image", "prompt.text", "accuracy", "fault", "shared_bytes",
        "tuple_seed", "coin_commitment", "coin",
    }  # fmt: skip
    for row in egress.releases:
        assert row.tensor in [tensor["name"] for tensor in quoted[row.entry]["tensors"]]
        assert (row.charge in charges) is row.protection.startswith("dp")
        assert (row.sha256 is None) is row.protection.endswith("masked")


def test_every_rule_that_this_job_can_show_is_shown(report: Report) -> None:
    """It ran in one process, has no limit, was not attacked, and its data are drawn and no store: it says so."""
    not_shown = {item.rule for item in report.sections.verdicts.rules if item.state != "shown"}
    assert not_shown == {"no network", "one budget", "within limits", "attacked", "de-identified"}


def test_a_report_of_a_version_without_bindings_stays_as_it_is(report: Report) -> None:
    """It has no rule about one budget, and is written without the field that it does not know."""
    record = json.loads(report_bytes(report))["evidence"]
    assert record.pop("binding") == {"from_store": False, "bound": False, "compared": False}
    earlier = report_of(ReportEvidence.model_validate_json(json.dumps(record)))
    assert "one budget" not in {item.rule for item in earlier.sections.verdicts.rules}
    assert "binding" not in json.loads(report_bytes(earlier))["evidence"]
    assert read_report(report_bytes(earlier)) == earlier


def test_a_report_with_a_key_from_the_site_verifies_against_log_and_ledger(
    folder: Path, key: AuditKey, config: SiteConfig, tmp_path: Path
) -> None:
    """Everything is shown."""
    ledger = Ledger(config.ledger, SITE)
    ledger.export(tmp_path / "export")
    ledger.close()
    result = verify_report(folder, key.public, config.audit, tmp_path / "export")
    assert result.state is VerdictState.SHOWN, result


def test_without_a_key_from_the_site_it_is_not_shown_whose_report_it_is(folder: Path) -> None:
    """A key that lies in the report itself vouches for nothing."""
    result = verify_report(folder, code_digest=code_digest())
    assert [part.name for part in result.parts if part.state is not VerdictState.SHOWN] == ["key"]
    assert result.state is VerdictState.NOT_SHOWN


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_report_whose_figure_or_sentence_was_edited_is_refused(
    data: st.DataObject, folder: Path, report: Report, key: AuditKey
) -> None:
    """Any leaf of it; the signature is of exactly these bytes."""
    path = data.draw(st.sampled_from(paths(report)))
    (folder / JSON).write_bytes(with_edit(report, path))
    assert verify_report(folder, key.public).state is VerdictState.BROKEN, path


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_an_edit_is_refused_even_if_the_site_itself_signs_it(
    data: st.DataObject, tmp_path: Path, report: Report, key: AuditKey
) -> None:
    """Proofs, chain and recomputation find it; sentences are compared where the same code made the report. How far
    jobs that fit are counted is the report's own choice: where no figure follows from it, it is named and no more."""
    path = data.draw(st.sampled_from(paths(report)))
    text = with_edit(report, path)
    try:
        folder = put(tmp_path, read_report(text), text, key)
    except ReportError:
        return  # the edit leaves no report of this format, or another site's
    digest = report.evidence.tool.code_digest
    result = verify_report(folder, key.public, code_digest=digest)
    named = is_most_counted(report, path) and "parameters" in [part.name for part in result.parts]
    assert {"figures", "proofs", "wording"} & set(broken(result)) or named, path


def test_every_figure_of_the_sections_is_recomputed(report: Report) -> None:
    """No leaf of them is taken as it stands: each, edited by itself, is unlike what follows from the evidence."""
    made = report_of(report.evidence).rows
    assert len(made) > 900 and not list(differences(report.rows, made, words=True))
    for row, value in report.rows.items():
        other = tuple(map(edited, value)) if isinstance(value, tuple) else edited(value)
        expected = [] if other == () else [row]
        assert list(differences({**report.rows, row: other}, made, words=True)) == expected, row


def test_a_report_signed_with_another_key_is_refused(folder: Path, tmp_path: Path, report: Report) -> None:
    """Whether that key lies in the envelope alone or in the report as well."""
    other = AuditKey.at(tmp_path / "other.key", origin_of(SITE))
    trusted = VerifierKey.parse(report.evidence.log.key)
    with pytest.raises(ReportError, match="signs the site's log"):
        sign_report(report, {}, other)
    log = replace(report.evidence.log, key=str(other.public))
    theirs = replace(report, evidence=report.evidence.model_copy(update={"log": log}))
    put(folder, theirs, report_bytes(theirs), other)
    assert {"key", "signature", "proofs"} <= set(broken(verify_report(folder, trusted)))
    assert "proofs" in broken(verify_report(folder))
    (folder / JSON).write_bytes(report_bytes(report))
    assert broken(verify_report(folder, trusted)) == ["signature"]


@pytest.mark.parametrize("page", sorted(PAGES))
def test_an_edited_or_missing_page_is_found(folder: Path, key: AuditKey, page: str) -> None:
    """HTML and PDF are signed with the report; without them the rest still holds."""
    (folder / page).write_bytes(PAGES[page] + b" ")
    assert broken(verify_report(folder, key.public)) == ["pages"]
    (folder / page).unlink()
    assert verify_report(folder, key.public).state is VerdictState.NOT_SHOWN


def told_otherwise(evidence: ReportEvidence) -> dict[str, ReportEvidence]:
    """Lies that the site could try, each with all figures made anew."""
    rows, log = evidence.ledger, evidence.log
    begun = [row for row in rows if row.record and row.record["event"] == "begun"]

    def ledger(*changed: Any) -> ReportEvidence:
        return evidence.model_copy(update={"ledger": tuple(changed)})

    quieter = rows[2].model_copy(update={"record": json.loads(json.dumps(rows[2].record).replace("1.5", "9.5"))})
    hidden = [row.model_copy(update={"record": None}) if row in begun[1:] else row for row in rows]
    fewer = [item for item in log.entries if item.record["event"] != "release"]
    return {
        "more noise": ledger(*rows[:2], quieter, *rows[3:]),
        "a charge withheld": ledger(*hidden),
        "a charge left out": ledger(*(row for row in rows if row not in begun[1:])),
        "no ledger": ledger(),
        "another site's ledger": evidence.model_copy(update={"site": "head"}),
        "releases left out": evidence.model_copy(update={"log": replace(log, entries=tuple(fewer))}),
    }


def test_what_the_site_could_leave_out_or_change_is_noticed(report: Report, config: SiteConfig, key: AuditKey) -> None:
    """The chain and the proofs do not hold, a rule is broken, or the report says that it is not whole."""
    for name, evidence in told_otherwise(report.evidence).items():
        try:
            rules = {item.rule: item.state for item in report_of(evidence).sections.verdicts.rules}
        except ReportError:
            continue
        assert {rules["all of it"], rules["ledger"], rules["charged first"]} & {"broken", "not shown"}, name


def test_releases_that_a_report_leaves_out_are_found_with_the_log(
    tmp_path: Path, report: Report, config: SiteConfig, key: AuditKey
) -> None:
    """Without it the report is not shown to be whole."""
    evidence = told_otherwise(report.evidence)["releases left out"]
    fewer = report_of(evidence)
    put(tmp_path, fewer, report_bytes(fewer), key)
    assert "log" in broken(verify_report(tmp_path, key.public, config.audit))
    result = verify_report(tmp_path, key.public)
    assert "all of it" in [part.name for part in result.parts if part.state is VerdictState.NOT_SHOWN]


def test_a_report_holds_no_identifier_path_question_or_answer(
    private_run: Path, report: Report, config: SiteConfig, folder: Path
) -> None:
    """Nor how many patients there are, nor their keyed digests; looked for in every file and every leaf."""
    data = load_site("phantom", None, SITE, JobSpec(method="prompt_pfl").split, 0)
    ledger = Ledger(config.ledger, SITE)
    digests = {item for row in ledger.rows() if row.record["event"] == "cohort" for item in row.record["patients"]}
    ledger.close()
    text = {*data.trained_patients, *data.train.questions, *data.test.questions, *digests}
    text |= {str(private_run.parent), "site.yml", "cohort.key", "audit.key"}
    everything = "".join(path.read_text("utf-8") for path in folder.iterdir())
    assert len(digests) > 10 and len(data.train.questions) > 10 and not [item for item in text if item in everything]
    record = json.loads(report_bytes(report))
    values = {str(follow(record, path)) for path in leaves(record)}
    assert not set(data.answers) & values
    assert "patients" not in {step for path in leaves(record) for step in path}


def follow(told: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        told = told[step]
    return told


def test_bounds_of_an_attack_are_made_from_its_counts(report: Report) -> None:
    """A claim that the counts refute breaks a rule; the bound is the paper's, not the file's."""
    run = report.evidence.run
    assert run and run.dp
    counts = AttackEstimate(artefact="personal", attack="loss", canaries=200, guessed=200, correct=195)
    same = {name: getattr(run, name) for name in ("method", "options", "data", "backbone", "dp", "sites")}
    claimed = {"claimed_epsilon": 1.0, "claimed_delta": 1e-5, "confidence": 0.95}
    attack = Attack(sha256="0" * 64, attacks=(counts,), **same, **claimed)
    record = sections_of(report.evidence.model_copy(update={"attack": attack}))
    assert (
        record.empirical.refuted and record.empirical.same_settings and record.empirical.attacks[0].epsilon_at_least > 2
    )
    assert {item.rule: item.state for item in record.verdicts.rules}["attacked"] == "broken"
    weak = attack.model_copy(update={"attacks": (counts.model_copy(update={"correct": 100}),)})
    record = sections_of(report.evidence.model_copy(update={"attack": weak}))
    assert record.empirical.lower_bound == 0 and not record.empirical.refuted
    assert {item.rule: item.state for item in record.verdicts.rules}["attacked"] == "shown"


def test_a_kept_model_stands_beside_the_released_one_and_no_epsilon_covers_it(report: Report) -> None:
    """Accuracies follow from the evidence with their intervals; the sentence also stands where only the settings tell
    that the site trained on, and nowhere else."""
    accuracies = {
        name: Accuracy(accuracy=value, low=value - 0.1, high=value + 0.1)
        for name, value in {"private": 0.5, "without": 0.6, "prior": 0.4, "finished": 0.7, "alone": 0.55}.items()
    }
    measured = AccuracyMeasurement(**accuracies, alone_equal=None, same_settings=True, kept="alone")
    record = sections_of(report.evidence.model_copy(update={"measured": measured})).empirical
    assert (record.accuracy_private, vars(record.accuracy_finished)) == (0.5, accuracies["finished"].model_dump())
    assert vars(record.accuracy_alone) == accuracies["alone"].model_dump()
    assert (record.accuracy_alone_equal, record.kept) == (None, "alone")
    assert record.kept_said == f"By validation rows the site keeps the model that it trained alone. {NOT_COVERED}"
    run = report.evidence.run
    assert run
    for epochs, sentence in ((5, NOT_COVERED), (0, None)):
        trained_on = run.model_copy(update={"options": run.options | {"finish_epochs": epochs}})
        evidence = report.evidence.model_copy(update={"run": trained_on, "measured": None})
        assert sections_of(evidence).empirical.kept_said == sentence
    assert sections_of(report.evidence.model_copy(update={"run": None, "measured": None})).empirical.kept_said is None


def test_accuracies_of_the_kept_model_come_from_the_results_that_are_given(
    private_run: Path, config: SiteConfig, tmp_path: Path
) -> None:
    """Those of the site itself, each rounded to three digits; a model that was not trained has none."""
    results = json.loads((private_run / "results.json").read_text())
    entry = {"correct": 7, "accuracy": 0.61237, "interval": [0.50004, 0.71999]}
    for name, own in results["sites"].items():
        chosen = name == SITE
        own |= {"finished": entry if chosen else None, "kept": "finished" if chosen else None, **entry}
        own["baselines"] |= {"alone": {**entry, "accuracy": 0.58}, "alone_equal": None}
    (tmp_path / "private.json").write_text(json.dumps(results))
    (tmp_path / "open.json").write_text(json.dumps({**results, "dp": None}))
    given_files = (tmp_path / "private.json", tmp_path / "open.json")
    measured = evidence_of(config, None, *given_files, None, [private_run], False).measured
    assert measured
    assert measured.finished == Accuracy(accuracy=0.612, low=0.5, high=0.72) and measured.kept == "finished"
    assert measured.alone == Accuracy(accuracy=0.58, low=0.5, high=0.72) and measured.alone_equal is None


def test_a_report_supports_and_never_complies(report: Report) -> None:
    """Each line of a framework points at sections, and none draws a legal conclusion."""
    text = str(report.rows).lower()
    assert not [word for word in ("complies", "compliant", "compliance") if word in text]
    lines = report.sections.mappings
    assert {item.framework for item in lines} == {
        "NIST SP 800-226", "DP deployments registry", "HIPAA", "GDPR", "SATRE", "EU AI Act",
        "European Health Data Space", "ISO/IEC 27001", "ISO/IEC 27701", "ISO/IEC 27559", "ISO/IEC 42001",
        "NIST AI RMF",
    }  # fmt: skip
    assert all(item.evidence and set(item.evidence) <= set("ABCDEFGHIJKL") for item in lines)
