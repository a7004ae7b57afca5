"""requirements.lock: what the Makefile installs is all that pyproject.toml asks for."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WEIGHTS = "words"
"""The extra that holds files of weights alone. A developer chooses it: demo and tests do without."""
EXTRAS = [group for name, group in PROJECT["optional-dependencies"].items() if name != WEIGHTS]
ASKED = [
    one
    for group in (PROJECT["dependencies"], *EXTRAS)
    for one in map(Requirement, group)
    if one.name != PROJECT["name"]
]


@pytest.fixture(scope="module")
def locked() -> dict[str, str]:
    """The version of each package in the lock, by canonical name."""
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in pins}


def test_the_lock_names_a_fitting_version_of_every_requirement(locked: dict[str, str]) -> None:
    """Of the package and of every extra but that of weights: a clean clone lacks nothing that a developer's environment
    happens to have."""
    unmet = [
        str(one)
        for one in ASKED
        if not one.specifier.contains(locked.get(canonicalize_name(one.name), "0"), prereleases=True)
        or canonicalize_name(one.name) not in locked
    ]
    assert unmet == []
