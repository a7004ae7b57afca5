"""Versions whose epsilons are withdrawn."""

import json
from pathlib import Path

import pytest

from medfedvqa.version import VERSION, code_digest
from privacy import SettingsError
from privacy.withdrawn import CodeIdentity, Withdrawal, withdrawal_of, withdrawals

DIGEST_OF_0_1_0 = "4eb05199b4284b0d0c008d7ee7e37d29529ead599a8deda38ea3492ffdd45b81"
"""Of commit 1bcfca7, the last of version 0.1.0."""
ENTRY = {"reason": "Its noise was too small.", "since": "2027-01-02"}


@pytest.mark.parametrize(
    "code", [CodeIdentity("0.1.0", "ab" * 32), CodeIdentity("0.1.0", None), CodeIdentity("9.9", DIGEST_OF_0_1_0)]
)
def test_version_0_1_0_is_withdrawn_whatever_commit_and_its_code_whatever_version(code: CodeIdentity) -> None:
    """With the reason, as a sentence."""
    result = withdrawal_of([code], withdrawals())
    assert result and "0.1.0 is withdrawn since 2026-11-22" in result.sentence and "no proof" in result.sentence


@pytest.mark.parametrize("version", ["0.1.1", "0.1.2", "0.2.0"])
def test_later_versions_up_to_0_2_0_hold_in_exact_arithmetic_only(version: str) -> None:
    """Their proofs stand, and noise in single precision did not hide the low bits of a sum: the sentence says both."""
    result = withdrawal_of([CodeIdentity(version, "ab" * 32)], withdrawals())
    assert result and result.exact_arithmetic
    assert f"epsilons of version {version} hold in exact arithmetic only" in result.sentence
    assert "low bits" in result.sentence


def test_this_version_is_not_withdrawn() -> None:
    """New jobs have valid epsilons."""
    assert withdrawal_of([CodeIdentity(VERSION, code_digest()), CodeIdentity(None, None)], withdrawals()) is None


def test_a_site_extends_the_list(tmp_path: Path) -> None:
    """By version, by digest or by both; what ships stays in it."""
    file = tmp_path / "withdrawn.json"
    file.write_text(json.dumps([{**ENTRY, "version": "7.0"}, {**ENTRY, "code_digest": "cd" * 32}]))
    listed = withdrawals(file)
    assert len(listed) == len(withdrawals()) + 2
    for code in (CodeIdentity("7.0", None), CodeIdentity("8.0", "cd" * 32)):
        result = withdrawal_of([CodeIdentity(VERSION, None), code], listed)
        assert result and "Its noise was too small." in result.sentence
    assert withdrawal_of([CodeIdentity("8.0", "ab" * 32)], listed) is None


@pytest.mark.parametrize(
    "written",
    [
        "",
        "{}",
        json.dumps([ENTRY]),
        json.dumps([{"version": "7.0", "since": "2027-01-02"}]),
        json.dumps([{**ENTRY, "version": "7.0", "surplus": 1}]),
        json.dumps([{**ENTRY, "version": 7}]),
    ],
)
def test_a_list_that_names_no_code_or_gives_no_reason_is_refused(tmp_path: Path, written: str) -> None:
    """An entry that is misread would withdraw nothing, silently."""
    file = tmp_path / "withdrawn.json"
    file.write_text(written)
    with pytest.raises(SettingsError, match="withdrawn versions"):
        withdrawals(file)
    with pytest.raises(SettingsError, match="withdrawn versions"):
        withdrawals(tmp_path / "missing.json")


def test_code_without_a_name_is_covered_by_no_entry() -> None:
    """An entry by version or by digest says nothing of an entry of the log that names neither, or the other alone."""
    assert not Withdrawal(code_digest="cd" * 32, **ENTRY).covers(CodeIdentity(None, "ab" * 32))
    assert not Withdrawal(version="7.0", **ENTRY).covers(CodeIdentity("8.0", None))
    assert not Withdrawal(version="0.1.0", **ENTRY).covers(CodeIdentity(None, None))
