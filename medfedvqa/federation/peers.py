"""Pins another site's key in a site's own site.yml, and leaves every other character of the file as it is."""

import json
import re
from pathlib import Path

import yaml
from pydantic import TypeAdapter, ValidationError

from medfedvqa.atomic_files import write_whole
from medfedvqa.bounds import SiteName
from medfedvqa.errors import ConfigError
from medfedvqa.federation.site_config import load_site_config

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


def pin(path: Path, site: str, name: str, fingerprint: str, replace: bool = False) -> None:
    """Write `name: fingerprint` into `peers` of the file of `site`, whole or not at all.

    Raises `ConfigError` if either is malformed, if it is the site's own name, if another site has this key, or, unless
    `replace`, if another key is pinned for the name.
    """
    config = load_site_config(path, site)
    if not _is_name(name) or name == site:
        raise ConfigError("the first word is another site's name in the federation: letters, digits, '-', '_' and '.'")
    if not _FINGERPRINT.fullmatch(fingerprint):
        raise ConfigError("a fingerprint has 64 hex digits: `medfedvqa identity` at the other site shows it")
    if any(pinned == fingerprint and other != name for other, pinned in config.known_peers.items()):
        raise ConfigError("another site is pinned with this fingerprint: two sites never share a key")
    if config.known_peers.get(name, fingerprint) != fingerprint and not replace:
        raise ConfigError(f"another key is pinned for '{name}': if the site has a new one, add --replace")
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
