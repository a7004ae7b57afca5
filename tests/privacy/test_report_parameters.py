"""Constants that a version chooses: a report carries those that its figures follow from, and verifies under others."""

import ast
import importlib
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
from report_trees import changed

from audits import VerdictState
from medfedvqa.version import VERSION
from privacy.report import (
    NewerReport,
    Report,
    ReportError,
    read_report,
    report_bytes,
    report_of,
    sections_of,
    verify_report,
)
from privacy.report.build import Parameters
from privacy.report.report_files import JSON
from privacy.report.verdicts import NIST, NO, YES, mappings

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "report" / "chest"
GOLDEN = sorted((ROOT / "tests" / "golden").glob("formats-*/report"))
ARITHMETIC = {("privacy/report/verdicts.py", 3)}
"""No choice: of two sites each computes the other's value from the sum."""


class Constant(NamedTuple):
    """A number in a source file, by its place among all nodes of the syntax tree."""

    path: str
    node: int
    line: int
    value: float

    @property
    def module(self) -> str:
        return self.path.removesuffix(".py").replace("/", ".")

    def changed(self, factor: float) -> ast.Module:
        """The file with this number alone changed by the factor, a whole number by at least one."""
        tree = ast.parse((ROOT / self.path).read_text("utf-8"))
        found = list(ast.walk(tree))[self.node]
        assert isinstance(found, ast.Constant) and found.value == self.value
        step = abs(self.value) * (factor - 1)
        found.value = self.value + (step if isinstance(self.value, float) else int(step) or (1 if factor > 1 else -1))
        return tree


def constants(room: str, inside: bool, only: str = "") -> Iterator[Constant]:
    """Numbers of modules and classes, or of `only` one class; those `inside` functions too, but for 0, 1 and 2, which
    count or index."""
    for file in sorted((ROOT / room).glob("*.py")):
        nodes = list(ast.walk(ast.parse(file.read_text("utf-8"))))
        local = {id(part) for node in nodes if isinstance(node, ast.FunctionDef) for part in ast.walk(node)}
        chosen = [node for node in nodes if isinstance(node, ast.ClassDef) and node.name == only] if only else nodes[:1]
        wanted = {id(part) for node in chosen for part in ast.walk(node)}
        for place, node in enumerate(nodes):
            value = node.value if isinstance(node, ast.Constant) and id(node) in wanted else None
            if type(value) not in (int, float) or (id(node) in local and not (inside and value not in (0, 1, 2))):
                continue
            constant = Constant(file.relative_to(ROOT).as_posix(), place, node.lineno, value)
            if (constant.path, value) not in ARITHMETIC:
                yield constant


class Rewritten(SourceFileLoader):
    """Finds and loads one module from another syntax tree than that of its file."""

    def __init__(self, constant: Constant, factor: float) -> None:
        super().__init__(constant.module, str(ROOT / constant.path))
        self.tree = constant.changed(factor)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return spec_from_loader(name, self) if name == self.name else None

    def get_code(self, fullname: str) -> Any:
        return compile(self.tree, self.path, "exec")


@pytest.fixture
def rewritten() -> Any:
    """Imports modules anew while one constant has another value; all that was imported before comes back afterwards."""

    def load(constant: Constant, factor: float, *names: str) -> list[Any]:
        rooms = ("privacy.report", "medfedvqa.report")
        kept = {name: module for name, module in sys.modules.items() if name.startswith(rooms)}
        holders = {room: sys.modules[room.partition(".")[0]] for room in rooms}
        attributes = {room: holder.__dict__.get("report") for room, holder in holders.items()}
        loader = Rewritten(constant, factor)
        for name in kept:
            del sys.modules[name]
        sys.meta_path.insert(0, loader)  # type: ignore[arg-type]
        try:
            modules = [importlib.import_module(name) for name in names]
            assert constant.module in sys.modules, "a constant of a module that nobody imported proves nothing"
            return modules
        finally:
            sys.meta_path.remove(loader)  # type: ignore[arg-type]
            for name in [name for name in sys.modules if name.startswith(rooms)]:
                del sys.modules[name]
            sys.modules.update(kept)
            for room, value in attributes.items():
                if value is not None:
                    holders[room].report = value

    return load


def states(judgement: Any) -> dict[str, str]:
    return {part.name: str(part.state) for part in judgement.parts}


