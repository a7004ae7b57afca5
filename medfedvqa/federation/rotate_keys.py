"""Replaces a site's keys: that of its audit log, or that for secure aggregation.

The old log key and the new one both sign the succession. So whoever knows the old key accepts the new one, and what the
old one signed still verifies. A kill at any moment leaves the old key or the new one: see `medfedvqa.pending_files`.
"""

from contextlib import closing
from pathlib import Path

from audits import AuditKey, AuditLog, Checkpoint, Event, VerifierKey, make_secret, origin_of
from audits.key_succession import SUCCESSIONS, Succession, read_successions, signed_succession, text_of
from medfedvqa.atomic_files import write_whole
from medfedvqa.errors import ConfigError
from medfedvqa.federation.aggregation_attempt import load_identity
from medfedvqa.federation.live_processes import live_processes
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.pending_files import decide, finish, prepare

REPLACED = "the key that signs this log was replaced; the one before it signed the first {} entries"
_RETIRED = "retired"


def rotate_audit_key(config: SiteConfig, site_file: Path) -> VerifierKey:
    """Gives the log a new key, and logs the change; returns the new public key. Raises `ConfigError` while the site
    runs, `LogError`, `NoteError`."""
    _require_stopped(config, site_file)
    old = AuditKey.at(config.audit_key, origin_of(config.name))
    with closing(AuditLog(config.audit, config.name, old)) as log:
        size = Checkpoint.parse(log.publish().text).size
    source, statements = _new_secret(config.audit_key), config.audit / f".{SUCCESSIONS}.next"
    new = AuditKey.at(source, old.public.name)
    succession = Succession.parse(signed_succession(old, new, size))
    write_whole(statements, text_of([*read_successions(config.audit / SUCCESSIONS), succession]).encode())
    _replace(site_file, {config.audit_key: source, config.audit / SUCCESSIONS: statements})
    with closing(AuditLog(config.audit, config.name, new)) as log:
        log.append(Event.ROTATED, reason=REPLACED.format(size))
    return new.public


def rotate_identity(config: SiteConfig, site_file: Path) -> str:
    """Makes a new key for secure aggregation; returns its fingerprint. Raises `ConfigError` while the site runs."""
    _require_stopped(config, site_file)
    load_identity(config)
    _replace(site_file, {config.identity: _new_secret(config.identity)})
    return load_identity(config).fingerprint


def finish_rotation(site_file: Path) -> bool:
    """Finish a rotation that was interrupted; returns whether there was one."""
    return finish(site_file.resolve().parent)


def _require_stopped(config: SiteConfig, site_file: Path) -> None:
    processes = live_processes(config.audit, site_file.resolve().parent.parent)
    if processes.site or processes.jobs:
        raise ConfigError("the site runs, and its processes hold the old key: stop it, and rotate then")


def _new_secret(place: Path) -> Path:
    source = place.with_name(f".{place.name}.next")
    source.unlink(missing_ok=True)  # of a rotation that was killed before it was decided
    make_secret(source)
    return source


def _replace(site_file: Path, sources: dict[Path, Path]) -> None:
    """Puts all files in place at once, and removes the keys that they replace."""
    for place, source in sources.items():
        prepare(place, source)
    folder = site_file.resolve().parent
    decide(folder, list(sources), _RETIRED)
    finish(folder)
    for place in sources:
        for path in place.parent.glob(f"{place.name}.{_RETIRED}-*"):
            path.unlink()
