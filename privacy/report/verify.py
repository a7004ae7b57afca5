"""Checks a report: who signed it, that its proofs hold, and that every figure follows from what it quotes.

A figure that was edited is found even if the site itself signed the report anew. What the report was merely given (the
job's settings, counts of attacks, accuracies, a store's manifest) is the site's word: nothing here vouches for it, but
that what follows from it is computed again.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from audits import AuditError, Judgement, NoteError, Part, State, VerifierKey, opened, origin_of, subjects
from audits.entry import parse_line
from audits.files import MAX_DOCUMENT, read_bounded
from audits.segments import lines_from
from audits.witness import KEYS, read_keys
from privacy.errors import PrivacyError
from privacy.journal import read_export
from privacy.report.build import sections_of
from privacy.report.facts import Facts, ReportError
from privacy.report.files import ENVELOPE, HTML, JSON, MAX_REPORT, PDF, PREDICATE, predicate, read_report
from privacy.report.model import Report
from privacy.report.replay import same
from privacy.withdrawn import CodeIdentity, Withdrawal, identities, withdrawal_of, withdrawals

CODE = "code"
"""The part about withdrawn versions."""


def verify_report(
    path: Path,
    key: VerifierKey | None = None,
    log: Path | None = None,
    ledger: Path | None = None,
    withdrawn: Path | None = None,
) -> Judgement:
    """What is shown of a report, and what is not.

    `path`: its folder, or its JSON in the folder of the others. `key`: the site's, where it is known for sure.
    `log`: the site's audit folder, `ledger`: an export of its ledger, to compare with what the report quotes.
    `withdrawn`: versions whose epsilons are withdrawn, besides those that this package lists.

    Raises `ReportError` if there is no report to read, `SettingsError` if there is no such list.
    """
    listed = withdrawals(withdrawn)
    folder = path if path.is_dir() else path.parent
    said = _read(folder / JSON if path.is_dir() else path)
    try:
        report = read_report(said)
    except ReportError as error:
        return Judgement((Part("schema", State.BROKEN, str(error)), *_withdrawn_tool(said, listed)))
    parts = (
        Part("schema", State.SHOWN, "the report is one of this version, and written as such"),
        _key(report, key, log),
        *_signature(report, said, key, folder),
        _proofs(report),
        _figures(report),
        _code(report, listed),
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
        raise ReportError(f"there is no report to read here ({error.strerror})") from None


def _key(report: Report, key: VerifierKey | None, log: Path | None) -> Part:
    known = key or (read_keys(log / KEYS).get(origin_of(report.evidence.site)) if log else None)
    if known is None:
        return Part("key", State.NOT_SHOWN, "whose key it is: give the one that you have from the site (--key)")
    if str(known) != report.evidence.log.key:
        return Part("key", State.BROKEN, "the report is signed with another key than the site's")
    return Part("key", State.SHOWN, "the report is about the log of the key that was given")


def _signature(report: Report, said: bytes, key: VerifierKey | None, folder: Path) -> Iterator[Part]:
    try:
        envelope = read_bounded(folder / ENVELOPE, MAX_DOCUMENT)
    except FileNotFoundError:
        yield Part("signature", State.NOT_SHOWN, f"who signed it: there is no {ENVELOPE} beside it")
        return
    except OSError as error:
        yield Part("signature", State.BROKEN, f"{ENVELOPE} cannot be read ({error.strerror})")
        return
    try:
        told = opened(envelope, key or VerifierKey.parse(report.evidence.log.key))
    except NoteError as error:
        yield Part("signature", State.BROKEN, str(error))
        return
    digests, about = subjects(told), (told.get("predicateType"), told["predicate"])
    if digests.get(JSON) != sha256(said).hexdigest() or about != (PREDICATE, predicate(report)):
        yield Part("signature", State.BROKEN, "what was signed is another report: this one was edited")
        return
    yield Part("signature", State.SHOWN, "the site's key has signed exactly these bytes")
    yield _drawn(digests, folder)


def _drawn(digests: Mapping[str, str], folder: Path) -> Part:
    """The pages that were drawn from the report."""
    if digests.keys() - {JSON, HTML, PDF}:
        return Part("pages", State.BROKEN, "what was signed names files that no report has")
    missing = [name for name in digests if name != JSON and not (folder / name).is_file()]
    for name in digests.keys() - {JSON, *missing}:
        if _digest(folder / name) != digests[name]:
            return Part("pages", State.BROKEN, "a page is not the one that was signed: it was edited")
    if missing:
        return Part("pages", State.NOT_SHOWN, f"{', '.join(sorted(missing))}: signed, and not here")
    if unsigned := [name for name in (HTML, PDF) if name not in digests and (folder / name).exists()]:
        return Part("pages", State.BROKEN, f"{', '.join(unsigned)} was never signed")
    return Part("pages", State.SHOWN, f"{len(digests) - 1} pages are those that were signed with the report")


def _digest(page: Path) -> str:
    """Of a page; empty if it cannot be read as one."""
    try:
        return sha256(read_bounded(page, MAX_DOCUMENT)).hexdigest()
    except OSError:
        return ""


def _proofs(report: Report) -> Part:
    try:
        facts = Facts.of(report.evidence)
    except ReportError as error:
        return Part("proofs", State.BROKEN, str(error))
    held = facts.held
    said = f"{len(facts.entries)} entries and {len(report.evidence.ledger)} records of the ledger hold"
    return Part("proofs", State.SHOWN, f"{said}; {len(held.cosigners)} others cosigned {held.cosigned} entries")


def _figures(report: Report) -> Part:
    try:
        made = sections_of(report.evidence)
    except (PrivacyError, AuditError):
        return Part("figures", State.BROKEN, "no report can be made of the evidence that is quoted")
    where = next(differences(report.sections.model_dump(mode="json"), made.model_dump(mode="json"), ""), None)
    if where:
        by = f"medfedvqa {report.evidence.tool.version} wrote it"
        return Part("figures", State.BROKEN, f"{where} is not what this version makes of the evidence ({by})")
    return Part("figures", State.SHOWN, "all figures and sentences follow from what is quoted, by both accountants")


def _code(report: Report, listed: Sequence[Withdrawal]) -> Part:
    """Whether the versions that ran the job, and the one that made the report, may still be relied on."""
    if not report.sections.claim.made:
        return Part(CODE, State.SHOWN, "the report claims no epsilon that could be withdrawn")
    quoted = [one.record for one in report.evidence.log.entries if one.record.get("job") == report.evidence.job]
    try:
        parts = [identities(one.get("code_version"), one.get("code_digest"), one.get("code")) for one in quoted]
        ran = [identity for names in parts for identity in names]
    except AuditError:
        return Part(CODE, State.NOT_SHOWN, "which code ran the job: an entry that is quoted does not name it readably")
    tool = report.evidence.tool
    if found := withdrawal_of([*ran, CodeIdentity(tool.version, tool.code_digest)], listed):
        return _withdrawn(found)
    if not any(code.version for code in ran):
        return Part(CODE, State.NOT_SHOWN, "which version ran the job: no entry that is quoted names it")
    return Part(CODE, State.SHOWN, "no version that ran the job or made the report is withdrawn")


def _withdrawn(found: Withdrawal) -> Part:
    return Part(CODE, State.NOT_SHOWN, f"the epsilon of this job was computed by a withdrawn version: {found.sentence}")


def _withdrawn_tool(said: bytes, listed: Sequence[Withdrawal]) -> Iterator[Part]:
    """Of a report of another version: whether the version that it says made it is withdrawn."""
    try:
        tool = json.loads(said)["evidence"]["tool"]
        found = withdrawal_of([CodeIdentity(tool["version"], tool["code_digest"])], listed)
    except (ValueError, KeyError, TypeError, RecursionError):
        return
    if found:
        yield _withdrawn(found)


def differences(one: Any, other: Any, where: str) -> Iterator[str]:
    """Where two values of plain JSON differ, floats by more than machines do."""
    if type(one) is not type(other):
        yield where
    elif isinstance(one, dict):
        for name in one:
            yield from differences(one[name], other.get(name), f"{where}.{name}".lstrip("."))
    elif isinstance(one, list):
        if len(one) != len(other):
            yield where
        for index, (mine, theirs) in enumerate(zip(one, other, strict=False)):
            yield from differences(mine, theirs, f"{where}[{index}]")
    elif not same(one, other) if isinstance(one, float) else one != other:
        yield where


def _log(report: Report, folder: Path) -> Part:
    """The log itself: it has what is quoted, and nothing of the job that is not."""
    log, size = report.evidence.log, report.sections.identity.log_entries
    try:
        quoted = {one.record["seq"]: one.record["leaf_hash"] for one in log.entries}
        for line in islice(lines_from(folder, log.first), size - log.first):
            record = parse_line(line)
            known = quoted.pop(record["seq"], None)
            if known != record["leaf_hash"] and (known or record["job"] == report.evidence.job):
                said = "the log has another entry, or one of the job that the report leaves out"
                return Part("log", State.BROKEN, said, record["seq"])
    except (AuditError, OSError) as error:
        told = error.strerror if isinstance(error, OSError) else error
        return Part("log", State.BROKEN, f"the log does not have the entries that are quoted: {told}")
    except (KeyError, TypeError, ValueError, OverflowError):
        return Part("log", State.BROKEN, "what is quoted of the log are no entries of one")
    if quoted:
        return Part("log", State.BROKEN, "the log lacks entries that are quoted")
    return Part("log", State.SHOWN, "the log has what is quoted, and no more of the job under that checkpoint")


def _ledger(report: Report, export: Path) -> Part:
    try:
        rows = read_export(export)
    except PrivacyError as error:
        return Part("ledger", State.BROKEN, str(error))
    if [row.hash for row in rows[: len(report.evidence.ledger)]] != [row.hash for row in report.evidence.ledger]:
        return Part("ledger", State.BROKEN, "the ledger that was given is not the one that is quoted")
    return Part("ledger", State.SHOWN, "the ledger that was given begins with the records that are quoted")


def _complete(report: Report, log: Path | None) -> Part:
    proofs = report.sections.egress.proofs
    if proofs.expired:
        return Part("all of it", State.NOT_SHOWN, f"{proofs.expired} entries of the log have expired")
    if proofs.not_quoted and not log:
        said = f"{proofs.not_quoted} entries of other jobs are not quoted: give the log to rule out others (--log)"
        return Part("all of it", State.NOT_SHOWN, said)
    return Part("all of it", State.SHOWN, "no entry of the job is left out")


def _rules(report: Report) -> Part:
    broken = [rule.rule for rule in report.sections.verdicts.rules if rule.state == "broken"]
    if broken:
        return Part("rules", State.BROKEN, f"the report itself says that rules were broken: {', '.join(broken)}")
    return Part("rules", State.SHOWN, "the report says of no rule that it was broken; section L has what is not shown")


def as_record(judgement: Judgement) -> dict[str, Any]:
    """As plain JSON."""
    parts = [{"name": one.name, "state": one.state, "said": one.said, "entry": one.entry} for one in judgement.parts]
    told: dict[str, Any] = json.loads(json.dumps({"state": judgement.state, "parts": parts}))
    return told
