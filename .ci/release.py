"""Checks that a release is ready to be tagged, and builds its files. It tags nothing and uploads nothing.

    python .ci/release.py source            # version, changelog, citation, clean tree, free tag
    python .ci/release.py files --out dist  # source distribution, wheel, bills of materials

`make release-check` runs both. Every problem is one sentence on standard error, and the exit code is 1.
"""

import argparse
import datetime
import hashlib
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import yaml

VERSION = re.compile(r'^VERSION = "(.*)"$', re.MULTILINE)
RELEASABLE = re.compile(r"\d+\.\d+\.\d+")
SECTION = re.compile(r"^## (\S+)(?: - (.*))?$", re.MULTILINE)
PACKAGES = ("audits", "medfedvqa", "privacy")
IN_SOURCE = ("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md", "pyproject.toml")
BILLS = ("medfedvqa.cdx.json", "medfedvqa-verify.cdx.json")
"""Bills of materials, which `make sbom` writes."""


def version_of(root: Path) -> str:
    """The version that `medfedvqa/version.py` states; packaging reads the same line."""
    match = VERSION.search((root / "medfedvqa" / "version.py").read_text(encoding="utf-8"))
    if match is None:
        raise SystemExit('medfedvqa/version.py has no line VERSION = "..."')
    return match.group(1)


def source_problems(root: Path) -> Iterator[str]:
    """What speaks against tagging the commit that is checked out."""
    version = version_of(root)
    if not RELEASABLE.fullmatch(version):
        yield f"the version '{version}' is not of the form 1.2.3: change it in medfedvqa/version.py"
    date = ""
    sections = SECTION.findall((root / "CHANGELOG.md").read_text(encoding="utf-8"))
    if not sections or sections[0][0] != version:
        yield f"the first section of CHANGELOG.md is not '## {version} - DATE': write it"
    else:
        date = sections[0][1]
        if not _is_past_date(date):
            yield f"the section {version} of CHANGELOG.md has the date '{date}': write the day of the release"
    yield from _citation_problems(root, version, date)
    if changed := _git(root, "status", "--porcelain"):
        yield f"{len(changed.splitlines())} files are changed or not committed: commit or remove them"
    if _git(root, "tag", "--list", f"v{version}"):
        yield f"the tag v{version} exists: raise the version in medfedvqa/version.py"


def _is_past_date(text: str) -> bool:
    try:
        return datetime.date.fromisoformat(text) <= datetime.datetime.now(datetime.UTC).date()
    except ValueError:
        return False


def _citation_problems(root: Path, version: str, date: str) -> Iterator[str]:
    citation = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))
    if str(citation.get("version")) != version:
        yield f"CITATION.cff names another version: write 'version: {version}'"
    if _is_past_date(date) and str(citation.get("date-released")) != date:
        yield f"CITATION.cff lacks the date of CHANGELOG.md: write 'date-released: {date}'"


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"git {arguments[0]} failed: run this program in a clone of the repository")
    return done.stdout.strip()


def build(root: Path, out: Path) -> list[Path]:
    """The source distribution and the wheel in a folder; needs no network."""
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(out.resolve())]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the distributions cannot be built:\n{done.stderr}")
    version = version_of(root)
    return [out / f"medfedvqa-{version}.tar.gz", out / f"medfedvqa-{version}-py3-none-any.whl"]


def file_problems(root: Path, source: Path, wheel: Path) -> Iterator[str]:
    """What is missing in the files that were built, beside what is committed."""
    if missing := [path.name for path in (source, wheel) if not path.exists()]:
        yield f"the build did not make {' and '.join(missing)}: look at the version in medfedvqa/version.py"
        return
    committed = {name for name in _git(root, "ls-files", *PACKAGES).splitlines() if Path(root, name).exists()}
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    with tarfile.open(source) as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    for kind, names, wanted in (
        ("wheel", packed, committed),
        ("source distribution", sources, {*committed, *IN_SOURCE}),
    ):
        if lacking := sorted(wanted - names):
            yield f"the {kind} lacks {len(lacking)} files, such as {lacking[0]}: look at [tool.hatch] in pyproject.toml"
    if surplus := sorted(name for name in packed if name.startswith(PACKAGES) and _is_surplus(name, committed)):
        yield f"the wheel has {len(surplus)} files that are not committed, such as {surplus[0]}: remove them"


def _is_surplus(name: str, committed: set[str]) -> bool:
    """Job folders and metadata are not in a package's folder of the repository."""
    return name not in committed and not name.startswith("medfedvqa/nvflare_jobs/") and ".dist-info/" not in name


def bill_problems(root: Path, out: Path) -> Iterator[str]:
    """Whether the bills of materials are there, list components, and name this version."""
    for name in BILLS:
        if not (out / name).exists():
            yield f"{name} is missing: run `make sbom`"
            continue
        bill = json.loads((out / name).read_text(encoding="utf-8"))
        if bill.get("bomFormat") != "CycloneDX" or not bill.get("components"):
            yield f"{name} lists no components: run `make sbom` again"
        elif bill.get("metadata", {}).get("component", {}).get("version") != version_of(root):
            yield f"{name} is of another version: run `make sbom` again"


def next_steps(version: str, out: Path) -> str:
    """What a maintainer types next, with the SHA-256 of every file of the release."""
    names = sorted(path for path in out.iterdir() if version in path.name or path.name in BILLS)
    digests = "\n".join(f"  {hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in names)
    return (
        f"Version {version} is ready. The files, with their SHA-256:\n{digests}\n"
        f"Next:\n  git tag --sign v{version} --message 'Version {version}'\n  git push origin v{version}\n"
        f"  publish the files of {out.name}/ under the tag, with the section of CHANGELOG.md as the text"
    )


def main() -> None:
    """Checks the source or the files, and prints what is wrong or what comes next."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["source", "files"])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--out", type=Path, default=Path("dist"))
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    if arguments.part == "source":
        problems = list(source_problems(root))
    else:
        problems = [*file_problems(root, *build(root, arguments.out)), *bill_problems(root, arguments.out)]
    for problem in problems:
        print(f"Error: {problem}", file=sys.stderr)
    if problems:
        sys.exit(1)
    version = version_of(root)
    print(f"The source of {version} is ready" if arguments.part == "source" else next_steps(version, arguments.out))


if __name__ == "__main__":
    main()
