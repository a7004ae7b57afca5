"""Whether a release can be tagged: `.ci/release.py`, run in clones of this repository."""

import datetime
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from medfedvqa.version import VERSION

ROOT = Path(__file__).parents[1]
TODAY = datetime.datetime.now(datetime.UTC).date().isoformat()
AUTHOR = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *AUTHOR, *arguments], cwd=folder, check=True, capture_output=True, timeout=60)


def edit(path: Path, old: str, new: str) -> None:
    """Replace a text that has to be there."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def check(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / ".ci" / "release.py"), *arguments, "--root", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def write_bills(out: Path, version: str) -> None:
    """Bills of materials as `make sbom` writes them, as far as they are looked at."""
    bill = {
        "bomFormat": "CycloneDX",
        "components": [{"name": "torch"}],
        "metadata": {"component": {"version": version}},
    }
    for name in ("medfedvqa.cdx.json", "medfedvqa-verify.cdx.json"):
        (out / name).write_text(json.dumps(bill), encoding="utf-8")


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A repository with the files of this one, without its history, that is ready for a release of this version."""
    folder = tmp_path / "release"
    folder.mkdir()
    names = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    for name in names:
        if (ROOT / name).is_file() and not name.startswith(("tests/", "docs/")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    changelog = folder / "CHANGELOG.md"
    text = changelog.read_text(encoding="utf-8")
    changelog.write_text(f"# Changelog\n\n## {VERSION} - {TODAY}\n\n" + text.partition("\n## ")[2], encoding="utf-8")
    citation = folder / "CITATION.cff"
    lines = [line for line in citation.read_text(encoding="utf-8").splitlines() if not line.startswith("date-released")]
    citation.write_text("\n".join([*lines, f"date-released: {TODAY}", ""]), encoding="utf-8")
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "A release")
    return folder


def test_a_release_whose_version_changelog_and_tree_agree_is_ready(release: Path) -> None:
    """The source check ends with 0 and names the version."""
    done = check(release, "source")
    assert (done.returncode, done.stderr) == (0, "") and VERSION in done.stdout


def test_each_thing_that_is_missing_is_one_sentence(release: Path) -> None:
    """A changelog without a date or with one to come, another citation, an uncommitted file, a tag that exists."""
    changelog, citation = release / "CHANGELOG.md", release / "CITATION.cff"
    git(release, "tag", f"v{VERSION}")
    edit(changelog, f"- {TODAY}", "- unreleased")
    edit(citation, f"version: {VERSION}", "version: 0.0.9")
    (release / "medfedvqa" / "forgotten.py").touch()
    problems = check(release, "source")
    assert problems.returncode == 1 and "Traceback" not in problems.stderr
    lines = problems.stderr.splitlines()
    for part in ("the date 'unreleased'", "write 'version:", "3 files are changed", f"the tag v{VERSION} exists"):
        assert sum(part in line for line in lines) == 1
    assert len(lines) == 4 and all(line.startswith("Error: ") for line in lines)
    edit(changelog, "- unreleased", "- 2999-01-01")
    assert "the date '2999-01-01'" in check(release, "source").stderr
    edit(changelog, f"## {VERSION} - 2999-01-01", "## 0.0.9 - 2026-01-01")
    assert f"the first section of CHANGELOG.md is not '## {VERSION} - DATE'" in check(release, "source").stderr
    edit(release / "medfedvqa" / "version.py", VERSION, "1.0.dev1")
    assert "the version '1.0.dev1' is not of the form 1.2.3" in check(release, "source").stderr


def test_the_date_of_the_citation_is_that_of_the_changelog(release: Path) -> None:
    """Otherwise the sentence names the date to write."""
    edit(release / "CITATION.cff", TODAY, "2001-02-03")
    assert f"write 'date-released: {TODAY}'" in check(release, "source").stderr


@pytest.mark.slow
def test_the_distributions_hold_every_committed_file_under_this_version(release: Path, tmp_path: Path) -> None:
    """Wheel and source distribution are built; without bills of materials the check fails and names the command."""
    out = tmp_path / "dist"
    done = check(release, "files", "--out", str(out))
    assert done.returncode == 1
    assert [line.partition(":")[2] for line in done.stderr.splitlines()] == [
        f" {name} is missing: run `make sbom`" for name in ("medfedvqa.cdx.json", "medfedvqa-verify.cdx.json")
    ]
    with zipfile.ZipFile(out / f"medfedvqa-{VERSION}-py3-none-any.whl") as wheel:
        metadata = wheel.read(f"medfedvqa-{VERSION}.dist-info/METADATA").decode()
    assert f"\nVersion: {VERSION}\n" in metadata
    with tarfile.open(out / f"medfedvqa-{VERSION}.tar.gz") as source:
        assert f"medfedvqa-{VERSION}/CONTRIBUTING.md" in source.getnames()
    write_bills(out, "0.0.9")
    assert check(release, "files", "--out", str(out)).stderr.count("is of another version: run `make sbom` again") == 2
    write_bills(out, VERSION)
    done = check(release, "files", "--out", str(out))
    assert done.returncode == 0 and f"git tag --sign v{VERSION}" in done.stdout
    assert done.stdout.count("  medfedvqa-") == 3


def test_a_file_that_is_not_committed_does_not_get_into_a_wheel_unnoticed(release: Path, tmp_path: Path) -> None:
    """A stray module beside the packages is named."""
    (release / "privacy" / "stray.py").touch()
    done = check(release, "files", "--out", str(tmp_path / "dist"))
    assert (
        done.returncode == 1 and "the wheel has 1 files that are not committed, such as privacy/stray.py" in done.stderr
    )


def test_the_citation_names_this_version() -> None:
    """Whoever cites the project cites what is checked out."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == VERSION and citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= citation.keys()


def test_every_hook_and_template_is_readable_and_every_hooks_program_is_in_the_environment() -> None:
    """The hooks run what `make` installs, and nothing that pre-commit would download."""
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert [repository["repo"] for repository in hooks["repos"]] == ["local"]
    for hook in hooks["repos"][0]["hooks"]:
        assert hook["language"] == "system" and hook["entry"].startswith(".venv/bin/")
        assert (Path(sys.executable).parent / hook["entry"].split()[0].removeprefix(".venv/bin/")).exists()
    for template in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        content = yaml.safe_load(template.read_text(encoding="utf-8"))
        assert template.name == "config.yml" or content.keys() >= {"name", "description", "body"}
