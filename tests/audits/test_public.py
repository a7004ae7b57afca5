"""The public surface of the package."""

import ast
import importlib
import inspect
import pkgutil
import sys

import audits

INTERNAL = {
    *{
        "anchor",
        "checkpoint",
        "cosigned_times",
        "counted",
        "escaping",
        "expiry",
        "export_fhir",
        "export_syslog",
        "files",
        "format_numbers",
        "forms",
        "group_commit",
        "lines",
        "members",
        "note",
        "own_checkpoints",
    },
    *{"running", "segments", "tile_verifier", "tile_writer", "tiles", "time_verdicts", "times", "tree"},
}
"""Modules that others of the package are made of; what is not exported of them is not public."""
SHARED_BETWEEN_MODULES = {
    "announce",
    "hashed_bytes",
    "parse_any",
    "parse_line",
    "wire_dtype",
    "worst",
    "read_keys",
    "replace_durably",
    "matching",
}
NO_CODE = {"EXIT_CODES", "RECEIPTS", "RETENTION_DAYS", "Tensors"}


def test_everything_that_a_module_defines_without_underscore_is_exported() -> None:
    """A class or function is either public and in `__all__`, private by name, or named here as internal."""
    defined = set()
    for found in pkgutil.iter_modules(audits.__path__, "audits."):
        module = importlib.import_module(found.name)
        for name, value in vars(module).items():
            own = (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__ == found.name
            if own and (found.name.removeprefix("audits.") not in INTERNAL or name in audits.__all__):
                defined.add(name)
    exported = set(audits.__all__) - NO_CODE
    assert {name for name in defined if not name.startswith("_")} - SHARED_BETWEEN_MODULES == exported


def test_every_export_exists_once_in_order_and_is_documented() -> None:
    """`__all__` is sorted, without repeats, and each class and function in it has a docstring."""
    assert audits.__all__ == sorted(set(audits.__all__))
    for name in set(audits.__all__) - NO_CODE:
        assert inspect.getdoc(getattr(audits, name)), name


def test_the_package_stands_on_the_ground_floor() -> None:
    """Its modules import the standard library, numpy, cryptography and each other, and nothing else of the project."""
    for found in pkgutil.iter_modules(audits.__path__, "audits."):
        tree = ast.parse(inspect.getsource(importlib.import_module(found.name)))
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        imported |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
        allowed = sys.stdlib_module_names | {"numpy", "cryptography", "audits"}
        assert {str(name).split(".")[0] for name in imported} <= allowed
