"""The types that an entry's fields have: what others' logs hold is not taken on trust."""

from collections.abc import Callable, Mapping
from typing import Any

LARGEST = 1 << 63
"""Whole numbers are smaller, so that databases and arrays can hold them."""


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _whole(value: Any) -> bool:
    return type(value) is int and -LARGEST <= value < LARGEST


def _number(value: Any) -> bool:
    return type(value) is float or _whole(value)


def _object(value: Any) -> bool:
    return isinstance(value, dict)


def _or_null(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


def _tensors(value: Any) -> bool:
    return isinstance(value, list) and all(_tensor(one) for one in value)


def _tensor(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == _TENSOR.keys() and _typed(value, _TENSOR)


def _shape(value: Any) -> bool:
    return isinstance(value, list) and all(map(_whole, value))


def _typed(record: Mapping[str, Any], checks: Mapping[str, Callable[[Any], bool]]) -> bool:
    return all(check(record[name]) for name, check in checks.items() if name in record)


_TENSOR = {
    **dict.fromkeys(("name", "dtype", "kind", "protection"), _text),
    **{"shape": _shape, "nbytes": _whole, "sha256": _or_null(_text)},
}
_TEXTS = (
    *("actor", "job", "method", "task", "direction", "peer", "policy", "exchange", "code_version", "code_digest"),
    *("model_digest", "outcome", "reason"),
)
_ENTRY = {
    **dict.fromkeys(("seq", "monotonic", "nbytes"), _whole),
    **dict.fromkeys(("prev_hash", "time", "site", "event"), _text),
    **dict.fromkeys(_TEXTS, _or_null(_text)),
    **dict.fromkeys(("epsilon_before", "epsilon_after"), _or_null(_number)),
    **{"round": _or_null(_whole), "dp_event": _or_null(_object), "tensors": _tensors},
    **dict.fromkeys(("wire", "admission"), _object),
}


def well_typed(record: Mapping[str, Any]) -> bool:
    """Whether each field of an entry that is there has a value of its type."""
    return _typed(record, _ENTRY)
