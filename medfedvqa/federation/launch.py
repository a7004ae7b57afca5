"""Runs a job on this machine. Everything is checked first, so that nothing is written for a job that cannot run."""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from audits import LogError, Outcome, read
from medfedvqa.atomic_files import PRIVATE, write_whole
from medfedvqa.backbone_names import parse
from medfedvqa.bounds import PUBLIC_FOLDER
from medfedvqa.core.contribution import contributions
from medfedvqa.core.local_training import Alone
from medfedvqa.core.method import TESTED
from medfedvqa.data import SiteData, load_site, organs
from medfedvqa.devices import Precision, in_turn, resolved
from medfedvqa.errors import ConfigError, FederationError
from medfedvqa.evaluation import add_contribution, add_scores, write_table
from medfedvqa.evaluation.results import RESULTS
from medfedvqa.federation.hub import TaskAnswer
from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.journal import JOURNAL, Journal
from medfedvqa.federation.serve import check_sites, score_of, serve_job
from medfedvqa.federation.server_receipts import SERVER_KEYS, ServerReceipts
from medfedvqa.federation.shared_model import SharedModel
from medfedvqa.federation.site_config import DEFAULTS, load_site_config, site_yaml
from medfedvqa.ingest.ledger_binding import check_binding, default_ledger
from medfedvqa.models import FeatureStore, card_in, load_backbone
from medfedvqa.plugins import allowed
from privacy import LedgerError
from privacy.secagg import Identity

Engine = Literal["local", "simulator", "provisioned"]

LAUNCH = "launch.json"
"""The file in a run's folder that says how to continue the run, if it was killed, and how to run it again."""
_FORMAT = 1


