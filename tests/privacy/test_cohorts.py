"""Keyed digests of patients."""

import contextlib
import hashlib
import hmac
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from privacy.ledger_journal import BudgetRefused, LedgerError
from privacy.patient_keys import KEY_NAME, SiteKey, load_key

KEY = SiteKey(b"k" * 32)


def test_digests_are_hmac_truncated_to_128_bits() -> None:
    """A patient's digest, a cohort's id and the fingerprint are what the documentation says, each for its purpose."""

    def digest(text: bytes) -> str:
        return hmac.new(b"k" * 32, text, hashlib.sha256).hexdigest()[:32]

    item, two = digest(b"\0ann"), digest("\0Bjørn".encode())
    assert KEY.patients(["ann", "Bjørn", "ann"]) == {item, two}
    assert KEY.cohort({item, two}) == digest(b"\1" + ",".join(sorted([item, two])).encode())
    assert KEY.fingerprint() == digest(b"\2")


def test_a_cohort_is_its_set_of_patients() -> None:
    """Order and repetition change nothing; one patient more, or another key, does."""

    def cohort(key: SiteKey, *patients: str) -> str:
        return key.cohort(key.patients(patients))

    assert cohort(KEY, "a", "b") == cohort(KEY, "b", "a", "b")
    assert len({cohort(KEY, "a", "b"), cohort(KEY, "a"), cohort(KEY, "ab"), cohort(SiteKey(b"j" * 32), "a", "b")}) == 4


@pytest.mark.parametrize("patients", [["a", ""], ["a", "  "], ["a", 7], []])
def test_every_row_needs_a_patient(patients: list[str]) -> None:
    """Rows without a patient would share one budget, or escape it; none is taken, and no other key is named."""
    with pytest.raises(BudgetRefused, match="no patient") as error:
        KEY.patients(patients)
    assert "'a'" not in str(error.value)


def test_text_that_is_not_unicode_has_a_digest() -> None:
    """A key read from a badly encoded file name does not end up in an encoder's error text."""
    assert len(KEY.patients(["\udce9"])) == 1


def test_the_key_is_random_private_and_kept(tmp_path: Path) -> None:
    """Made once, 32 bytes, mode 0600; every later opening, and one at the same moment, finds the same."""
    with ThreadPoolExecutor(8) as pool:
        prints = set(pool.map(lambda _: load_key(tmp_path, create=True).fingerprint(), range(8)))
    assert prints == {load_key(tmp_path, create=False).fingerprint()}
    [file] = tmp_path.iterdir()
    assert (file.name, file.stat().st_size, stat.S_IMODE(file.stat().st_mode)) == (KEY_NAME, 32, 0o600)
    (tmp_path / "other").mkdir()
    assert load_key(tmp_path / "other", create=True).fingerprint() not in prints


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda key: key.unlink(), "key file is missing: restore"),
        (lambda key: key.write_bytes(b"short"), "is damaged: .*; restore it from"),
        (lambda key: key.write_bytes(b""), "is damaged: .*; restore it from"),
        (lambda key: key.chmod(0o640), "read by others: .* mode 0600"),
        (lambda key: (key.unlink(), key.mkdir(0o700)), "without its key"),
    ],
)
def test_a_key_that_cannot_be_trusted_is_refused(
    tmp_path: Path, spoil: Callable[[Path], object], sentence: str
) -> None:
    """No key is made in the place of a lost one, and no error names the folder."""
    load_key(tmp_path, create=True)
    spoil(tmp_path / KEY_NAME)
    with pytest.raises(LedgerError, match=sentence) as error:
        load_key(tmp_path, create=False)
    assert str(tmp_path) not in str(error.value)


def test_a_key_is_never_made_unasked(tmp_path: Path) -> None:
    """Refusing leaves the folder as it was."""
    with contextlib.suppress(LedgerError):
        load_key(tmp_path, create=False)
    assert not list(tmp_path.iterdir())
