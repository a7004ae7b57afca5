"""Replaces a site's keys, that of its audit log or for secure aggregation, and pins another site's key in its site.yml.

The old log key and the new one both sign the succession. So whoever knows the old key accepts the new one, and what the
old one signed still verifies. A kill at any moment leaves the old key or the new one: see `medfedvqa.atomic_files`.
"""

import json
import re
from contextlib import closing
from pathlib import Path

import yaml
from pydantic import TypeAdapter, ValidationError

from audits import AuditKey, AuditLog, Checkpoint, Event, VerifierKey, make_secret, origin_of
from audits.checkpoint import SUCCESSIONS, Succession, read_successions, signed_succession, text_of
from medfedvqa.atomic_files import decide, finish, prepare, write_whole
from medfedvqa.bounds import SiteName
from medfedvqa.errors import ConfigError
from medfedvqa.federation.aggregation_attempt import load_identity
from medfedvqa.federation.live_processes import live_processes
from medfedvqa.federation.site_config import SiteConfig, load_site_config

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


_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


def pin(path: Path, site: str, name: str, fingerprint: str, replace: bool = False) -> None:
    """Write `name: fingerprint` into `peers` of the file of `site`, whole or not at all.

    Raises `ConfigError` if either is malformed, if it is the site's own name, if another site has this key, or, unless
    `replace`, if another key is pinned for the name.
    """
    config = load_site_config(path, site)
    if not _is_name(name) or name == site:
        raise ConfigError("give the other site's name in the federation first: letters, digits, '-', '_' and '.'")
    if not _FINGERPRINT.fullmatch(fingerprint):
        raise ConfigError("a fingerprint must have 64 hex digits: `medfedvqa identity` at the other site shows it")
    if any(pinned == fingerprint and other != name for other, pinned in config.known_peers.items()):
        raise ConfigError("another site is pinned with this fingerprint: two sites must not share a key")
    if config.known_peers.get(name, fingerprint) != fingerprint and not replace:
        raise ConfigError(f"another key is pinned for '{name}': if the site has a new key, add --replace")
    _write_peers(path, {**config.peers, name: fingerprint})
    load_site_config(path, site)


def _is_name(text: str) -> bool:
    try:
        TypeAdapter(SiteName).validate_python(text)
    except ValidationError:
        return False
    return True


def _write_peers(path: Path, peers: dict[str, str]) -> None:
    """Replace the value of `peers`, and nothing else. Raises `ConfigError` if the file has no line `peers`."""
    text = path.read_text(encoding="utf-8")
    tree = yaml.compose(text, Loader=yaml.SafeLoader)
    found = [value for key, value in tree.value if key.value == "peers"] if isinstance(tree, yaml.MappingNode) else []
    if len(found) != 1:
        raise ConfigError("site.yml has no line 'peers: {}': write one, at the beginning of a line")
    value = found[0]
    end = value.end_mark.index
    if isinstance(value, yaml.MappingNode) and not value.flow_style:
        end = value.value[-1][1].end_mark.index  # that of the block lies behind the comments that follow it
    pinned = json.dumps(dict(sorted(peers.items())))
    changed = f"{text[: value.start_mark.index].rstrip()} {pinned}{text[end:]}"
    write_whole(path, changed.encode(), path.stat().st_mode & 0o777)
