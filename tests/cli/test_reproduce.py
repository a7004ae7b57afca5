"""`medfedvqa reproduce`: the list, smallest runs of entries, pictures for their owner alone, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from medfedvqa.research.reproduce.catalogue import PAPERS, lines
from medfedvqa.version import code_digest, code_version

Command = Callable[..., Any]
SMALL = ("--data", "phantom", "--rounds", "1", "--local-epochs", "1", "-O", "local_unit=batches", "--seeds", "1")
SITES = ("chest", "abdomen", "head")


def test_the_list_has_every_entry(medfedvqa: Command) -> None:
    """As tables and as JSON; one paper's alone."""
    listing = medfedvqa("reproduce", "list").stdout
    assert all(paper.title.split(":")[0] in listing for paper in PAPERS)
    assert f"version {code_version()} with the code {code_digest()[:12]}" in " ".join(listing.split())
    whole = json.loads(medfedvqa("reproduce", "list", "--json").stdout)
    listed = whole["entries"]
    assert (whole["version"], whole["code_digest"]) == (code_version(), code_digest())
    assert listed == list(lines()) and all((line["command"] is None) is bool(line["reason"]) for line in listed)
    assert {line["paper"] for line in json.loads(medfedvqa("reproduce", "list", "3", "--json").stdout)["entries"]} == {
        "unicon"
    }


def test_an_entry_that_nothing_runs_says_why(medfedvqa: Command, tmp_path: Path) -> None:
    """One sentence, and no folder."""
    done = medfedvqa("reproduce", "fedp3", "fig1", "--out", str(tmp_path / "out"))
    assert done.returncode == 1 and "'fig1' of 'fedp3' is not run here: a drawing of the idea" in done.stderr
    done = medfedvqa("reproduce", "fedp3", "table2", *SMALL, "--rows", "FedAvgg", "--out", str(tmp_path / "out"))
    assert done.returncode == 1 and "there is no row 'FedAvgg' of this table: did you mean 'FedAvg'" in done.stderr
    done = medfedvqa("reproduce", "fedp3", "table2", *SMALL, "--unseen", "nose", "--out", str(tmp_path / "out"))
    assert done.returncode == 1 and "there is no site 'nose' in this data: the sites are site-001" in done.stderr
    assert not (tmp_path / "out").exists()


def test_rows_are_counted_beside_the_paper_s(medfedvqa: Command, tmp_path: Path) -> None:
    """Table 1 of FedP3: nothing is trained."""
    done = medfedvqa("reproduce", "fedp3", "table1", "--data", "phantom", "--out", str(tmp_path))
    assert done.returncode == 0 and "| Commercial | 19,573 | 6,473 | chest |" in done.stdout
    assert (tmp_path / "reproduced.md").read_text() in done.stdout


@pytest.mark.slow
def test_a_smallest_run_of_a_table_ends_with_its_page(medfedvqa: Command, tmp_path: Path) -> None:
    """Two rows of FedP3's Table 2; training alone has nothing at unseen sites. The same command repeats none."""
    command = ("reproduce", "fedp3", "table2", *SMALL, "--rows", "DT,FedAvg", "-O", "hidden=4", "--out", str(tmp_path))
    done = medfedvqa(*command)
    assert done.returncode == 0 and "# Table 2: four scenes train, two are unseen" in done.stdout
    rows = {line.split(" | ")[0].strip("| "): line for line in done.stdout.splitlines() if line.startswith("| ")}
    assert rows["DT"].count("–") == 4 and rows["FedAvg"].count("–") == 0 and "| 45.37 |" in rows["FedAvg"]
    assert "site-005 and site-006 unseen" in done.stdout and "phantom in place of GQA by scene" in done.stdout
    again = medfedvqa(*command)
    assert "finished" in done.stderr and "finished" not in again.stderr and again.stdout == done.stdout


@pytest.mark.slow
def test_a_row_runs_as_printed_with_a_change_and_the_page_says_both(medfedvqa: Command, tmp_path: Path) -> None:
    """The prompt paper's Table 2, split 85 to 15 by patient."""
    done = medfedvqa("reproduce", "prompt-pfl", "table2", "--rows", "PM", "--as-printed", "-O", "alpha=0", *SMALL,
                     "--out", str(tmp_path))  # fmt: skip
    assert done.returncode == 0 and "your own count first: rounds, local_epochs, alpha" in done.stdout, done.stdout
    assert "alpha: 0.0 in place of 0.5 (section 3.1)" in done.stdout and "rate:" not in done.stdout
    assert "patient split" in done.stdout and "learning_rate 0.01" in done.stdout


@pytest.mark.parametrize("sites", [(), ("--sites", "dirichlet:0.5:2")])
def test_a_picture_of_labels_is_for_its_owner_alone(medfedvqa: Command, tmp_path: Path, sites: tuple[str, ...]) -> None:
    """Fig. 6 of FedP3, also of another cut: one PNG of mode 0600, and a warning."""
    done = medfedvqa("reproduce", "fedp3", "fig6", *SMALL[:2], *sites, "--out", str(tmp_path))
    assert_private(done, tmp_path, {"labels-all"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("paper", "entry", "options", "names"),
    [
        ("feddat", "fig4", SMALL[:2], {f"samples-{site}" for site in SITES}),
        ("fedp3", "fig8", (*SMALL, "-O", "hidden=4"), {f"forgotten-{site}" for site in SITES}),
        (
            "prompt-pfl",
            "fig4",
            (*SMALL[:2], "--rounds", "2", *SMALL[4:], "-O", "hidden=4", "-O", "blocks=1"),
            {f"prompts-{tower}-{what}" for tower in ("image", "text") for what in ("sites", "shared")},
        ),
        ("unicon", "fig7", (*SMALL, "-O", "pixels=32"), {f"attention-{site}" for site in SITES}),
    ],
)
def test_pictures_are_for_their_owner_alone(
    medfedvqa: Command, tmp_path: Path, paper: str, entry: str, options: tuple[str, ...], names: set[str]
) -> None:
    """Of rows, of FedP3's forgotten answers, of prompts and of attention."""
    assert_private(medfedvqa("reproduce", paper, entry, *options, "--out", str(tmp_path)), tmp_path, names)


def assert_private(done: Any, out: Path, names: set[str]) -> None:
    """The files of these names are PNGs of mode 0600, and the command warns that they show patients."""
    assert done.returncode == 0 and "must not leave this machine" in done.stdout, done.stderr
    files = {path.stem: path for path in out.glob("*.png")}
    assert files.keys() == names
    for path in files.values():
        assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_mode & 0o777 == 0o600


def test_a_program_outside_of_the_source_tree_is_named(
    medfedvqa: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel has no folder `benchmarks`."""
    monkeypatch.setattr("medfedvqa.cli.reproduce.__file__", str(tmp_path / "a" / "b" / "c.py"))
    done = medfedvqa("reproduce", "unicon", "fig6", "--out", str(tmp_path / "out"))
    assert done.returncode == 1 and "benchmarks/trojan.py is in the source tree only" in done.stderr
