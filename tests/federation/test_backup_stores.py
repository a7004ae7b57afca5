"""Backups of two sites of one store, which share a ledger."""

import shutil
from contextlib import closing
from pathlib import Path

import pytest
from backups import LIMITS, backed_up, restored
from doctored import TASK
from stores import make_store

from audits import AuditKey, AuditLog, Event, origin_of
from medfedvqa.federation.job_budget import ledger_of, look_into
from medfedvqa.federation.site_config import SiteConfig, load_site_config, site_yaml
from medfedvqa.ingest.ledger_binding import note_head
from privacy import LedgerError, PlannedTask


def made(kit: Path, store: Path) -> SiteConfig:
    """A site of the store, whose ledger is beside the store."""
    (kit / "local").mkdir(parents=True)
    facts = {
        "reader": "store",
        "root": str(store),
        "min_count": 1,
        "organ": kit.name,
        "methods": ["prompt_pfl"],
        "delta": 1e-3,
    }
    places = {"state": "../state", "audit": "../audit", "audit_key": "../audit.key", "identity": "../identity.key"}
    (kit / "local" / "site.yml").write_text(site_yaml(**facts, **places, ledger=f"{store}.ledger"))
    return load_site_config(kit / "local" / "site.yml", kit.name)


def charge(config: SiteConfig, store: Path, job: str) -> None:
    """A job that charges a task, notes it in the store, and logs its release."""
    key = AuditKey.at(config.audit_key, origin_of(config.name))
    with closing(ledger_of(config)) as ledger, closing(AuditLog(config.audit, config.name, key)) as log:
        ledger.reserve(job, "prompt_pfl", ["a"], [PlannedTask("train", 1, (TASK,))], LIMITS)
        begun = ledger.begin(job, "train", 1, LIMITS)
        note_head(store, ledger)
        log.append(Event.RELEASE, job=job, dp_event={"ledger": {"seq": begun.seq, "head": begun.head}})


def spent(config: SiteConfig) -> float:
    with closing(look_into(config)) as ledger:
        return ledger.together(1e-3, reserved=False).epsilon


def test_a_site_comes_back_beside_the_newer_ledger_of_its_store(tmp_path: Path) -> None:
    """The other site went on: what it charged stays, and the restored site sees it. If the ledger is lost with the
    site, the store itself refuses the older one of the backup: its patients get nothing back."""
    store = make_store(tmp_path / "store", {"chest": range(8), "abdomen": range(4, 12)})
    chest, abdomen = (made(tmp_path / "kits" / name, store) for name in ("chest", "abdomen"))
    charge(chest, store, "job-1")
    charge(abdomen, store, "job-2")
    backup, options = backed_up(tmp_path / "kits" / "abdomen", tmp_path / "backups")
    charge(chest, store, "job-3")
    total = spent(chest)
    shutil.rmtree(tmp_path / "kits" / "abdomen")
    done = restored(backup, tmp_path / "kits" / "abdomen", *options)
    assert "audit" in done["placed"] and "ledger" not in done["placed"] and done["joined"] == 0
    assert spent(abdomen) == spent(chest) == total
    charge(abdomen, store, "job-4")
    for lost in (tmp_path / "kits" / "abdomen", tmp_path / "store.ledger"):
        shutil.rmtree(lost)
    assert "ledger" in restored(backup, tmp_path / "kits" / "abdomen", *options)["placed"]
    with pytest.raises(LedgerError, match="lacks a record that the store has noted"):
        ledger_of(abdomen)
