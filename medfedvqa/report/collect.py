"""Collects the evidence of a privacy-budget report from a site's folders, and from files that people provide."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from audits import AuditKey, AuditLog, Event, NewerFormat, SitePolicy, check_site, examine, origin_of, read, refuses_job
from audits.bounded_files import check_number
from audits.excerpt import quote
from audits.external_evidence import ExternalEvidence
from medfedvqa.attack.empirical_audit import SCHEMA as ATTACK
from medfedvqa.checking import bytes_of
from medfedvqa.errors import ConfigError
from medfedvqa.evaluation.patient_intervals import LEAST
from medfedvqa.evaluation.patient_intervals import SCHEMA as GROUPS
from medfedvqa.evaluation.results import SCHEMA_VERSION
from medfedvqa.federation import site_status
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.job_budget import look_into, store_of
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.ingest.cohort_register import read_register
from medfedvqa.ingest.ledger_binding import check_binding
from medfedvqa.ingest.store import MANIFEST, read_manifest, read_store
from medfedvqa.version import code_digest, code_version
from privacy.ledger_accounts import read_folder
from privacy.report import (
    Accuracy,
    AccuracyMeasurement,
    Attack,
    AttackEstimate,
    CohortAttestation,
    DicomCode,
    GroupAccuracy,
    IngestionManifest,
    LedgerRow,
    LogVerdict,
    Policy,
    ReportEvidence,
    Run,
    StoreBinding,
    Tool,
    quote_ledger,
)

Read = TypeVar("Read")


def evidence_of(
    config: SiteConfig,
    job: str | None,
    results: Path | None,
    baseline: Path | None,
    attack: Path | None,
    against: Sequence[Path],
    network: bool,
    groups: Path | None = None,
) -> ReportEvidence:
    """The site's evidence on a job, by default its last one. Signs the site's log first.

    Raises `ConfigError`, `DataError`, `LogError` or `LedgerError`.
    """
    check_site(config.audit, "")
    ledger, cohort = _ledger(config)
    job_id = _job_id(config.audit, ledger, job)
    with closing(AuditLog(config.audit, config.name, AuditKey.at(config.audit_key, origin_of(config.name)))) as log:
        log.checkpoint()
    if baseline and not results:
        raise ConfigError("--baseline is compared with --results: give --results as well")
    if groups and not baseline:
        raise ConfigError("--groups is shown beside --baseline: give --baseline as well")

    by_group = _read(groups, partial(_groups, config.name, job_id)) if groups else ()

    def is_quoted(record: Mapping[str, Any]) -> bool:
        return record["job"] in (job_id, None) or refuses_job(record["event"], record["outcome"])

    return ReportEvidence(
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        site=config.name,
        job=job_id,
        tool=Tool(version=code_version(), code_digest=code_digest(), opacus=version("opacus")),
        log=quote(config.audit, config.name, is_quoted, ExternalEvidence.gather(against, config.audit)),
        ledger=ledger,
        policy=_policy(config.policy),
        run=_read(results, _run) if results else None,
        examined=_examined(config, against, network),
        attack=_read(attack, _attack) if attack else None,
        measured=_measured(config.name, results, baseline, by_group) if results and baseline else None,
        ingested=_ingested(store) if (store := store_of(config)) else None,
        binding=_binding(config),
        governance=config.governance,
        cohort=cohort,
    )


def _job_id(audit: Path, ledger: Sequence[LedgerRow], job: str | None) -> str:
    """The identifier of the named job, or else of the last job opened, or else of the last refused.

    A named job may be in the ledger alone, since entries of the log expire.
    """
    of_jobs = (entry for entry in read(audit) if entry.job and entry.method != site_status.NAME)
    entries = [entry for entry in of_jobs if entry.event in (Event.OPEN, Event.REFUSAL)]
    refused = [str(entry.job) for entry in entries if refuses_job(entry.event, entry.outcome)]
    opened = [str(entry.job) for entry in entries if entry.event is Event.OPEN and entry.outcome is None]
    all_jobs = {*refused, *opened, *((row.record or {}).get("job") for row in ledger)}
    if job is None and (opened or refused):
        return (opened or refused)[-1]
    if job is None or job not in all_jobs:
        raise ConfigError("the site's log does not have this job: `medfedvqa audit show` lists its jobs")
    return job


def _ledger(config: SiteConfig) -> tuple[tuple[LedgerRow, ...], CohortAttestation | None]:
    """The ledger's records without patients, and the statement on delta and the largest cohort."""
    if not config.ledger.is_dir():
        return (), None
    with closing(look_into(config)) as ledger:
        ledger.verify()
        rows = ledger.rows()
    records = [row.record for row in rows]
    sizes = [len(record["patients"]) for record in records if record["event"] == "cohort"]
    deltas = [record["delta"] for record in records if record.get("delta") is not None]
    if not sizes or not deltas:
        return quote_ledger(rows), None
    return quote_ledger(rows), CohortAttestation(delta=max(deltas), below=max(deltas) * max(sizes) < 1)


def _policy(policy: SitePolicy) -> Policy:
    values = {name: getattr(policy, name) for name in Policy.model_fields}
    return Policy(**values | {"kinds": tuple(kind.value for kind in policy.kinds)})


def _examined(config: SiteConfig, against: Sequence[Path], network: bool) -> tuple[LogVerdict, ...]:
    examination = examine(config.audit, config.name, against, network=network)
    return tuple(
        LogVerdict(verdict=name, part=part.name, state=part.state.value, said=part.said)
        for name, verdict in examination.verdicts()
        for part in verdict.parts
    )


