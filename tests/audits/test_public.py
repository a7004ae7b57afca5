"""The public surface of the package."""

import ast
import importlib
import inspect
import pkgutil
import sys
from collections import Counter
from pathlib import Path

import audits

HOME = Path(audits.__file__).parent
NO_CODE = {"EXIT_CODES", "Tensors"}


def test_the_public_names_are_those_that_several_modules_of_other_packages_use() -> None:
    """Product code takes a name from `audits` only if two modules do so, and no name is public without such use."""
    uses = Counter(
        name.name
        for package in ("medfedvqa", "privacy", "benchmarks")
        for path in (HOME.parent / package).rglob("*.py")
        for name in {
            name
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom) and node.module == "audits"
            for name in node.names
        }
    )
    assert {name for name, count in uses.items() if count > 1} == set(audits.__all__) == set(uses)


def test_every_export_exists_once_in_order_and_is_documented() -> None:
    """`__all__` is sorted, without repeats, and each class and function in it has a docstring."""
    assert audits.__all__ == sorted(set(audits.__all__))
    for name in set(audits.__all__) - NO_CODE:
        assert inspect.getdoc(getattr(audits, name)), name


def test_the_package_stands_on_the_ground_floor() -> None:
    """Its modules import the standard library, numpy, cryptography, msgspec and each other."""
    for module in pkgutil.iter_modules(audits.__path__, "audits."):
        tree = ast.parse(inspect.getsource(importlib.import_module(module.name)))
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        imported |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
        allowed = sys.stdlib_module_names | {"numpy", "cryptography", "msgspec", "audits"}
        assert {str(name).split(".")[0] for name in imported} <= allowed
