"""Really provisioned kits, and what `medfedvqa doctor` says of them."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from audits import AuditKey, AuditLog, Event, origin_of
from medfedvqa.cli import app
from medfedvqa.federation.flare.provision import SiteBuilder, loopback_project, provision
from medfedvqa.federation.site_config import SiteConfig, load_site_config, site_yaml
from privacy import Ledger, Limits, PlannedTask, SampledGaussian

SITE = "chest"
TASK = SampledGaussian(0.5, 4.0, 10)
"""What a charged task did."""
FACTS = {"reader": "phantom", "organ": SITE, "methods": ["prompt_pfl"]}
PLACES = {
    "state": "../state",
    "audit": "../audit",
    "ledger": "../ledger",
    "identity": "../identity.key",
    "audit_key": "../audit.key",
}
DP = {"require_dp": True, "max_epsilon": 8.0, "delta": 1e-3}
"""A policy with a budget."""
PINS = {name: f"{number:064x}" for number, name in enumerate(("abdomen", "head", "pelvis"), 1)}
"""Fingerprints of other sites."""


def provisioned(folder: Path, port: int = 8002) -> Path:
    """The folder with the kits of a site, its server and an administrator."""
    builder = SiteBuilder({SITE: FACTS}, storage=str(folder / "storage"))
    return provision(loopback_project([SITE], port), [builder], folder / "workspace")


def edit_site(kit: Path, **changes: Any) -> SiteConfig:
    """Writes the kit's site.yml with these changes."""
    path = kit / "local" / "site.yml"
    path.write_text(site_yaml(**{**FACTS, **PLACES, **changes}))
    return load_site_config(path, SITE)


def edit_json(path: Path, *keys: str | int, value: Any) -> None:
    """Replaces one value of a JSON file."""
    content = json.loads(path.read_text())
    place = content
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    path.write_text(json.dumps(content))


def checks_of(kit: Path, *options: str) -> list[dict[str, Any]]:
    """All lines of the command, whose exit code must agree with them."""
    result = CliRunner().invoke(app, ["doctor", str(kit), "--json", *options])
    assert result.stdout, result.exception
    report = json.loads(result.stdout)
    sound = all(check["ok"] for check in report["checks"])
    assert (result.exit_code, report["ok"]) == (0 if sound else 1, sound)
    return list(report["checks"])


def problems(kit: Path, *options: str, state: str = "failed") -> dict[str, str]:
    """The problem of each failing line, or line with a warning, by the line's name; each says what to do."""
    lines = [check for check in checks_of(kit, *options) if check["state"] == state]
    assert all(line["problem"] and line["remedy"] for line in lines)
    return {line["name"]: line["problem"] for line in lines}


def charge(kit: Path, tasks: int = 1, end: bool = True, **policy: Any) -> None:
    """A job that charges the first of its tasks, and keeps the rest unless it ends."""
    config, limits = edit_site(kit, **{**DP, **policy}), Limits(None, 1e-3)
    with closing(Ledger(config.ledger, SITE)) as ledger, closing(log_of(kit)) as log:
        ledger.reserve("job-1", "prompt_pfl", ["a"], [PlannedTask("train", n, (TASK,)) for n in range(1, 3)], limits)
        for number in range(1, tasks + 1):
            ledger.begin("job-1", "train", number, limits)
        if end:
            ledger.free("job-1")
        log.append(Event.RECOVERED)


def log_of(kit: Path) -> AuditLog:
    """The site's log, to be closed."""
    (kit / "audit").mkdir(mode=0o700, exist_ok=True)
    return AuditLog(kit / "audit", SITE, AuditKey.at(kit / "audit.key", origin_of(SITE)))
