"""A small distribution with a method of its own, built from files and installed by pip, offline."""

import base64
import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from medfedvqa import plugins
from medfedvqa.core import registry

NAME, VERSION = "Acme.Federated", "1.4.2"
METHOD = '''"""A method from outside."""
from medfedvqa.core import register
from medfedvqa.methods.fedavg import FedAvg


@register
class AcmeAvg(FedAvg):
    """Federated averaging under another name."""

    name = "acme_avg"

    def train(self, site, state, received, round):
        from acme_federated.schedule import FACTOR
        from acme_loose import OFFSET
        assert FACTOR + OFFSET
        return super().train(site, state, received, round)
'''
FILES = {
    "pyproject.toml": f"""
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "{NAME}"
version = "{VERSION}"
[tool.hatch.build.targets.wheel]
packages = ["acme_federated"]
""",
    "acme_federated/__init__.py": METHOD,
    "acme_federated/schedule.py": "FACTOR = 1\n",
}
LOOSE = "OFFSET = 2\n"


def sources(folder: Path) -> Path:
    """The distribution's sources."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def installed(source: Path, target: Path, *options: str) -> Path:
    """Builds the distribution and installs it into a folder, where a loose module lies as well."""
    offline = ["--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "-q"]
    command = [sys.executable, "-m", "pip", "install", *offline, *(options or ("--target", str(target))), str(source)]
    subprocess.run(command, check=True, timeout=300, env={**os.environ, "PIP_CONFIG_FILE": os.devnull})
    target.mkdir(exist_ok=True)
    (target / "acme_loose.py").write_text(LOOSE)
    return target


def built(folder: Path, version: str, files: Mapping[str, bytes], points: str) -> Path:
    """A wheel of the distribution `own-late` with exactly these files, as somebody writes one by hand."""
    info = f"own_late-{version}.dist-info"
    every = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: own-late\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[medfedvqa.methods]\n{points}\n".encode(),
    }
    digests = {name: base64.urlsafe_b64encode(hashlib.sha256(data).digest()) for name, data in every.items()}
    record = "".join(f"{name},sha256={digests[name].rstrip(b'=').decode()},{len(every[name])}\n" for name in every)
    wheel = folder / f"own_late-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in {**every, f"{info}/RECORD": f"{record}{info}/RECORD,,\n".encode()}.items():
            archive.writestr(name, data)
    return wheel


def unpacked(wheel: Path, target: Path) -> Path:
    """Installs a wheel as installers do that do not compile."""
    offline = ["--no-index", "--no-deps", "--no-compile", "--disable-pip-version-check", "-q", "--target", str(target)]
    command = [sys.executable, "-m", "pip", "install", *offline, str(wheel)]
    subprocess.run(command, check=True, timeout=300, env={**os.environ, "PIP_CONFIG_FILE": os.devnull})
    return target


def forget_plug_ins(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """This process can import what is in the folder; what it allows, loads and registers is forgotten afterwards."""
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(plugins, "_allowed", {})
    monkeypatch.setattr(plugins, "_loaded", {})
    for name in ("pycache_prefix", "dont_write_bytecode"):  # loading a distribution sets them
        monkeypatch.setattr(sys, name, getattr(sys, name))
    forget_methods(monkeypatch)


def forget_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods that register themselves during a test are forgotten afterwards; the project's own stay."""
    registry.method_names()  # loads the project's own, once in a process
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))
