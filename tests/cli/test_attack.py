"""`medfedvqa audit attack` on real jobs, sound and broken: what it finds, says, writes and leaves out."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from medfedvqa.attack import empirical_audit
from medfedvqa.attack.controls import ControlRun
from medfedvqa.attack.empirical_audit import with_canaries
from medfedvqa.data import SiteData
from privacy import SecureRandomness

pytestmark = pytest.mark.slow

Command = Callable[..., Any]
JOB = [
    "prompt_pfl", "--data", "phantom", "--site", "site-001", "--site", "site-002", "-O", "hidden=8",
    "-O", "local_epochs=1", "-O", "local_unit=batches", "-O", "blocks=1", "-O", "local_baseline=false",
    "-O", "optimizer=sgd", "--rows", "24",
]  # fmt: skip
PRIVATE = [
    "-O", "rounds=2", "--canaries", "48", "--dp", "noise=8", "--dp", "count_noise=60", "--dp", "sample_rate=1.0",
    "--dp", "patient_rows=24", "-O", "answers=closed",
]  # fmt: skip
"""Everybody takes part in both steps: as little chance as possible for an attack to fail by bad luck."""


@pytest.fixture
def attacked(medfedvqa: Command, random_backbone: Path, tmp_path: Path) -> Callable[..., tuple[Any, dict[str, Any]]]:
    """Runs the attack on a job of two small sites; how it ended, and its findings."""

    def run(*more: str) -> tuple[Any, dict[str, Any]]:
        backbone = ["--backbone", "medclip@random", "--backbone-file", str(random_backbone)]
        done = medfedvqa("audit", "attack", *JOB, *more, *backbone, "--out", str(tmp_path / "out"))
        return done, json.loads((tmp_path / "out" / "attack.json").read_text())

    return run


def best(findings: dict[str, Any]) -> float:
    """The largest epsilon that an attack proves."""
    return max(one["epsilon_lower_bound"] for one in findings["attacks"])


def test_a_sound_job_is_not_accused_and_its_findings_name_nobody(attacked: Callable[..., Any], tmp_path: Path) -> None:
    """The claim is the ledger's; the file holds figures and settings, and neither a patient, a path nor a text."""
    done, findings = attacked(*PRIVATE)
    assert done.returncode == 0 and findings["contradicted"] is False
    assert 0.5 < findings["claimed"]["epsilon"] < 1.0 and findings["claimed"]["unit"] == "patient"
    assert best(findings) <= findings["claimed"]["epsilon"]
    found = {(one["artefact"], one["attack"]) for one in findings["attacks"]}
    assert found == {(artefact, attack) for artefact in ("personal", "shared") for attack in ("loss", "update")}
    for one in findings["attacks"]:
        assert (one["canaries"], one["guessed"]) == (96, 48)
        assert one["most_provable"] > 2 and 0 <= one["p_value_of_claim"] <= 1
    assert findings["canaries"]["inserted"] == findings["inversion"]["patients"]
    written = (tmp_path / "out" / "attack.json").read_text()
    assert not any(text in written for text in ("canary-", str(tmp_path), "mass", "site-001-"))


def test_a_job_whose_noise_is_off_is_caught(attacked: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine, gate and ledger notice nothing; the update shows who was in, and the exit code says so."""

    def silent(self: SecureRandomness, count: int, deviation: float) -> torch.Tensor:
        return torch.zeros(count, dtype=torch.float64)

    monkeypatch.setattr(SecureRandomness, "rounded_normal", silent)
    done, findings = attacked(*PRIVATE)
    assert done.returncode == 1 and "REFUTED" in done.stdout
    assert findings["contradicted"] is True and best(findings) > findings["claimed"]["epsilon"]


def test_a_job_that_bounds_rows_instead_of_patients_is_caught(
    attacked: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that gives every row a patient of its own: the ledger claims for patients what holds for rows."""

    def by_row(*arguments: Any) -> SiteData:
        data = with_canaries(*arguments)
        rows = torch.arange(len(data.train)) + len(data.patients)
        keys = tuple(f"row-{number}" for number in range(len(rows)))
        return replace(data, train=replace(data.train, patients=rows), patients=data.patients + keys)

    monkeypatch.setattr(empirical_audit, "with_canaries", by_row)
    done, findings = attacked(*PRIVATE)
    assert done.returncode == 1 and best(findings) > findings["claimed"]["epsilon"]


def test_a_job_without_privacy_is_measured_and_claims_nothing(attacked: Callable[..., Any]) -> None:
    """There is a bound, and no claim that it could refute."""
    done, findings = attacked("--canaries", "8", "-O", "rounds=1")
    assert done.returncode == 0 and findings["claimed"] is None and findings["contradicted"] is None
    assert "no differential privacy" in done.stdout and best(findings) >= 0


def test_a_folder_that_holds_something_is_refused(medfedvqa: Command, tmp_path: Path) -> None:
    """Before anything is trained."""
    (tmp_path / "kept").write_text("")
    done = medfedvqa("audit", "attack", *JOB, "--out", str(tmp_path))
    assert done.returncode == 1 and "choose another folder" in done.stderr


def test_controls_say_how_often_each_fault_is_caught(medfedvqa: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """One training each, with the noise that a calibration would find."""
    noise = {"rounds forgotten": 2.514}

    def claiming(epsilon: float, fault: str, canaries: int) -> ControlRun:
        return ControlRun(noise.get(fault, 12.06), canaries=canaries)

    monkeypatch.setattr(ControlRun, "claiming", claiming)
    done = medfedvqa("audit", "controls", "--repetitions", "1")
    caught = {
        line.split("│")[1].strip(): line.split("│")[3].strip() for line in done.stdout.splitlines() if " of 1" in line
    }
    assert caught == {
        "none": "0 of 1",
        "noise off": "1 of 1",
        "rounds forgotten": "1 of 1",
        "rows for patients": "1 of 1",
    }