def as_signed(folder: Path, module: Any) -> None:
    """All that a constant could break is shown; of the wording nothing is said, since it is other code's."""
    key = next(file for file in (folder / "chest.key", folder.parent / "chest.key") if file.exists())
    trusted = module.VerifierKey.parse(key.read_text().strip())
    found = states(module.verify_report(folder, trusted, code_digest="0" * 64))
    expected = dict.fromkeys(("schema", "key", "signature", "proofs", "figures", "rules"), "shown")
    assert {name: found[name] for name in expected} == expected and found["wording"] == "not compared"


REPORT_CONSTANTS = list(constants("privacy/report", inside=True))
PAGE_CONSTANTS = list(constants("medfedvqa/report", inside=False))


@pytest.mark.parametrize("factor", [0.8, 1.2])
@pytest.mark.parametrize("constant", REPORT_CONSTANTS, ids=lambda c: f"{c.module}:{c.line}={c.value}")
def test_the_example_verifies_whatever_this_version_would_choose(
    constant: Constant, factor: float, rewritten: Any
) -> None:
    """Each number of the report's code, by itself, a fifth less and a fifth more: the example and the golden reports
    have been signed, and their figures are shown."""
    modules = [f"privacy.report.{name}" for name in ("verify", "registry", "join")]
    verify = rewritten(constant, factor, *modules)[0]
    for folder in (EXAMPLE, *GOLDEN):
        as_signed(folder, verify)


DEFAULTS = list(constants("audits", inside=False, only="SitePolicy"))


@pytest.mark.parametrize("factor", [0.8, 1.2])
@pytest.mark.parametrize("constant", DEFAULTS, ids=lambda c: f"{c.module}:{c.line}={c.value}")
def test_a_logged_policy_is_the_same_policy_under_other_defaults(constant: Constant, factor: float) -> None:
    """What a site's policy had by default when its log named it goes on having the digest that the log names."""
    module = ModuleType(constant.module)
    exec(compile(constant.changed(factor), constant.path, "exec"), module.__dict__)
    for folder in (EXAMPLE, *GOLDEN):
        evidence = read_report((folder / JSON).read_bytes()).evidence
        settings = evidence.policy.model_dump(mode="json", exclude={"epsilon_limit"}, exclude_unset=True)
        settings = module.UNCOUNTED | settings
        logged = {entry.record.get("policy") for entry in evidence.log.entries} - {None}
        assert {module.SitePolicy.from_mapping(settings).digest()} == logged


@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.8, 1.2])
@pytest.mark.parametrize("constant", PAGE_CONSTANTS, ids=lambda c: f"{c.module}:{c.line}={c.value}")
def test_the_example_verifies_whatever_the_pages_are_drawn_with(
    constant: Constant, factor: float, rewritten: Any
) -> None:
    """The pages of the report can still be composed, and no figure of it depends on how they look."""
    names = ("privacy.report.verify", "medfedvqa.report.document", "medfedvqa.report.page", "medfedvqa.report.patients")
    verify, document, page, patients, _ = rewritten(constant, factor, *names, "medfedvqa.report.pdf")
    report = verify.read_report((EXAMPLE / JSON).read_bytes())
    drawn = page.page(document.compose(report)), page.page(patients.compose_patients(report, "de"))
    assert all(report.evidence.site in text for text in drawn)
    as_signed(EXAMPLE, verify)


@pytest.fixture(scope="module")
def example() -> Report:
    """The example, made anew in the format of this version."""
    return report_of(read_report((EXAMPLE / JSON).read_bytes()).evidence)


def written(folder: Path, report: Report, **parameters: float) -> Path:
    """The report as a site would make it that chose these parameters; nobody signs it."""
    made = report_of(report.evidence, Parameters()._replace(**parameters))
    (folder / JSON).write_bytes(report_bytes(made))
    return folder


