"""The types that an entry's fields have: what others' logs hold is not taken on trust."""

from collections.abc import Mapping
from types import NoneType
from typing import Any

LARGEST = 1 << 63
"""Whole numbers are smaller, so that databases and arrays can hold them."""
MOST_DEPTH = 32
"""Levels of objects and lists within a field, so that every reader can walk through it."""

_TEXT, _WHOLE, _OBJECT = frozenset((str,)), frozenset((int,)), frozenset((dict,))
_OR_NULL = frozenset((NoneType,))
_TEXTS = (
    *("actor", "job", "method", "task", "direction", "peer", "policy", "exchange", "code_version", "code_digest"),
    *("model_digest", "outcome", "reason"),
)
_ENTRY: Mapping[str, frozenset[type]] = {
    **dict.fromkeys(("seq", "monotonic", "nbytes"), _WHOLE),
    **dict.fromkeys(("prev_hash", "time", "site", "event"), _TEXT),
    **dict.fromkeys(_TEXTS, _TEXT | _OR_NULL),
    **dict.fromkeys(("epsilon_before", "epsilon_after"), frozenset((int, float)) | _OR_NULL),
    **{"round": _WHOLE | _OR_NULL, "dp_event": _OBJECT | _OR_NULL, "tensors": frozenset((list,))},
    **dict.fromkeys(("wire", "admission", "code", "sharing", "expiry"), _OBJECT),
}
_TENSOR: Mapping[str, frozenset[type]] = {
    **dict.fromkeys(("name", "dtype", "kind", "protection"), _TEXT),
    **{"shape": frozenset((list,)), "nbytes": _WHOLE, "sha256": _TEXT | _OR_NULL},
}


def well_typed(record: Mapping[str, Any]) -> bool:
    """Whether each field of an entry has a value of its type; the names are those of an entry."""
    return _typed(record, _ENTRY) and all(map(_is_tensor, record["tensors"]))


def bounded(value: Any, depth: int = MOST_DEPTH) -> bool:
    """Whether plain JSON is nested no deeper than this, with whole numbers of 63 bits only."""
    if type(value) is int:
        return -LARGEST <= value < LARGEST
    if type(value) is dict or type(value) is list:
        parts = value.values() if type(value) is dict else value
        return depth > 0 and all(bounded(part, depth - 1) for part in parts)
    return True


def _is_tensor(value: Any) -> bool:
    if type(value) is not dict or value.keys() != _TENSOR.keys() or not _typed(value, _TENSOR):
        return False
    return all(type(size) is int and -LARGEST <= size < LARGEST for size in value["shape"])


def _typed(record: Mapping[str, Any], types: Mapping[str, frozenset[type]]) -> bool:
    for name, value in record.items():
        kind = type(value)
        if kind not in types[name] or (kind is not list and not bounded(value)):
            return False
    return True
