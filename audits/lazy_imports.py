"""Imports a package's names at their first use. They are the names that its file imports under `TYPE_CHECKING`."""

import ast
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


@cache
def places(file: str) -> dict[str, tuple[str, str]]:
    """The module, and the name there, of each name that a file imports under `if TYPE_CHECKING:`."""
    blocks = [node for node in ast.parse(Path(file).read_bytes()).body if isinstance(node, ast.If)]
    imports = [
        node
        for block in blocks
        if isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
    ]
    return {name.asname or name.name: (str(node.module), name.name) for node in imports for name in node.names}


def at_first_use(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions `__getattr__` and `__dir__` for `package`, whose `__init__` is `file`: modules are imported at
    first use.
    """

    def find(name: str) -> Any:
        if name not in places(file):
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        module, attribute = places(file)[name]
        return getattr(import_module(module), attribute)

    return find, lambda: list(sys.modules[package].__all__)