def test_other_parameters_are_a_fact_that_the_verifier_names(example: Report, tmp_path: Path) -> None:
    """One in ten accused, three jobs counted: the figures are those of the parameters, and a part says which they are.
    The report as this version makes it has no such part."""
    assert "parameters" not in states(verify_report(written(tmp_path, example)))
    judgement = verify_report(written(tmp_path, example, wrongly=0.1, most_counted=3))
    parts = {part.name: part for part in judgement.parts}
    assert parts["figures"].state is VerdictState.SHOWN and parts["parameters"].state is VerdictState.SHOWN
    assert "0.1 of people accused wrongly, jobs that fit counted to 3" in parts["parameters"].said
    made = read_report((tmp_path / JSON).read_bytes()).sections.summary
    assert made and example.sections.summary and made.found and example.sections.summary.found
    assert made.found > example.sections.summary.found


def test_jobs_that_fit_are_counted_as_far_as_the_report_counts(example: Report) -> None:
    """Under a limit that has room for many."""
    policy = example.evidence.policy.model_copy(update={"max_epsilon": 500.0, "epsilon_limit": 500.0})
    roomy = example.evidence.model_copy(update={"policy": policy})
    for count in (1, 7):
        fits = sections_of(roomy, Parameters(most_counted=count)).summary
        assert fits and fits.jobs_that_fit == count


@pytest.mark.parametrize("name, value", [("found", 0.01), ("found_in_all", 0.01), ("wrongly", 0.04), ("wrongly", 0.06)])
def test_a_figure_beside_a_parameter_that_it_does_not_follow_from_is_broken(
    example: Report, tmp_path: Path, name: str, value: float
) -> None:
    """Whoever changes the share of accused people has to change what follows from it, and the other way round."""
    (tmp_path / JSON).write_bytes(report_bytes(example.changed({f"summary.{name}": value})))
    assert states(verify_report(tmp_path))["figures"] == "broken"


@pytest.mark.parametrize("name, value", [("wrongly", 0.999), ("wrongly", 0.001), ("most_counted", 10**6)])
def test_parameters_that_would_mislead_or_never_end_are_no_report(example: Report, name: str, value: float) -> None:
    """The bound at one in a thousand would be printed as if it were at one in 100."""
    with pytest.raises(ReportError) as refused:
        read_report(report_bytes(example.changed({f"summary.{name}": value})))
    assert not isinstance(refused.value, NewerReport) and f"summary.{name}" in str(refused.value)


@pytest.mark.parametrize("version", ["0.1.0", "0.1.1", "0.1.2", "0.2.0", None, VERSION])
def test_a_job_of_a_version_without_the_grid_has_no_protection_in_floating_point(version: str | None) -> None:
    """Section K says why; a job whose entries name no version is not shown to have it either."""
    nothing = SimpleNamespace(run=None, measured=None, ingested=None, governance=None)
    entries = [SimpleNamespace(code_version=version, code_digest=None, code=None)]
    facts = SimpleNamespace(is_private=True, void=False, unprotected=(), evidence=nothing, job_entries=entries)
    [row] = [one for one in mappings(facts) if (one.framework, one.topic) == (NIST, "noise on computers")]
    reasons = {None: "No entry names the version", "0.1.0": "is withdrawn", VERSION: "one grid, sampled exactly"}
    assert row.support == (YES if version == VERSION else NO)
    assert reasons.get(version, f"Epsilons of version {version} hold in exact arithmetic only") in row.said


def test_golden_reports_made_again_have_no_protection_in_floating_point() -> None:
    """Their log entries name 0.1.1; what was signed then stays as it is."""
    for folder in GOLDEN:
        report = read_report((folder / JSON).read_bytes())
        before, now = report.sections.mappings, sections_of(report.evidence).mappings
        rows = [next(one for one in lines if one.reference == "floating point") for lines in (before, now)]
        assert [row.support for row in rows] == [YES, NO] and "exact arithmetic only" in rows[1].said


@pytest.mark.parametrize("digest, state", [("0" * 64, "not compared"), (None, "broken")])
def test_lines_of_section_k_are_compared_only_where_the_same_code_wrote_them(
    example: Report, tmp_path: Path, digest: str | None, state: str
) -> None:
    """Another support and a line less are another version's reading, and the figures hold; no verdict follows."""

    def other(tree: dict[str, Any]) -> None:
        tree["mappings"] = [line | {"support": NO} for line in tree["mappings"][1:]]

    (tmp_path / JSON).write_bytes(report_bytes(changed(other, example)))
    found = states(verify_report(tmp_path, code_digest=digest or example.evidence.tool.code_digest))
    assert found["figures"] == "shown" and found["wording"] == state
