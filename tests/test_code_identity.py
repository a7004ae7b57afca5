"""Which code a log names: what takes part from outside of the project, however it was installed."""

import importlib
import importlib.machinery
import json
import os
import py_compile
import shutil
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from types import ModuleType

import pytest
from plug_in import FILES, LOOSE, NAME, VERSION, forget_methods, installed, sources

from audits import CodeKind, JobCode, LogError, NewerFormat
from audits.code import CodePart
from medfedvqa import code_identity
from medfedvqa.code_identity import ChangedCode, check_unchanged, remember, running_code
from medfedvqa.installed_code import imports, owner_of
from medfedvqa.version import PACKAGES

OURS = ("acme", "bare")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the distribution; tests write into copies of it."""
    place = tmp_path_factory.mktemp("identity")
    return installed(sources(place / "source"), place / "target")


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods that register themselves here are forgotten afterwards."""
    forget_methods(monkeypatch)


@pytest.fixture
def place(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of that folder, from which this process can import."""
    copied = tmp_path / "copied"
    for path in (path for path in target.rglob("*") if path.is_file()):
        (copied / path.relative_to(target)).parent.mkdir(parents=True, exist_ok=True)
        (copied / path.relative_to(target)).write_bytes(path.read_bytes())
    monkeypatch.syspath_prepend(str(copied))
    yield copied
    for name in [name for name in sys.modules if name.startswith(OURS)]:
        del sys.modules[name]


def added(module: str, name: str = "rate") -> list[CodePart]:
    """What a function of a module adds to a job's code."""
    loaded = importlib.import_module(module)
    return [part for part in running_code(getattr(loaded, name)).parts if part.kind in OUTSIDE]


OUTSIDE = (CodeKind.PLUG_IN, CodeKind.MODULE)
FUNCTION = "def rate():\n    return 1\n"


def written(file: Path, text: str = FUNCTION) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    importlib.invalidate_caches()
    return file


def test_any_module_of_a_distribution_changes_its_digest_and_caches_and_notes_of_pip_do_not(place: Path) -> None:
    """Also a module that nothing has imported yet; the name and the version are those of the distribution."""
    written(place / "acme_federated" / "rates.py")
    [before] = [part for part in added("acme_federated.rates") if part.kind is CodeKind.PLUG_IN]
    assert (before.name, before.version) == (NAME, VERSION)
    py_compile.compile(str(place / "acme_federated" / "schedule.py"))
    written(next(place.glob("*.dist-info")) / "REQUESTED", "by somebody")
    assert before in added("acme_federated.rates")
    written(place / "acme_federated" / "schedule.py", "FACTOR = 9\n")
    assert before not in added("acme_federated.rates")


def test_a_compiled_module_beside_the_sources_is_part_of_the_digest(place: Path) -> None:
    """Its bytes are hashed like those of a source."""
    written(place / "acme_federated" / "rates.py")
    before = added("acme_federated.rates")
    written(place / "acme_federated" / f"fast{importlib.machinery.EXTENSION_SUFFIXES[0]}", "machine code")
    assert added("acme_federated.rates") != before


def importing(place: Path, *modules: str) -> JobCode:
    """The code of a function that lies in no distribution and imports these modules of `acme_federated`."""
    written(place / "bare_user.py", "".join(f"import acme_federated.{name}\n" for name in modules) + FUNCTION)
    return running_code(importlib.import_module("bare_user").rate)


def test_a_distribution_that_outside_code_imports_is_named_by_its_record(place: Path) -> None:
    """The record without what differs from one installation of a wheel to the next."""
    written(next(place.glob("*.dist-info")) / "REQUESTED", "by somebody")
    [part] = [part for part in importing(place, "schedule").parts if part.name == NAME]
    record = next(place.glob("*.dist-info")) / "RECORD"
    lines = [line for line in record.read_text().splitlines() if line.startswith("acme_federated/")]
    lines = sorted(line for line in lines if "__pycache__" not in line)
    assert len(lines) == 2 and part.sha256 == sha256("\n".join(lines).encode()).hexdigest()
    assert (part.kind, part.version) == (CodeKind.DEPENDENCY, VERSION)


def test_a_loaded_module_that_is_not_what_its_record_lists_is_found(place: Path) -> None:
    """One that somebody changed after it was installed, and one that somebody put beside the others."""
    written(place / "acme_federated" / "rates.py")
    written(place / "acme_federated" / "schedule.py", "FACTOR = 9\n")
    for module in ("schedule", "rates"):
        with pytest.raises(ChangedCode, match=f"a file of the distribution '{NAME}' is not the one that was installed"):
            importing(place, module)
        for name in [name for name in sys.modules if name.startswith(OURS)]:
            del sys.modules[name]
    written(place / "acme_federated" / "schedule.py", FILES["acme_federated/schedule.py"])
    importing(place, "schedule")


def test_a_changed_file_of_what_the_project_requires_is_found_once_it_is_loaded(tmp_path: Path) -> None:
    """A copy of a library as it was installed, with one more line in one module."""
    lines = (
        "import annotated_types, sys",
        "from medfedvqa.code_identity import ChangedCode, remember, running_code",
        "print(annotated_types.__file__)",
        "try:",
        "    print(len(running_code(remember).parts) > 9)",
        "except ChangedCode as error:",
        "    print(error)",
    )
    import annotated_types

    installed_at = Path(annotated_types.__file__).parents[1]
    for folder in ("annotated_types", *(path.name for path in installed_at.glob("annotated_types-*.dist-info"))):
        shutil.copytree(installed_at / folder, tmp_path / folder)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(__file__).parents[1])])}
    command = [sys.executable, "-c", "\n".join(lines)]
    said = []
    for more in ("", "# changed\n"):
        with (tmp_path / "annotated_types" / "__init__.py").open("a") as file:
            file.write(more)
        done = subprocess.run(command, capture_output=True, check=True, text=True, env=environment, cwd=tmp_path)
        said += done.stdout.splitlines()
    assert said[0] == said[2] and said[0].startswith(str(tmp_path)) and said[1] == "True"
    assert said[3].startswith("a file of the distribution 'annotated-types' is not the one that was installed")