def _read(path: Path, parse: Callable[[dict[str, Any], str], Read]) -> Read:
    """The file, parsed. Raises `ConfigError` if it is missing, or is not the file that the option needs."""
    content = bytes_of(path)
    try:
        return parse(json.loads(content), hashlib.sha256(content).hexdigest())
    except NewerFormat:
        raise ConfigError(
            f"'{path}' was written by a newer version of this software: use that version, or a later one"
        ) from None
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError):
        raise ConfigError(f"'{path}' is not the file that the option asks for, or is of another version") from None


def _run(results: dict[str, Any], sha256: str) -> Run:
    number = results["schema_version"]
    if type(number) is int and number > SCHEMA_VERSION:
        raise NewerFormat
    if number != SCHEMA_VERSION:
        raise ValueError
    job = ("method", "options", "data", "split", "seed", "secagg", "dp")
    same = (*job, "status", "engine", "rounds_planned", "versions")
    return Run(
        sha256=sha256,
        backbone=results["backbone"]["name"],
        rounds_done=len(results["rounds"]),
        sites=tuple(results["sites"]),
        **{name: results[name] for name in same},
    )


def _attack(findings: dict[str, Any], sha256: str) -> Attack:
    if not check_number(findings["schema"], ATTACK, "the file"):
        raise ValueError
    job, claimed = findings["job"], findings["claimed"] or {}
    # As in results.json, options include the defaults.
    built = JobSpec.from_dict({"method": job["method"], "options": job["options"]}).build()
    return Attack(
        sha256=sha256,
        method=job["method"],
        options=built.config.model_dump(mode="json"),
        data=job["data"],
        backbone=job["backbone"],
        dp=job["dp"],
        sites=tuple(findings["sites"]),
        claimed_epsilon=claimed.get("epsilon"),
        claimed_delta=claimed.get("delta"),
        confidence=findings["confidence"],
        attacks=tuple(
            AttackEstimate(**{name: attack[name] for name in ("artefact", "attack", "canaries", "guessed", "correct")})
            for attack in findings["attacks"]
        ),
    )


def _groups(site: str, job: str, document: dict[str, Any], sha256: str) -> tuple[GroupAccuracy, ...]:
    """Accuracies with two digits. Nothing else of the file leaves the site, in particular not who was clipped."""
    if not check_number(document["schema"], GROUPS, "the file"):
        raise ValueError
    if (document["site"], document["job"]) != (site, job) or document["baseline"] is None:
        raise ConfigError("--groups is of another site or job, or has no accuracies without privacy")
    if any(group["patients"] < LEAST for group in document["groups"]):
        raise ConfigError(f"--groups has a group of fewer than {LEAST} patients: make it again")
    return tuple(map(_group, document["groups"]))


def _group(figures: Mapping[str, Any]) -> GroupAccuracy:
    low, high = (bound and round(bound, 2) for bound in figures["cost"]["interval"] or (None, None))
    shares = {name: round(figures[name]["accuracy"], 2) for name in ("private", "without")}
    names = {name: figures[name] for name in ("by", "group", "model")}
    return GroupAccuracy(**names, **shares, low=low, high=high)


def _measured(site: str, results: Path, baseline: Path, groups: tuple[GroupAccuracy, ...]) -> AccuracyMeasurement:
    def documents(document: dict[str, Any], sha256: str) -> dict[str, Any]:
        return {**document, "own": document["sites"][site], "accuracy": _accuracy(document["sites"][site])}

    private, without = _read(results, documents), _read(baseline, documents)
    if not private["dp"] or without["dp"]:
        raise ConfigError("--results is of the job with differential privacy, --baseline of the same one without")
    at_site = private["own"]
    alike = ("method", "options", "data", "split", "backbone", "seed")
    return AccuracyMeasurement(
        private=private["accuracy"],
        without=without["accuracy"],
        prior=_accuracy(at_site["baselines"]["question_prior"]),
        same_settings=all(private[name] == without[name] for name in alike),
        finished=_optional(at_site["finished"]),
        alone=_optional(at_site["baselines"]["alone"]),
        alone_equal=_optional(at_site["baselines"]["alone_equal"]),
        kept=at_site["kept"],
        groups=groups,
    )


def _optional(entry: dict[str, Any] | None) -> Accuracy | None:
    return _accuracy(entry) if entry else None


def _accuracy(entry: dict[str, Any]) -> Accuracy:
    """An accuracy with three digits, from which nobody can count rows."""
    low, high = entry["interval"]
    return Accuracy(accuracy=round(entry["accuracy"], 3), low=round(low, 3), high=round(high, 3))


def _binding(config: SiteConfig) -> StoreBinding:
    """Whether ledger and store name each other. Raises `LedgerError` if the store is bound to another ledger."""
    store = store_of(config)
    if store is None:
        return StoreBinding(from_store=False, bound=False, compared=False)
    bound, ledger = check_binding(store, config.ledger), read_folder(config.ledger)
    register, key = read_register(config.ledger), read_manifest(store).key
    named = bound and ledger is not None and ledger.store == key
    return StoreBinding(from_store=True, bound=named, compared=register is not None and register.key == key)


def _ingested(store: Path) -> IngestionManifest:
    (manifest, images, _), content = read_store(store), (store / MANIFEST).read_bytes()
    return IngestionManifest(
        sha256=hashlib.sha256(content).hexdigest(),
        made=manifest.made,
        codes=tuple(DicomCode(value=code.value, meaning=code.meaning) for code in manifest.deidentification),
        retained=tuple(manifest.options.retain),
        versions=manifest.versions,
        code=manifest.code,
        reviewed=all(image.reviewed for image in images.values()),
    )
