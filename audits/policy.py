"""A site's own allow-list: whatever it does not name is refused."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from audits.errors import PolicyError, Reason
from audits.exchange import Kind, TensorSpec, canonical


@dataclass(frozen=True)
class SitePolicy:
    """Which methods may run, and which kinds of tensors may cross the site's border, to or from which peers."""

    methods: tuple[str, ...]
    kinds: tuple[Kind, ...]
    recipients: tuple[str, ...] = ("server",)

    @classmethod
    def from_mapping(cls, found: Mapping[str, Any]) -> "SitePolicy":
        """Reads a site's configuration: lists of text under `methods`, `kinds` and, optionally, `recipients`.

        Raises `PolicyError` for a missing or unknown key and for a value of another type.
        """
        known = [field.name for field in fields(cls)]
        if not isinstance(found, Mapping) or not found.keys() <= set(known):
            raise PolicyError(f"the policy is a table with the keys {', '.join(known)} and no others")
        for key in ("methods", "kinds"):
            if key not in found:
                raise PolicyError(f"the policy lacks '{key}': give the list of what the site allows")
        lists = {key: _texts(key, value) for key, value in found.items()}
        if not set(lists["kinds"]) <= set(Kind):
            raise PolicyError(f"the policy's 'kinds' may hold only {', '.join(Kind)}")
        return cls(kinds=tuple(Kind(kind) for kind in lists.pop("kinds")), **lists)

    def digest(self) -> str:
        """SHA-256 in hex of what is allowed; the order in which a list names it does not matter."""
        allowed = {field.name: sorted(set(getattr(self, field.name))) for field in fields(self)}
        return hashlib.sha256(canonical(allowed)).hexdigest()

    def allows(self, method: str, spec: TensorSpec) -> str | None:
        """`None` if the method's tensor may cross the border to all the peers it is declared for, else the reason."""
        if method not in self.methods:
            return Reason.METHOD.format(method=method)
        if spec.kind not in self.kinds:
            return Reason.KIND.format(kind=spec.kind, name=spec.name)
        if not set(spec.recipients) <= set(self.recipients):
            return Reason.RECIPIENT.format(name=spec.name)
        return None


def _texts(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(text, str) and text for text in value):
        raise PolicyError(f"the policy's '{key}' must be a list of names")
    return tuple(value)
