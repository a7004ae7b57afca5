"""Every table and figure of the papers that has a command starts as it is typed, and ends with its page or pictures."""

import json
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from medfedvqa.cli import app
from medfedvqa.models.published_parts import parts_are_installed
from medfedvqa.research.reproduce.catalogue import PAPERS, tier_of
from medfedvqa.research.reproduce.entries import Paper, PaperEntry, PaperTable, Program, Scale, Trunks

ENTRIES = [
    pytest.param(paper, entry, id=f"{paper.name}-{entry.name}", marks=getattr(pytest.mark, tier))
    for paper in PAPERS
    for entry in paper.entries
    if (tier := tier_of(paper, entry)) and not isinstance(entry.protocol, Program)
]
"""What `medfedvqa reproduce list` says of each entry. Programs are started in `tests/benchmark/test_programs.py`."""
AS_PRINTED = [each for each in ENTRIES if each.values[0].settings]
ON_BOTH_SETS = [
    pytest.param(*each.values, id=each.id)
    for each in AS_PRINTED
    if each.values[0].name == "fedp3" or each.values[1].data == "vqa-rad+slake"
]
SMALL = "--seeds 1 --rounds 1 --local-epochs 1 -O batch_rows=64"
ONE_BATCH = "-O local_unit=batches"


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Drawn pictures in the layouts of both published sets: at each site nine, each with a closed question."""
    root = tmp_path_factory.mktemp("sets")
    rad, slake = root / "vqa-rad" / "VQA_RAD Image Folder", root / "slake" / "imgs"
    rows: dict[Path, list[dict[str, str]]] = {}
    for number in range(9):
        asked = {"answer_type": "CLOSED", "question": "Is it dark?", "answer": ("yes", "no")[number % 2]}
        part = ("train", "train", "train", "train", "train", "validate", "validate", "test", "test")[number]
        for place in ("CHEST", "ABD", "HEAD", "Lung", "Abdomen", "Brain", "Neck"):
            name, organ = f"{place}-{number}.png", {"image_organ": place, "location": place}
            folder = rad if place.isupper() else slake
            folder.mkdir(parents=True, exist_ok=True)
            Image.new("L", (16, 16), 20 + 100 * (number % 2) + number).save(folder / name)
            file = (
                root / "vqa-rad" / "VQA_RAD Dataset Public.json" if folder == rad else root / "slake" / f"{part}.json"
            )
            phrase = {"phrase_type": "test_freeform" if part == "test" else "freeform", "image_case_url": name}
            rows.setdefault(file, []).append(asked | organ | phrase | {"image_name": name, "img_name": name})
    for file, content in rows.items():
        file.write_text(json.dumps(content))
    return root


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the frozen backbone makes of the drawn pictures, once for all entries."""
    return tmp_path_factory.mktemp("cache")


def words_of(paper: Paper, entry: PaperEntry, data: list[str], cache: Path) -> list[str]:
    """One row of a table at the smallest budget."""
    words = ["reproduce", paper.name, entry.name, *data, *SMALL.split(), "--cache", str(cache), "--out", "out"]
    words += ONE_BATCH.split() if paper.name != "unicon" else []
    words += ["--rows", "1"] * isinstance(entry.protocol, PaperTable | Trunks | Scale)
    return words + ["-O", "trunk_width=16"] * isinstance(entry.protocol, Trunks)


def page_of(words: list[str], folder: Path) -> str:
    """What the entry's page says; empty for pictures."""
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, (done.exception, done.output[-2000:])
    pages = [*(folder / "out").rglob("reproduced.md")]
    assert pages or [*(folder / "out").rglob("*.png"), *folder.rglob("*.svg")]
    return "".join(page.read_text() for page in pages)


@pytest.mark.parametrize(("paper", "entry"), ENTRIES)
def test_an_entry_starts_and_ends_with_its_page(
    paper: Paper, entry: PaperEntry, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the phantom set."""
    monkeypatch.chdir(tmp_path)
    page_of(words_of(paper, entry, ["--data", "phantom"], cache), tmp_path)


@pytest.mark.parametrize(("paper", "entry"), AS_PRINTED)
def test_an_entry_starts_as_printed(
    paper: Paper, entry: PaperEntry, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the settings that its paper prints, on the phantom set and its own backbone."""
    monkeypatch.chdir(tmp_path)
    page = page_of([*words_of(paper, entry, ["--data", "phantom"], cache), "--as-printed"], tmp_path)
    assert not page or not isinstance(entry.protocol, PaperTable | Trunks) or "settings that the paper prints" in page


@pytest.mark.slow
@pytest.mark.skipif(not parts_are_installed(), reason="the extra `words` is not installed")
@pytest.mark.parametrize(("paper", "entry"), ON_BOTH_SETS)
def test_an_entry_starts_as_printed_on_both_published_sets(
    paper: Paper, entry: PaperEntry, cache: Path, sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On drawn pictures in the layouts of VQA-RAD and SLAKE, with the backbone that has seen neither; the page says how
    many blocks are tuned."""
    monkeypatch.chdir(tmp_path)
    data = ["--data", "vqa-rad+slake", "--data-root", str(sets)]
    page = page_of([*words_of(paper, entry, data, cache), "--as-printed"], tmp_path)
    if paper.name == "fedp3" and page and "Avg.(Loc)" not in page and isinstance(entry.protocol, PaperTable):
        assert "tuned layers: 2 in place of 3 (section 4.2)" in page
