"""Versions of this software with withdrawn epsilons, because a fault voids the proof behind them.

The list ships with the package (`withdrawn.json`). A site extends it with a file of the same form beside its ledger:
a list of entries with `version`, `code_digest` or both, the `reason` as a sentence, and the day `since` when it holds.
An entry with `exact_arithmetic` leaves the proof intact: only real machines' arithmetic deviates from the proof's.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, TypeAdapter, model_validator

from audits.bounded_files import MAX_TEXT, read_bounded
from audits.code import JobCode
from privacy.errors import SettingsError

WITHDRAWN = "withdrawn.json"
"""Name of the list, in the package and beside a ledger."""


class CodeIdentity(NamedTuple):
    """The code that ran, as named in log entries."""

    version: str | None
    digest: str | None


def identities(version: str | None, digest: str | None, code: Mapping[str, Any] | None) -> Iterator[CodeIdentity]:
    """Which code an entry names: the project's version and the digest of all code, then the digest of each part.

    `code`: the entry's field of this name, if it has one. Raises `LogError` if that is malformed.
    """
    yield CodeIdentity(version, digest)
    if code is not None:
        yield from (CodeIdentity(None, part.sha256) for part in JobCode.from_record(code).parts)


class Withdrawal(BaseModel):
    """Withdraws the epsilons of this version's code, or of any code that has a part with this digest."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    version: str | None = None
    code_digest: str | None = None
    reason: str
    since: str
    exact_arithmetic: bool = False
    """Whether the epsilons do hold in exact arithmetic, and are void only on a machine's floating-point numbers."""

    @model_validator(mode="after")
    def _names_code(self) -> "Withdrawal":
        if self.version is None and self.code_digest is None:
            raise ValueError("an entry needs 'version' or 'code_digest'")
        return self

    def covers(self, code: CodeIdentity) -> bool:
        """Whether the epsilons of this code are withdrawn."""
        by_version = self.version is not None and self.version == code.version
        return by_version or (self.code_digest is not None and self.code_digest == code.digest)

    @property
    def sentence(self) -> str:
        """The sentence about the withdrawal: its subject, date and reason."""
        subject = f"version {self.version}" if self.version else f"code {(self.code_digest or '')[:16]}"
        if self.exact_arithmetic:
            return f"epsilons of {subject} hold in exact arithmetic only, as is known since {self.since}. {self.reason}"
        return f"{subject} is withdrawn since {self.since}. {self.reason}"


_LIST = TypeAdapter(tuple[Withdrawal, ...])


def withdrawals(more: Path | None = None) -> tuple[Withdrawal, ...]:
    """The list that ships, and the entries of the file `more`. Raises `SettingsError` if that is no such list."""
    shipped = _LIST.validate_json(files(__package__).joinpath(WITHDRAWN).read_bytes())
    if more is None:
        return shipped
    try:
        return (*shipped, *_LIST.validate_json(read_bounded(more, MAX_TEXT)))
    except (OSError, ValueError):
        raise SettingsError(
            "the list of withdrawn versions cannot be read: write a JSON list of entries with 'version' or "
            "'code_digest', 'reason' and 'since'"
        ) from None


def withdrawal_of(codes: Iterable[CodeIdentity], among: Sequence[Withdrawal]) -> Withdrawal | None:
    """The first entry that covers any of these, None if there is none."""
    return next((withdrawal for code in codes for withdrawal in among if withdrawal.covers(code)), None)