@dataclass(frozen=True)
class Launch:
    """One run on this machine, with one site for each organ of a data set."""

    job: JobSpec
    root: Path | None
    """The folder of the data set; None for the phantom set."""
    out: Path
    sites: tuple[str, ...]
    threads: int = 1
    """The processor threads of each site."""
    backbone_files: Mapping[str, Path] | None = None
    device: str = "cpu"
    """Where sites train: `cpu`, `cuda` or `cuda:NUMBER`; sites take turns among several, separated by commas."""
    ledger: Path | None = None
    """The folder of the ledger for a store's patients; None means the ledger beside the store."""
    precision: Precision = "float32"
    """The precision of that part of the backbone that training does not reach."""
    cache: Path | None = None
    """The folder that keeps outputs of the frozen backbone for other runs here, with the engine `local` only."""
    engine: Engine = "local"
    """The engine that the run in `out` was begun with."""
    start_from: Path | None = None
    """The file of the model that the sites start from, if they do. The run keeps a copy."""
    data_digests: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each site's data as the run began, in hex. It is empty where no rerun can be compared."""

    def ledger_of(self, site: str) -> Path:
        """The folder of a site's ledger. All sites of a store share one."""
        if self.ledger is not None:
            return self.ledger.resolve()
        if self.job.data == "store" and self.root is not None:
            return default_ledger(self.root)
        return (self.out / "sites" / site / "ledger").resolve()

    def write(self) -> None:
        """Write what `read` needs into the run's folder."""
        files = {name: str(path.resolve()) for name, path in (self.backbone_files or {}).items()}
        facts = {
            "format": _FORMAT,
            "job": self.job.to_dict(),
            "root": self.root and str(self.root.resolve()),
            "sites": self.sites,
            "threads": self.threads,
            "backbone_files": files,
            "device": self.device,
            "precision": self.precision,
            "ledger": self.ledger and str(self.ledger.resolve()),
            "cache": self.cache and str(self.cache.resolve()),
            "engine": self.engine,
            "data_digests": dict(self.data_digests),
        }
        write_whole(self.out / LAUNCH, f"{json.dumps(facts, indent=2)}\n".encode(), PRIVATE)

    @classmethod
    def read(cls, out: Path) -> "Launch":
        """The launch of the run in a folder. Raises `ConfigError` if the folder has none, or a newer version's."""
        try:
            facts = json.loads((out / LAUNCH).read_text(encoding="utf-8"))
            if facts["format"] > _FORMAT:
                raise ConfigError(f"the run in '{out}' was begun by a newer version of this software: use that version")
            return cls(
                job=JobSpec.from_dict(facts["job"]),
                root=facts["root"] and Path(facts["root"]),
                out=out,
                sites=tuple(facts["sites"]),
                threads=facts["threads"],
                backbone_files={name: Path(path) for name, path in facts["backbone_files"].items()},
                device=facts["device"],
                precision=facts.get("precision", "float32"),
                ledger=facts["ledger"] and Path(facts["ledger"]),
                cache=facts["cache"] and Path(facts["cache"]),
                engine=facts.get("engine", "local"),
                data_digests=facts.get("data_digests", {}),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise ConfigError(
                f"'{out}' holds no run with its file {LAUNCH}: give the folder of a run that this version began"
            ) from None

    def digests(self) -> dict[str, str]:
        """The digest of each site's data as they are now. Raises `DataError` if they cannot be read."""
        return {site: data_of(self.job, self.root, site).digest for site in self.sites}

    @property
    def repeatable(self) -> bool:
        """Whether the same job on the same data gives the same tensors: not with noise or on shares, which are fresh
        each time.
        """
        return self.job.dp is None and not self.job.secagg

    @property
    def first_model(self) -> Path:
        """Where a run that starts from an earlier model keeps its copy, for a resumed run or a rerun."""
        return self.out / f"{self.job.options['start_from']}.npz"

    @property
    def audit_folders(self) -> dict[str, Path]:
        """The folder of each site's audit log, by site."""
        return {site: self.out / "sites" / site / "audit" for site in self.sites}


def check_new(out: Path, content: str = "something") -> None:
    """Raises `ConfigError` unless `out` is free or an empty folder. `content`: what the message says that it holds."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"'{out}' already holds {content}: choose another folder, or remove it")


def data_of(job: JobSpec, root: Path | None, site: str) -> SiteData:
    """The data of a site of this machine, which declares no list of answers. Raises `DataError`."""
    return load_site(job.data, root, site, job.split, job.seed, job.build().answers_of(None))


def plan(
    job: JobSpec,
    root: Path | None,
    out: Path,
    sites: tuple[str, ...] = (),
    threads: int = 1,
    backbone_files: Mapping[str, Path] | None = None,
    ledger: Path | None = None,
    device: str = "cpu",
    cache: Path | None = None,
    precision: Precision = "float32",
    start_from: Path | None = None,
) -> Launch:
    """Check everything that can be checked without training, and write nothing. `start_from`: a model's file.

    Raises `ConfigError`, `DataError` or `BackboneError`.
    """
    check_new(out, "a run")
    if ledger is not None and job.data != "store":
        raise ConfigError("--ledger is for data from a store; other data have theirs in the run's folder: leave it out")
    if len(set(sites)) < len(sites):
        twice = next(site for site in sites if sites.count(site) > 1)
        raise ConfigError(f"the site '{twice}' is named twice: name each site once")
    device = resolved(device)
    job = _with_backbone(job, backbone_files or {}, precision)
    sites = sites or organs(job.data, root)
    check_sites(job, len(sites))
    if start_from is not None:
        job = SharedModel.read(start_from).starting(job)
    method = job.build()
    job.exchange()  # refuses a network or a head that does not fit, before anything is written
    launch = Launch(
        job, root, out, sites, threads, backbone_files, device, ledger, precision, cache, start_from=start_from
    )
    if job.dp is not None and job.data == "store" and root is not None:
        try:
            check_binding(root, launch.ledger_of(sites[0]))
        except LedgerError as error:
            raise ConfigError(str(error)) from None
    for site in sites:
        data = data_of(job, root, site)
        method.check_answers(data.public_answers)
        method.check_rows(data)
    return launch


def _with_backbone(job: JobSpec, files: Mapping[str, Path], precision: Precision) -> JobSpec:
    """The job, with its backbone's shape card if only a local folder has it. Loads the backbone to test it."""
    if parse(job.backbone).is_folder and job.card is None:
        job = job.model_copy(update={"card": card_in(job.backbone, files)})
    load_backbone(job.backbone, files).computing(precision)
    return job


def write_sites(launch: Launch) -> dict[str, Path]:
    """Write each site's `site.yml` under `out/sites/NAME`; returns the paths."""
    paths: dict[str, Path] = {}
    folders = {site: (launch.out / "sites" / site).resolve() for site in launch.sites}
    for folder in folders.values():
        folder.mkdir(parents=True)
    keys = {site: folder / "identity.key" for site, folder in folders.items()}
    peers = {site: Identity.create(key).fingerprint for site, key in keys.items()} if launch.job.secagg else {}
    exchange = launch.job.exchange()
    sent = {spec.kind.value for task in exchange.tasks for spec in (*task.up, *task.down)}
    kinds = [*DEFAULTS["kinds"], *sorted(sent - set(DEFAULTS["kinds"]))]
    for number, (site, folder) in enumerate(folders.items()):
        paths[site] = folder / "site.yml"
        paths[site].write_text(
            site_yaml(
                reader=launch.job.data,
                root=launch.root and str(launch.root.resolve()),
                organ=site,
                threads=launch.threads,
                device=in_turn(launch.device, number),
                precision=launch.precision,
                state=str(folder / "state"),
                audit=str(folder / "audit"),
                ledger=str(launch.ledger_of(site)),
                identity=str(keys[site]),
                audit_key=str(folder / "audit.key"),
                peers=peers,
                backbones={name: str(path.resolve()) for name, path in (launch.backbone_files or {}).items()},
                methods=[launch.job.method],
                public_set=os.environ.get(PUBLIC_FOLDER),
                plugins=allowed(),
                kinds=kinds,
                committee=list(launch.job.members_rule().named),
                # These sites are the user's own, and so is the server: no hospital set their rules.
                colluders=launch.job.offer().colluders,
                allow_export=True,
                min_count=1,
            ),
            encoding="utf-8",
        )
    return paths


def run(
    launch: Launch, engine: Engine, watch: Callable[[TaskAnswer], None], stop: Callable[[], bool] = lambda: False
) -> dict[str, Any]:
    """Run to the end, or to the end of the round in which `stop` returns true. Returns the results."""
    paths = write_sites(launch)
    replace(launch, engine=engine, data_digests=launch.digests() if launch.repeatable else {}).write()
    if launch.start_from is not None:
        write_whole(launch.first_model, launch.start_from.read_bytes(), PRIVATE)
    if engine == "local":
        results = _run_here(launch, watch, stop)
    else:
        # FLARE takes seconds to import, and the in-process engine does without it.
        from medfedvqa.federation.flare.engine import run_on_flare

        try:
            results = run_on_flare(launch.job, paths, launch.out, engine, watch, stop)
        except FederationError as error:
            raise FederationError(f"{str(error).rstrip('.')}{refusals_of(launch)}") from None
    return _with_kept_scores(launch, results) if launch.job.keeps_scores else results


def resume(out: Path, watch: Callable[[TaskAnswer], None], stop: Callable[[], bool] = lambda: False) -> dict[str, Any]:
    """Continue a run of the engine `local` whose process was killed, from the last call that all sites had answered.

    Returns the results. Raises `ConfigError` if there is no such run in the folder `out`, or if it is over.
    """
    launch = Launch.read(out)
    if launch.engine != "local":
        raise ConfigError(f"the run in '{out}' used the engine '{launch.engine}': only 'local' can continue a run")
    results = out / RESULTS
    if results.exists() and json.loads(results.read_text(encoding="utf-8"))["status"] in ("finished", "stopped"):
        raise ConfigError(f"the run in '{out}' has finished: its results are in that folder")
    completed = _run_here(launch, watch, stop)
    return _with_kept_scores(launch, completed) if launch.job.keeps_scores else completed


def _run_here(launch: Launch, watch: Callable[[TaskAnswer], None], stop: Callable[[], bool]) -> dict[str, Any]:
    """Run the job of sites whose files are written, in this process. The journal of an earlier process is replayed."""
    job, out = launch.job, launch.out
    sites = {site: load_site_config(out / "sites" / site / "site.yml", site) for site in launch.sites}
    # A name that the machine's locale cannot decode is not text: it has the numbers of its bytes instead.
    job_id = out.name if out.name.isprintable() else os.fsencode(out.name).decode("ascii", "backslashreplace")
    receipts = ServerReceipts(job.exchange(), job_id, launch.sites, out / SERVER_KEYS, out)
    store = None if launch.cache is None else FeatureStore(launch.cache)
    with closing(LocalEngine(sites, job, job_id, store=store)) as local, closing(receipts):
        results = serve_job(job, launch.sites, local.call, out, "local", watch, stop, receipts, Journal(out / JOURNAL))
        method, kept = job.build(), local.kept()
        tested = kept and all(len(site.data.test) and TESTED in state for site, state in kept.values())
        tested = tested and not all(site.data.captioned for site, _ in kept.values())
        counted = tested and job.dp is None and isinstance(method, Alone)
        return add_contribution(out, contributions(method, kept)) if counted else results


def refusals_of(launch: Launch) -> str:
    """Why sites of this machine refused the job, from their own logs: the server gets only a code.

    A site that died before its first entry has no log: then only the known reason is given.
    """
    reasons = []
    for site, folder in launch.audit_folders.items():
        with suppress(LogError):
            refused = [entry for entry in read(folder) if entry.outcome is Outcome.REFUSED] if folder.is_dir() else []
            if refused and refused[-1].reason:
                reasons.append(f"; the log of '{site}' says: {refused[-1].reason}")
    return "".join(reasons)


def _with_kept_scores(launch: Launch, results: dict[str, Any]) -> dict[str, Any]:
    """The results with the scores that sites keep, here all on this machine; unchanged if a site dropped out."""
    scores = {}
    for site in launch.sites:
        for path in (launch.out / "sites" / site / "state").glob("*.evaluate.json"):
            scores[site] = score_of(json.loads(path.read_text(encoding="utf-8")))
    if len(scores) < len(launch.sites):
        return results
    results = add_scores(launch.out, scores)
    write_table(launch.out, results)
    return results
