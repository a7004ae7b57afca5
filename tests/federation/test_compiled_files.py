"""What an installed distribution consists of: every file counts, and compiled files that were not made here do not run.

The wheels are written by hand, as an attacker writes them, and installed without compiling.
"""

import importlib.util
import marshal
import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest
from plug_in import built, unpacked

from medfedvqa import plugins

ROOT = Path(__file__).parents[2]
HARMLESS = b"RAN = False\n\n\ndef method():\n    pass\n"
EVIL = HARMLESS.replace(b"False", b"True")
TAG = sys.implementation.cache_tag


def byte_code(source: bytes, flags: int) -> bytes:
    """What Python would write for this source, with these flags (PEP 552) and no time or hash that fits."""
    code = compile(source, "late.py", "exec")
    return importlib.util.MAGIC_NUMBER + flags.to_bytes(4, "little") + bytes(8) + marshal.dumps(code)


def late(place: Path, version: str, files: dict[str, bytes], module: str = "late_code.late") -> Path:
    """Writes a wheel by hand and installs it without compiling; its one entry point is in the module."""
    place.mkdir(exist_ok=True)
    wheel = built(place, version, {"late_code/__init__.py": b"", **files}, f"late_method = {module}:method")
    return unpacked(wheel, place / f"target-{version}")


LOAD = """
import sys
sys.path.insert(0, sys.argv[1])
from medfedvqa import plugins
from medfedvqa.errors import ConfigError
try:
    plugins.allow({"own-late": sys.argv[2]} if sys.argv[2:] else plugins.pinned("own-late"))
    plugins.load("methods", "late_method")
except ConfigError as error:
    print("refused:", error)
print("ran:", [name for name, module in sys.modules.items() if getattr(module, "RAN", False) is True])
"""


def loads_late(target: Path, *pin: str) -> str:
    """What a process of its own prints that allows the distribution, by a digest or as it is now, and loads it."""
    command = [sys.executable, "-c", LOAD, str(target), *pin]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True).stdout


def pin_of(target: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(target))
        return plugins.pinned("own-late")["own-late"]


CACHED = f"late_code/__pycache__/late.{TAG}.pyc"
REFUSED = {
    "listed": ({CACHED: byte_code(HARMLESS, 0)}, "brings compiled files"),
    "package": ({"late_code/__pycache__/inner.py": EVIL}, "modules in a folder named __pycache__"),
    "outer package": ({"__pycache__/__init__.py": EVIL}, "modules in a folder named __pycache__"),
    "legacy": ({"late_code/other.pyc": byte_code(EVIL, 0)}, "brings compiled files"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wheel_that_brings_compiled_files_or_hides_modules_among_them_is_refused(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each by one sentence, without a path, before anything of it is imported."""
    files, sentence = REFUSED[case]
    target = late(tmp_path / "SECRET", "1.0", {"late_code/late.py": HARMLESS, **files})
    monkeypatch.syspath_prepend(str(target))
    with pytest.raises(plugins.PlugInRefused, match=sentence) as caught:
        plugins.pinned("own-late")
    assert "SECRET" not in str(caught.value) and "late_code" not in sys.modules


FOUND = {
    "unchecked": (f"__pycache__/late.{TAG}.pyc", byte_code(EVIL, 1), "compares with no source"),
    "no source": (f"__pycache__/gone.{TAG}.pyc", byte_code(EVIL, 0), "without its source"),
    "legacy": ("gone.pyc", byte_code(EVIL, 0), "where Python writes none"),
    "below a cache": ("__pycache__/__pycache__/x.pyc", byte_code(EVIL, 0), "where Python writes none"),
    "machine code": ("__pycache__/fast.so", b"code", "modules in a folder named"),
}


@pytest.mark.parametrize("case", FOUND)
def test_compiled_files_that_lie_in_a_package_and_were_not_made_here_are_refused(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever put them there; the caches that Python writes itself, checked by time or hash, change no digest."""
    target = late(tmp_path, "1.0", {"late_code/late.py": HARMLESS})
    package = target / "late_code"
    before = pin_of(target, monkeypatch)
    for name, mode in (("late", "checked-hash"), ("__init__", "timestamp")):
        invalidation = py_compile.PycInvalidationMode[mode.upper().replace("-", "_")]
        py_compile.compile(str(package / f"{name}.py"), invalidation_mode=invalidation)
    assert len(list(package.glob("__pycache__/*.pyc"))) == 2 and pin_of(target, monkeypatch) == before
    name, content, sentence = FOUND[case]
    (package / name).parent.mkdir(parents=True, exist_ok=True)
    (package / name).write_bytes(content)
    with pytest.raises(plugins.PlugInRefused, match=sentence):
        pin_of(target, monkeypatch)


def test_the_pin_of_a_wheel_does_not_admit_another_whose_code_lies_in_a_folder_named_pycache(tmp_path: Path) -> None:
    """Nothing of the second version runs, nor of the first: a package of that name has no place in a wheel."""
    for version, source in (("1.0", EVIL.replace(b"True", b"True  # 1.0")), ("1.1", EVIL)):
        target = late(tmp_path, version, {"late_code/__pycache__/inner.py": source}, "late_code.__pycache__.inner")
        printed = loads_late(target)
        assert "rename the folder" in printed and printed.endswith("ran: []\n")


def test_byte_code_beside_a_harmless_source_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by the pin of the clean wheel, nor where a cache of the right time and size is taken for Python's own:
    the process compiles the source that was pinned."""
    clean = late(tmp_path, "1.0", {"late_code/late.py": HARMLESS})
    pin = pin_of(clean, monkeypatch)
    assert loads_late(clean, pin) == "ran: []\n"
    dirty = late(tmp_path / "dirty", "1.0", {"late_code/late.py": HARMLESS, CACHED: byte_code(EVIL, 1)})
    printed = loads_late(dirty, pin)
    assert "refused: the distribution 'own-late' brings compiled files" in printed and printed.endswith("ran: []\n")
    (clean / CACHED).parent.mkdir()
    (clean / CACHED).write_bytes(byte_code(EVIL, 1))
    printed = loads_late(clean, pin)
    assert "compares with no source" in printed and printed.endswith("ran: []\n")
    state = (clean / "late_code" / "late.py").stat()
    checked = int(state.st_mtime).to_bytes(4, "little") + state.st_size.to_bytes(4, "little")
    evil = byte_code(EVIL, 0)
    (clean / CACHED).write_bytes(evil[:8] + checked + evil[16:])
    assert loads_late(clean, pin) == "ran: []\n"


def test_every_installed_file_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data, entry points, files that no list names, also behind a link to a folder; notes of installers do not."""
    files = {"late_code/late.py": HARMLESS, "late_code/table.json": b"{}", "late_more/__init__.py": b""}
    target = late(tmp_path, "1.0", files)
    [info] = target.glob("*.dist-info")
    digests = [pin_of(target, monkeypatch)]
    (info / "REQUESTED").write_text("by somebody")
    (info / "INSTALLER").write_text("another\n")
    assert pin_of(target, monkeypatch) == digests[0]
    linked = tmp_path / "linked"
    linked.mkdir()
    (target / "late_more" / "link").symlink_to(linked)
    for path in (
        target / "late_code" / "table.json",
        info / "entry_points.txt",
        target / "late_more" / "unlisted.py",
        target / "late_code" / "__pycache__" / "late.nbc",
        linked / "far.py",
    ):
        path.parent.mkdir(exist_ok=True)
        path.write_text((path.read_text() if path.exists() else "") + "\n")
        digests.append(pin_of(target, monkeypatch))
    assert len(set(digests)) == 6
