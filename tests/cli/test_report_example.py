"""The report in `docs/examples/report`: it verifies on any machine, and an edited figure does not."""

import json
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from privacy.withdrawn import CodeIdentity, withdrawal_of, withdrawals

Command = Callable[..., Any]
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "report"
KEY = (EXAMPLE / "chest.key").read_text().strip()


def test_the_example_verifies_with_the_key_beside_it(medfedvqa: Command) -> None:
    """A real job on VQA-RAD, under differential privacy and on shares, attacked, beside the same job without.

    All is shown, but for the epsilon itself where a version ran the job whose epsilons do not hold.
    """
    done = medfedvqa("privacy", "verify-report", str(EXAMPLE / "chest"), "--key", KEY, "--json")
    parts = {part["name"]: part["state"] for part in json.loads(done.stdout)["parts"]}
    told = {row["id"]: row["value"] for row in json.loads((EXAMPLE / "chest" / "report.json").read_text())["rows"]}
    ran = told["identity.code_versions"]
    withdrawn = withdrawal_of([CodeIdentity(version, None) for version in ran], withdrawals())
    assert parts["code"] == ("not shown" if withdrawn else "shown") and parts["figures"] == "shown"
    assert done.returncode == (2 if withdrawn else 0), done.stdout
    assert {state for name, state in parts.items() if name not in ("code", "wording")} == {"shown"}
    assert told["claim.made"] and told["trust.aggregation"] == "on shares"
    assert told["empirical.attacked"] and told["empirical.same_settings"] and not told["empirical.refuted"]
    assert told["empirical.cost_of_privacy"] is not None


def test_an_edited_figure_of_the_example_is_found(medfedvqa: Command, tmp_path: Path) -> None:
    """Epsilon, to begin with."""
    shutil.copytree(EXAMPLE / "chest", tmp_path / "chest")
    path = tmp_path / "chest" / "report.json"
    told = json.loads(path.read_text("utf-8"))
    (row,) = (row for row in told["rows"] if row["id"] == "claim.epsilon")
    row["value"] /= 2
    path.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", "utf-8")
    assert medfedvqa("privacy", "verify-report", str(tmp_path / "chest"), "--key", KEY).returncode == 1


def test_the_joined_example_holds_this_report_and_two_others(medfedvqa: Command) -> None:
    """By the digest of its file."""
    joined = json.loads((EXAMPLE / "joined" / "joined.json").read_text())
    digests = {one["site"]: one["sha256"] for one in joined["sites"]}
    assert sorted(digests) == ["abdomen", "chest", "head"] and joined["state"] == "shown"
    assert digests["chest"] == sha256((EXAMPLE / "chest" / "report.json").read_bytes()).hexdigest()


def test_the_example_is_small() -> None:
    """All of it together, in bytes."""
    assert sum(path.stat().st_size for path in EXAMPLE.rglob("*") if path.is_file()) < 1_500_000
