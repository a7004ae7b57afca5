"""What a privacy-budget report is made of, from a site's folders and from files that people choose to give."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from audits import AuditKey, AuditLog, Event, NewerFormat, SitePolicy, check_site, examine, origin_of, read, refuses_job
from audits.excerpt import quote
from audits.external_evidence import ExternalEvidence
from audits.format_numbers import check_number
from medfedvqa.attack.audit import SCHEMA as ATTACK
from medfedvqa.errors import ConfigError
from medfedvqa.evaluation.results import SCHEMA_VERSION
from medfedvqa.federation import site_status
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.job_budget import look_into, store_of
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.ingest.cohort_register import read_register
from medfedvqa.ingest.ledger_binding import check_binding
from medfedvqa.ingest.store import MANIFEST, read_manifest
from medfedvqa.outside_files import bytes_of
from medfedvqa.version import code_digest, code_version
from privacy.ledger_folder import read_folder
from privacy.report import (
    Accuracy,
    AccuracyMeasurement,
    Attack,
    AttackEstimate,
    DicomCode,
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
) -> ReportEvidence:
    """What the site has on a job (its last one, if none is named), after signing its log as it is.

    Raises `ConfigError`, `DataError`, `LogError` or `LedgerError`.
    """
    check_site(config.audit, "")
    ledger = _ledger(config)
    chosen = _chosen(config.audit, ledger, job)
    with closing(AuditLog(config.audit, config.name, AuditKey.at(config.audit_key, origin_of(config.name)))) as log:
        log.checkpoint()
    if baseline and not results:
        raise ConfigError("accuracy without privacy says something beside that with it: give --results as well")

    def wanted(record: Mapping[str, Any]) -> bool:
        return record["job"] in (chosen, None) or refuses_job(record["event"], record["outcome"])

    return ReportEvidence(
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        site=config.name,
        job=chosen,
        tool=Tool(version=code_version(), code_digest=code_digest(), opacus=version("opacus")),
        log=quote(config.audit, config.name, wanted, ExternalEvidence.gather(against, config.audit)),
        ledger=ledger,
        policy=_policy(config.policy),
        run=_read(results, _run) if results else None,
        examined=_examined(config, against, network),
        attack=_read(attack, _attack) if attack else None,
        measured=_measured(config.name, results, baseline) if results and baseline else None,
        ingested=_ingested(store) if (store := store_of(config)) else None,
        binding=_binding(config),
    )


def _chosen(audit: Path, ledger: Sequence[LedgerRow], job: str | None) -> str:
    """The job that is asked for, or else the last that opened, or else the last that was refused.

    Entries may have expired: the ledger keeps its jobs.
    """
    about = (entry for entry in read(audit) if entry.job and entry.method != site_status.NAME)
    entries = [entry for entry in about if entry.event in (Event.OPEN, Event.REFUSAL)]
    refused = [str(entry.job) for entry in entries if refuses_job(entry.event, entry.outcome)]
    opened = [str(entry.job) for entry in entries if entry.event is Event.OPEN and entry.outcome is None]
    known = {*refused, *opened, *((row.record or {}).get("job") for row in ledger)}
    if job is None and (opened or refused):
        return (opened or refused)[-1]
    if job is None or job not in known:
        raise ConfigError("the site's log has no such job: `medfedvqa audit show` lists what it has")
    return job


def _ledger(config: SiteConfig) -> tuple[LedgerRow, ...]:
    if not config.ledger.is_dir():
        return ()
    with closing(look_into(config)) as ledger:
        ledger.verify()
        return quote_ledger(ledger.rows())


def _policy(policy: SitePolicy) -> Policy:
    told = {name: getattr(policy, name) for name in Policy.model_fields}
    return Policy(**told | {"kinds": tuple(kind.value for kind in policy.kinds)})


def _examined(config: SiteConfig, against: Sequence[Path], network: bool) -> tuple[LogVerdict, ...]:
    found = examine(config.audit, config.name, against, network=network)
    return tuple(
        LogVerdict(verdict=name, part=part.name, state=part.state.value, said=part.said)
        for name, verdict in found.verdicts()
        for part in verdict.parts
    )


def _read(path: Path, made: Callable[[dict[str, Any], str], Read]) -> Read:
    """Raises `ConfigError` if the file is not there, or not what it is given for."""
    said = bytes_of(path)
    try:
        return made(json.loads(said), hashlib.sha256(said).hexdigest())
    except NewerFormat:
        raise ConfigError(
            f"'{path}' was written by a newer version of this software: use that version, or a later one"
        ) from None
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError):
        raise ConfigError(f"'{path}' is not the file that the option asks for, or is of another version") from None


def _run(told: dict[str, Any], sha256: str) -> Run:
    number = told["schema_version"]
    if type(number) is int and number > SCHEMA_VERSION:
        raise NewerFormat
    if number != SCHEMA_VERSION:
        raise ValueError
    job = ("method", "options", "data", "split", "seed", "secagg", "dp")
    same = (*job, "status", "engine", "rounds_planned", "versions")
    return Run(
        sha256=sha256,
        backbone=told["backbone"]["name"],
        rounds_done=len(told["rounds"]),
        sites=tuple(told["sites"]),
        **{name: told[name] for name in same},
    )


def _attack(told: dict[str, Any], sha256: str) -> Attack:
    if not check_number(told["schema"], ATTACK, "the file"):
        raise ValueError
    job, claimed = told["job"], told["claimed"] or {}
    # As results.json has them: with the defaults of what was not given.
    built = JobSpec.from_dict({"method": job["method"], "options": job["options"]}).build()
    return Attack(
        sha256=sha256,
        method=job["method"],
        options=built.config.model_dump(mode="json"),
        data=job["data"],
        backbone=job["backbone"],
        dp=job["dp"],
        sites=tuple(told["sites"]),
        claimed_epsilon=claimed.get("epsilon"),
        claimed_delta=claimed.get("delta"),
        confidence=told["confidence"],
        attacks=tuple(
            AttackEstimate(**{name: one[name] for name in ("artefact", "attack", "canaries", "guessed", "correct")})
            for one in told["attacks"]
        ),
    )


def _measured(site: str, results: Path, baseline: Path) -> AccuracyMeasurement:
    def documents(told: dict[str, Any], sha256: str) -> dict[str, Any]:
        return {**told, "own": told["sites"][site], "accuracy": _accuracy(told["sites"][site])}

    private, without = _read(results, documents), _read(baseline, documents)
    if not private["dp"] or without["dp"]:
        raise ConfigError("--results is of the job with differential privacy, --baseline of the same one without")
    own = private["own"]
    alike = ("method", "options", "data", "split", "backbone", "seed")
    return AccuracyMeasurement(
        private=private["accuracy"],
        without=without["accuracy"],
        prior=_accuracy(own["baselines"]["question_prior"]),
        same_settings=all(private[name] == without[name] for name in alike),
        finished=_optional(own["finished"]),
        alone=_optional(own["baselines"]["alone"]),
        alone_equal=_optional(own["baselines"]["alone_equal"]),
        kept=own["kept"],
    )


def _optional(entry: dict[str, Any] | None) -> Accuracy | None:
    return _accuracy(entry) if entry else None


def _accuracy(told: dict[str, Any]) -> Accuracy:
    """Three digits, so that nobody counts rows."""
    low, high = told["interval"]
    return Accuracy(accuracy=round(told["accuracy"], 3), low=round(low, 3), high=round(high, 3))


def _binding(config: SiteConfig) -> StoreBinding:
    """How ledger and store are tied to each other. Raises `LedgerError` if the store is bound to another ledger."""
    store = store_of(config)
    if store is None:
        return StoreBinding(from_store=False, bound=False, compared=False)
    bound, ledger = check_binding(store, config.ledger), read_folder(config.ledger)
    register, key = read_register(config.ledger), read_manifest(store).key
    named = bound and ledger is not None and ledger.store == key
    return StoreBinding(from_store=True, bound=named, compared=register is not None and register.key == key)


def _ingested(store: Path) -> IngestionManifest:
    manifest, said = read_manifest(store), (store / MANIFEST).read_bytes()
    return IngestionManifest(
        sha256=hashlib.sha256(said).hexdigest(),
        made=manifest.made,
        codes=tuple(DicomCode(value=code.value, meaning=code.meaning) for code in manifest.deidentification),
        retained=tuple(manifest.options.retain),
        versions=manifest.versions,
        code=manifest.code,
    )