def test_a_linked_installation_is_named_and_follows_its_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pip install --editable`: the distribution's own record lists no module."""
    source = sources(tmp_path / "source")
    written(source / "acme_federated" / "rates.py")
    prefix = tmp_path / "prefix"
    installed(source, tmp_path / "loose", "--prefix", str(prefix), "--editable")
    [folder] = prefix.rglob("site-packages")
    monkeypatch.syspath_prepend(str(folder))
    [linked] = folder.glob("*.pth")
    monkeypatch.syspath_prepend(linked.read_text().strip())
    monkeypatch.syspath_prepend(str(tmp_path / "loose"))
    try:
        [before] = [part for part in added("acme_federated.rates") if part.name]
        assert (before.kind, before.name, before.version) == (CodeKind.PLUG_IN, NAME, VERSION)
        written(source / "acme_federated" / "schedule.py", "FACTOR = 9\n")
        assert before not in added("acme_federated.rates")
    finally:
        for name in [name for name in sys.modules if name.startswith(OURS)]:
            del sys.modules[name]


def test_a_namespace_package_is_told_apart_from_what_else_is_in_it(place: Path) -> None:
    """Two distributions, or two people, may share an outer name without code."""
    one = written(place / "acme_space" / "first" / "__init__.py")
    written(place / "acme_space" / "second.py", "from acme_space import first\n" + FUNCTION)
    other = written(place / "acme_space" / "third.py", FUNCTION + "# not reached\n")
    digests = {part.sha256 for part in added("acme_space.second")}
    assert sha256(one.read_bytes()).hexdigest() in digests and len(digests) == 2
    assert sha256(other.read_bytes()).hexdigest() not in digests


def test_what_a_function_imports_when_it_runs_takes_part_too(place: Path) -> None:
    """Nothing has imported it when the job opens."""
    written(place / "bare_late.py")
    written(place / "bare_early.py", "def rate():\n    if True: import bare_late; return bare_late\n")
    digests = [part.sha256 for part in added("bare_early")]
    assert "bare_late" not in sys.modules
    assert sha256(FUNCTION.encode()).hexdigest() in digests and len(digests) == 2


def test_a_loose_module_is_named_by_the_digest_of_its_file_alone(place: Path) -> None:
    """Neither its name nor its folder is in the record."""
    written(place / "bare_loose.py", LOOSE + FUNCTION)
    code = running_code(importlib.import_module("bare_loose").rate)
    assert CodePart(CodeKind.MODULE, None, None, sha256((LOOSE + FUNCTION).encode()).hexdigest()) in code.parts
    assert "bare_loose" not in str(code.record()) and str(place) not in str(code.record())


def test_code_in_no_file_is_said_to_be_unidentified(place: Path) -> None:
    """A class of a notebook, and a module whose file is gone."""
    notebook = ModuleType("bare_notebook")
    exec(FUNCTION, vars(notebook))
    sys.modules[notebook.__name__] = notebook
    unknown = CodePart(CodeKind.MODULE, None, None, None)
    assert added("bare_notebook") == [unknown]
    file = written(place / "bare_gone.py")
    importlib.import_module("bare_gone")
    file.unlink()
    assert added("bare_gone") == [unknown]


def test_a_class_takes_part_with_its_bases_and_with_what_others_put_into_it(place: Path) -> None:
    """A base of another module, and a function that replaces a method."""
    base = written(place / "bare_base.py", "class Base:\n    pass\n")
    patch = written(place / "bare_patch.py")
    written(place / "acme_class.py", "import sys\nBase = sys.modules['bare_base'].Base\nclass Own(Base):\n    pass\n")
    importlib.import_module("bare_base")
    own = importlib.import_module("acme_class").Own
    assert sha256(base.read_bytes()).hexdigest() in {part.sha256 for part in running_code(own).parts}
    assert sha256(patch.read_bytes()).hexdigest() not in {part.sha256 for part in running_code(own).parts}
    own.rate = importlib.import_module("bare_patch").rate
    assert sha256(patch.read_bytes()).hexdigest() in {part.sha256 for part in running_code(own).parts}


def test_a_class_whose_file_was_written_again_is_not_what_was_loaded(place: Path) -> None:
    """Also with the same size and the same time of change; loading it again makes it good."""
    file = written(place / "bare_class.py", "class Own:\n    rate = 1\n")
    own = importlib.import_module("bare_class").Own
    remember(own)
    check_unchanged(own)
    before = file.stat()
    file.write_text("class Own:\n    rate = 2\n")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ChangedCode, match="start the process again"):
        check_unchanged(own)
    remember(own)
    check_unchanged(own)


def test_a_job_s_code_does_not_depend_on_what_else_was_imported() -> None:
    """A process that runs one job, and one that has also loaded research and the other methods, name the same
    code: the project, and what it and that requires."""
    lines = (
        "import json, sys",
        "from medfedvqa.code_identity import running_code",
        "from medfedvqa.core.registry import method_names, method_type",
        "if sys.argv[1:]:",
        "    method_names()",
        "    import medfedvqa.research.benchmark.study",
        "from medfedvqa.federation.site_runtime import SiteRuntime",
        "code = running_code(SiteRuntime, method_type('prompt_pfl'))",
        "ours = [name for name in sys.modules if name.startswith('medfedvqa.')]",
        "others = {name.split('.methods.')[1] for name in ours if '.methods.' in name}",
        "print(json.dumps([code.digest, [part.name for part in code.parts], sorted(others)]))",
    )
    ran = [subprocess.run([sys.executable, "-c", "\n".join(lines), *more], capture_output=True, check=True, text=True)
           for more in ((), ("more",))]  # fmt: skip
    (digest, names, alone), (other, _, every) = (json.loads(done.stdout) for done in ran)
    assert digest == other and alone == ["prompt_pfl"] and len(every) > 15
    assert {"opacus", "transformers", "pydicom", "open_clip_torch", "tokenizers"} <= set(names)


def test_a_file_that_was_changed_before_it_was_imported_is_not_what_the_digest_is_over(tmp_path: Path) -> None:
    """An upgrade under a process that has started: a method that it then imports is not of the code that it names."""
    root = Path(__file__).parents[1]
    for path in (path for package in PACKAGES for path in (root / package).rglob("*.py")):
        written(tmp_path / path.relative_to(root), path.read_text())
    lines = (
        "import medfedvqa.code_identity as identity, medfedvqa.version as version",
        "from medfedvqa.core.registry import method_type",
        "version.code_digest()",
        "for name in ('fedavg', 'fedprox'):",
        "    with open(version.project_files()[0][1].parents[1] / 'medfedvqa/methods/moon.py', 'a') as file:",
        "        file.write('# upgraded')",
        "    identity.running_code(method_type(name))",
        "try:",
        "    identity.running_code(method_type('moon'))",
        "except identity.ChangedCode as error:",
        "    print(error)",
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(command, capture_output=True, check=True, text=True, env=environment, cwd=tmp_path)
    assert done.stdout == "the project's code has changed since this process started: start it again\n"


def test_the_project_alone_has_no_part_from_outside_and_the_same_digest_each_time() -> None:
    """What it requires is named by version; what only its tests and pages require is not."""
    code = running_code(code_identity.JobCode, remember)
    assert code.digest == running_code(remember, code_identity.JobCode).digest
    assert {part.kind for part in code.parts} == {CodeKind.PROJECT, CodeKind.DEPENDENCY}
    named = {part.name for part in code.parts}
    assert "numpy" in named and not {"pytest", "hypothesis", "sphinx"} & named


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("import a, b.c as d  # e\n", {"a", "b.c"}),
        ("from a.b import (\n    c,  # d\n    e as f,\n)\n", {"a.b.c", "a.b.e"}),
        ("def late():\n    from b \\\n    import c\n", {"b.c"}),
        ("from . import a\nfrom .b import c\nimporting = 1\nx = 'import y'\n", set()),
        ("import a\nno Python\n", set()),
    ],
)
def test_imports_are_read_as_python_reads_them(source: str, named: set[str], tmp_path: Path) -> None:
    """Renamed, within functions; relative ones are the package's own, and what Python cannot read imports nothing."""
    assert imports([written(tmp_path / "bare_imports.py", source)]) == named


def test_a_record_of_code_is_read_strictly() -> None:
    """Another order, a path for a name, a part twice: none is what this version writes. An unknown kind is a
    newer version's."""
    code = JobCode((CodePart(CodeKind.MODULE, None, None, "ab" * 32), CodePart(CodeKind.PROJECT, "p", "1", "cd" * 32)))
    record = code.record()
    assert JobCode.from_record(record) == code and code.parts[0].kind is CodeKind.PROJECT
    one, other = record["parts"]
    for parts in (
        [other, one],
        [one, other, other],
        [one | {"name": "/a"}],
        [one | {"more": 1}],
    ):
        with pytest.raises(LogError):
            JobCode.from_record({"parts": parts})
    with pytest.raises(NewerFormat):
        JobCode.from_record({"parts": [one | {"kind": "x"}]})
    for record in ({}, {"parts": None}, {"parts": [None]}, {"parts": [one], "more": 1}, {"parts": [one | {"name": 1}]}):
        with pytest.raises(LogError):
            JobCode.from_record(record)


def test_the_projects_own_folder_owns_nothing_else(place: Path) -> None:
    """A file of nobody has no owner; a module of a dependency has that."""
    assert owner_of(written(place / "bare_loose.py")) is None
    import numpy

    owner = owner_of(Path(numpy.__file__))
    assert owner is not None and owner.name == "numpy"


def test_what_every_method_needs_is_no_part_of_a_reader_from_outside(place: Path) -> None:
    """A function without a base in the project that imports numpy is remembered by its own distribution alone."""
    written(place / "acme_federated" / "rates.py", f"import numpy\n{FUNCTION}")
    rates = importlib.import_module("acme_federated.rates")
    assert {part.name for part in code_identity._outside(rates.rate)} == {NAME, None}
