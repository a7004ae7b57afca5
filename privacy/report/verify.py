"""Checks a report: its signature, its proofs, and that every figure follows from the quoted evidence.

Wording is not a figure: the signature covers it, and it is compared only if the same code made the report.

An edited figure is found even if the site itself signed the report again. The job's settings, counts of attacks,
accuracies and a store's manifest are the site's own statements, and nothing here vouches for them. Only the figures
that follow from them are computed again.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from audits import AuditError, Judgement, NoteError, VerdictPart, VerifierKey, origin_of
from audits.bounded_files import MAX_DOCUMENT, read_bounded
from audits.checkpoint import SUCCESSIONS, read_successions, succeeded
from audits.entry import parse_any
from audits.envelope import open_envelope, subjects
from audits.escaping import quantity
from audits.judgement import BROKEN, NOT_COMPARED, NOT_SHOWN, SHOWN
from audits.log_files import lines_from
from audits.witness import KEYS, read_keys
from privacy.analysis import recomputes_at
from privacy.errors import PrivacyError
from privacy.ledger_journal import read_export
from privacy.report.build import Parameters, report_of
from privacy.report.facts import NewerReport, ReportError, ReportFacts
from privacy.report.figures import Report, differences
from privacy.report.report_files import ENVELOPE, HTML, JSON, MAX_REPORT, PDF, PREDICATE, predicate, read_report
from privacy.withdrawn import CodeIdentity, Withdrawal, identities, withdrawal_of, withdrawals

CODE = "code"
"""The name of the part about withdrawn versions."""


def verify_report(
    path: Path,
    key: VerifierKey | None = None,
    log: Path | None = None,
    ledger: Path | None = None,
    withdrawn: Path | None = None,
    code_digest: str = "",
) -> Judgement:
    """Verifies a report and returns the state of each of its parts.

    `path`: its folder, or its JSON next to the other files. `key`: the site's, from a trusted source.
    `log`: the site's audit folder, `ledger`: an export of its ledger, to compare with the report's quotations.
    `withdrawn`: versions whose epsilons are withdrawn, besides those that this package lists.
    `code_digest`: the running code's; the wording of a report made by the same code is compared as well.

    Raises `ReportError` if there is no report to read, `SettingsError` if `withdrawn` names no such list.
    """
    listing = withdrawals(withdrawn)
    folder = path if path.is_dir() else path.parent
    content = _read(folder / JSON if path.is_dir() else path)
    try:
        report = read_report(content)
    except NewerReport as error:
        newer = VerdictPart("schema", NOT_SHOWN, str(error))
        return Judgement((newer, *_signature(None, content, key, folder), *_tool_withdrawal(content, listing)))
    except ReportError as error:
        return Judgement((VerdictPart("schema", BROKEN, str(error)), *_tool_withdrawal(content, listing)))
    parts = (
        VerdictPart("schema", SHOWN, "the report is one that this version reads, and written as such"),
        _key(report, key, log),
        *_signature(report, content, key, folder),
        _proofs(report),
        *_figures(report, code_digest),
        _code(report, listing),
        *((_log(report, log),) if log else ()),
        *((_ledger(report, ledger),) if ledger else ()),
        _complete(report, log),
        _rules(report),
    )
    return Judgement(parts)


def _read(path: Path) -> bytes:
    try:
        return read_bounded(path, MAX_REPORT)
    except OSError as error:
        raise ReportError(f"no report can be read: '{path.name}' ({error.strerror})") from None


def _key(report: Report, key: VerifierKey | None, log: Path | None) -> VerdictPart:
    site_key = key or (read_keys(log / KEYS).get(origin_of(report.evidence.site)) if log else None)
    if site_key is None:
        return VerdictPart("key", NOT_SHOWN, "pass --key with the key that the site gave you; this key is the report's")
    successions = read_successions(log / SUCCESSIONS) if log else []
    if not succeeded(site_key, successions).knows(VerifierKey.parse(report.evidence.log.key)):
        return VerdictPart("key", BROKEN, "the report is signed with another key than the site's")
    return VerdictPart("key", SHOWN, "the report is about the log of the key that was given")


def _signature(report: Report | None, content: bytes, key: VerifierKey | None, folder: Path) -> Iterator[VerdictPart]:
    try:
        envelope = read_bounded(folder / ENVELOPE, MAX_DOCUMENT)
    except FileNotFoundError:
        yield VerdictPart("signature", NOT_SHOWN, f"who signed it: there is no {ENVELOPE} beside it")
        return
    except OSError as error:
        yield VerdictPart("signature", BROKEN, f"{ENVELOPE} cannot be read ({error.strerror})")
        return
    try:
        signed = open_envelope(
            envelope, key or VerifierKey.parse(report.evidence.log.key if report else _key_in(content))
        )
    except NoteError as error:
        yield VerdictPart("signature", BROKEN, str(error))
        return
    digests, about = subjects(signed), (signed.get("predicateType"), signed["predicate"])
    same = report is None or about == (PREDICATE, predicate(report))
    if digests.get(JSON) != sha256(content).hexdigest() or not same:
        yield VerdictPart("signature", BROKEN, "what was signed is another report: this one was edited")
        return
    yield VerdictPart("signature", SHOWN, "the site's key has signed exactly these bytes")
    yield _pages(digests, folder)


def _key_in(content: bytes) -> str:
    """The key in a report of a newer version; empty if it is not in the same place as in this version's."""
    try:
        return str(json.loads(content)["evidence"]["log"]["key"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""


def _pages(digests: Mapping[str, str], folder: Path) -> VerdictPart:
    """Whether HTML and PDF are there, and have the digests that were signed."""
    if digests.keys() - {JSON, HTML, PDF}:
        return VerdictPart("pages", BROKEN, "what was signed names files that no report has")
    absent = [name for name in digests if name != JSON and not (folder / name).is_file()]
    for name in digests.keys() - {JSON, *absent}:
        if _digest(folder / name) != digests[name]:
            return VerdictPart("pages", BROKEN, "a page is not the one that was signed: it was edited")
    if absent:
        return VerdictPart("pages", NOT_SHOWN, f"{', '.join(sorted(absent))}: signed, but missing here")
    if unsigned := [name for name in (HTML, PDF) if name not in digests and (folder / name).exists()]:
        return VerdictPart("pages", BROKEN, f"{', '.join(unsigned)} was never signed")
    return VerdictPart("pages", SHOWN, f"{quantity(len(digests) - 1, 'page')}: as signed with the report")


def _digest(page: Path) -> str:
    """The SHA-256 of a page; empty if the page cannot be read."""
    try:
        return sha256(read_bounded(page, MAX_DOCUMENT)).hexdigest()
    except OSError:
        return ""


def _proofs(report: Report) -> VerdictPart:
    try:
        facts = ReportFacts.of(report.evidence)
    except NewerReport as error:
        return VerdictPart("proofs", NOT_SHOWN, str(error))
    except ReportError as error:
        return VerdictPart("proofs", BROKEN, str(error))
    excerpt = facts.excerpt
    text = f"{quantity(len(facts.entries), 'entry', 'entries')} of the log and "
    text += f"{quantity(len(report.evidence.ledger), 'record')} of the ledger hold"
    if not excerpt.cosigners:
        return VerdictPart("proofs", SHOWN, f"{text}; no other party cosigned the log")
    parties = quantity(len(excerpt.cosigners), "other party", "other parties")
    return VerdictPart("proofs", SHOWN, f"{text}; {parties} cosigned {quantity(excerpt.cosigned, 'entry', 'entries')}")


def _figures(report: Report, code_digest: str) -> Iterator[VerdictPart]:
    try:
        fresh = report_of(report.evidence, _parameters(report))
    except NewerReport as error:
        yield VerdictPart("figures", NOT_SHOWN, str(error))
        return
    except (PrivacyError, AuditError):
        yield VerdictPart("figures", BROKEN, "no report can be made of the evidence that is quoted")
        return
    where = next(differences(report.rows, fresh.rows, report.lacks), None)
    deltas = (value for row, value in fresh.rows.items() if row.endswith(".delta") and isinstance(value, float))
    if where and not recomputes_at(min(deltas, default=1.0)):
        text = f"{where} cannot be computed at so small a delta without Opacus: install medfedvqa[train] to verify it"
        yield VerdictPart("figures", NOT_SHOWN, text)
        return
    if where:
        by = f"medfedvqa {report.evidence.tool.version} wrote it"
        yield VerdictPart("figures", BROKEN, f"{where} is not what this version makes of the evidence ({by})")
    else:
        yield VerdictPart("figures", SHOWN, "all figures follow from what is quoted, by both accountants")
    yield from _own_parameters(_parameters(report))
    yield _wording(report, fresh, code_digest)


def _parameters(report: Report) -> Parameters:
    """The report's own parameters; this version's if the report has none."""
    summary = report.sections.summary
    return Parameters(summary.wrongly, summary.most_counted) if summary else Parameters()


def _own_parameters(theirs: Parameters) -> Iterator[VerdictPart]:
    """Yields a part that names the parameters of a report that was made with others than this version's: no breach."""
    if theirs != (ours := Parameters()):
        text = f"{theirs.wrongly:g} of people accused wrongly, jobs that fit counted to {theirs.most_counted}"
        text = f"the report computes with its own: {text} (this version: {ours.wrongly:g}, {ours.most_counted})"
        yield VerdictPart("parameters", SHOWN, text)


def _wording(report: Report, fresh: Report, code_digest: str) -> VerdictPart:
    """Whether the sentences are those that this code writes; not compared if other code made the report."""
    if report.evidence.tool.code_digest != code_digest:
        text = "other code wrote the sentences: no figure depends on them, and the signature covers them"
        return VerdictPart("wording", NOT_COMPARED, text)
    if where := next(differences(report.rows, fresh.rows, report.lacks, words=True), None):
        return VerdictPart(
            "wording", BROKEN, f"{where} is not what the code that made the report writes: it was edited"
        )
    return VerdictPart("wording", SHOWN, "all sentences are those that this code writes")


def _code(report: Report, listing: Sequence[Withdrawal]) -> VerdictPart:
    """Whether none of the versions that ran the job or made the report is withdrawn."""
    if not report.sections.claim.made:
        return VerdictPart(CODE, SHOWN, "the report claims no epsilon that could be withdrawn")
    records = [
        record.record for record in report.evidence.log.entries if record.record.get("job") == report.evidence.job
    ]
    try:
        parts = [
            identities(record.get("code_version"), record.get("code_digest"), record.get("code")) for record in records
        ]
        ran = [identity for names in parts for identity in names]
    except AuditError:
        return VerdictPart(CODE, NOT_SHOWN, "which code ran the job: an entry that is quoted does not name it readably")
    tool = report.evidence.tool
    if withdrawal := withdrawal_of([*ran, CodeIdentity(tool.version, tool.code_digest)], listing):
        return _withdrawal_part(withdrawal)
    if not any(code.version for code in ran):
        return VerdictPart(CODE, NOT_SHOWN, "no quoted entry names the version that ran the job")
    return VerdictPart(CODE, SHOWN, "no version that ran the job or made the report is withdrawn")


def _withdrawal_part(withdrawal: Withdrawal) -> VerdictPart:
    if withdrawal.exact_arithmetic:
        return VerdictPart(CODE, NOT_SHOWN, f"that the epsilon of this job holds: {withdrawal.sentence}")
    return VerdictPart(
        CODE, NOT_SHOWN, f"the epsilon of this job was computed by a withdrawn version: {withdrawal.sentence}"
    )


def _tool_withdrawal(content: bytes, listing: Sequence[Withdrawal]) -> Iterator[VerdictPart]:
    """Yields a part if the version that made the report, as its JSON names it, is withdrawn."""
    try:
        tool = json.loads(content)["evidence"]["tool"]
        withdrawal = withdrawal_of([CodeIdentity(tool["version"], tool["code_digest"])], listing)
    except (ValueError, KeyError, TypeError, RecursionError):
        return
    if withdrawal:
        yield _withdrawal_part(withdrawal)


def _log(report: Report, folder: Path) -> VerdictPart:
    """Compares with the site's log: it has all quoted entries, and no other entry of the job."""
    log, size = report.evidence.log, report.sections.identity.log_entries
    try:
        hashes, newer = ({item.record["seq"]: item.record["leaf_hash"] for item in log.entries}, False)
        for line in islice(lines_from(folder, log.first), size - log.first):
            record, unknown = parse_any(line)
            newer = newer or unknown
            quoted_hash = hashes.pop(record["seq"], None)
            if quoted_hash != record["leaf_hash"] and (quoted_hash or record.get("job") == report.evidence.job):
                text = "the log has another entry, or one of the job that the report leaves out"
                return VerdictPart("log", BROKEN, text, record["seq"])
    except (AuditError, OSError) as error:
        cause = error.strerror if isinstance(error, OSError) else error
        return VerdictPart("log", BROKEN, f"the log does not have the entries that are quoted: {cause}")
    except (KeyError, TypeError, ValueError, OverflowError):
        return VerdictPart("log", BROKEN, "what is quoted of the log are not entries of one")
    if hashes:
        return VerdictPart("log", BROKEN, "the log lacks entries that are quoted")
    if newer:
        return VerdictPart("log", NOT_SHOWN, "the log has what is quoted, and entries of a newer version")
    return VerdictPart("log", SHOWN, "the log has what is quoted, and no more of the job under that checkpoint")


def _ledger(report: Report, export: Path) -> VerdictPart:
    try:
        rows = read_export(export)
    except PrivacyError as error:
        return VerdictPart("ledger", BROKEN, str(error))
    if [row.hash for row in rows[: len(report.evidence.ledger)]] != [row.hash for row in report.evidence.ledger]:
        return VerdictPart("ledger", BROKEN, "the ledger that was given is not the one that is quoted")
    return VerdictPart("ledger", SHOWN, "the ledger that was given begins with the records that are quoted")


def _complete(report: Report, log: Path | None) -> VerdictPart:
    proofs = report.sections.egress.proofs
    if proofs.expired:
        text = f"{quantity(proofs.expired, 'entry', 'entries')} of the log expired"
        return VerdictPart("all of it", NOT_SHOWN, text)
    if proofs.not_quoted and not log:
        omitted = quantity(proofs.not_quoted, "entry", "entries")
        text = f"{omitted} of other jobs not quoted: give the log to rule out others (--log)"
        return VerdictPart("all of it", NOT_SHOWN, text)
    return VerdictPart("all of it", SHOWN, "no entry of the job is left out")


def _rules(report: Report) -> VerdictPart:
    broken_rules = [rule.rule for rule in report.sections.verdicts.rules if rule.state == "broken"]
    if broken_rules:
        return VerdictPart("rules", BROKEN, f"the report states broken rules: {', '.join(broken_rules)}")
    return VerdictPart("rules", SHOWN, "no rule is reported broken; section L has what is not shown")


def as_record(judgement: Judgement) -> dict[str, Any]:
    """The judgement as plain JSON."""
    parts = [
        {"name": part.name, "state": part.state, "said": part.said, "entry": part.entry} for part in judgement.parts
    ]
    record: dict[str, Any] = json.loads(json.dumps({"state": judgement.state, "parts": parts}))
    return record
