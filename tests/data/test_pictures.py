"""Pictures on their way to a backbone: lazily, in parts, with colour where file and backbone have it."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image

from medfedvqa.data import Pictures, PictureViews, Row, Source, VQAData, views
from medfedvqa.data.schema import load_coloured_file, load_file
from medfedvqa.models import PictureSpace, Stacked


def row(index: int, image: Path) -> Row:
    return Row(index, "chest", "train", True, "a mass?", "yes", f"p-{index}", image)


def noise(row: Row, size: int) -> torch.Tensor:
    return torch.rand(1, size, size, generator=torch.Generator().manual_seed(row.index))


def pictures(count: int) -> Pictures:
    return Pictures(Source(row(index, Path(str(index))), noise, noise) for index in range(count))


@pytest.fixture
def mixed(tmp_path: Path) -> Pictures:
    """A grey, a red and another grey picture on disk, the last stored as RGB."""
    Image.effect_noise((40, 30), 60).save(tmp_path / "0.png")
    Image.new("RGB", (40, 30), (255, 0, 0)).save(tmp_path / "1.png")
    Image.effect_noise((40, 30), 60).convert("RGB").save(tmp_path / "2.png")
    return Pictures(Source(row(n, tmp_path / f"{n}.png"), load_file, load_coloured_file) for n in range(3))


def stream(from_: Pictures, count: int = 1) -> PictureViews:
    return PictureViews(from_, 16, PictureSpace(), count, range(len(from_)) if count > 1 else None)


def test_a_stream_gives_the_pictures_in_parts_and_decodes_no_more_than_a_part_at_once() -> None:
    """To the bit as all at once."""
    decoded: list[int] = []

    def counted(row: Row, size: int) -> torch.Tensor:
        decoded.append(row.index)
        return noise(row, size)

    lazy = stream(pictures(7).changed(lambda _: counted))
    parts: Iterator[torch.Tensor] = lazy.parts(most=3)
    assert decoded == [] and torch.equal(next(parts), pictures(7).load(16)[:3]) and decoded == [0, 1, 2]
    assert [len(part) for part in parts] == [3, 1] and len(lazy) == 7
    assert torch.equal(lazy.tensor(), pictures(7).load(16))


def test_views_in_a_stream_are_the_views_of_all_pictures_at_once() -> None:
    """Parts do not end where pictures end."""
    expected = views(pictures(5).load(16), 3, range(5)).flatten(0, 1)
    lazy = stream(pictures(5), count=3)
    assert len(lazy) == 15 and [len(part) for part in lazy.parts(most=4)] == [4, 4, 4, 3]
    assert torch.equal(lazy.tensor(), expected)


def test_no_pictures_are_one_empty_part() -> None:
    assert [tuple(part.shape) for part in stream(pictures(0)).parts()] == [(0, 1, 16, 16)]
    assert [tuple(part.shape) for part in Stacked(torch.zeros(0, 1, 16, 16)).parts()] == [(0, 1, 16, 16)]


def test_colour_comes_where_it_is_asked_for_and_leaves_grey_pictures_as_they_are(mixed: Pictures) -> None:
    """Beside a red picture a grey one is three equal channels; alone it stays one. Grey as asked is grey for all."""
    grey, coloured = stream(mixed), stream(mixed)
    assert torch.equal(grey.tensor(), mixed.load(16))
    assert [part.shape[1] for part in coloured.parts(channels=3, most=1)] == [1, 3, 1]
    (together,) = coloured.parts(channels=3)
    for number in (0, 2):
        assert torch.equal(together[number], mixed.load(16)[number].expand(3, -1, -1))
    assert together[1, 0].max() == 1 and together[1, 1:].max() == 0


def test_a_view_of_a_coloured_picture_keeps_its_colour(mixed: Pictures) -> None:
    whole = stream(mixed, count=4).tensor(channels=3)
    assert whole.shape == (12, 3, 16, 16)
    assert whole[4:8, 0].amax(dim=(1, 2)).gt(0.5).all() and whole[4:8, 1:].eq(0).all()


@pytest.mark.parametrize("kind", ["default", "own", "own with colour"])
def test_a_reader_s_own_pictures_have_the_colour_that_it_loads(kind: str) -> None:
    """Without a function for colour, a reader that draws its pictures gives what it draws."""
    changes = {"default": {}, "own": {"load": noise}, "own with colour": {"load": noise, "load_coloured": load_file}}
    expected = {"default": load_coloured_file, "own": noise, "own with colour": load_file}
    assert VQAData("made", ("chest",), [], **changes[kind]).coloured is expected[kind]


GROWTH = """
import sys
import torch
from pathlib import Path
from medfedvqa.data import Pictures, PictureViews, Row, Source
from medfedvqa.models import PictureSpace

def peak():
    line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024

def drawn(row, size):
    return torch.full((1, size, size), float(row.index))

bounds = (16 * 2**20, 2**30, Path(sys.argv[2])) if sys.argv[1] == "bounded" else ()
rows = (Row(n, "chest", "train", True, "a mass?", "yes", f"p-{n}", Path(str(n))) for n in range(2000))
pictures = PictureViews(Pictures(Source(row, drawn, drawn) for row in rows), 224, PictureSpace(*bounds))
before = peak()
kept = pictures.space.keep(len(pictures), pictures.parts())
assert kept[torch.tensor([1999, 0])][:, 0, 5, 7].tolist() == [1999, 0]
print(peak() - before)
"""


@pytest.mark.slow
def test_memory_of_a_process_grows_by_no_more_than_the_bound_and_a_few_parts(tmp_path: Path) -> None:
    """2,000 pictures of 224 pixels are 383 MiB: in a file they take less than a tenth of that, read back as well.

    What both ways need besides cancels out: code of torch that is used here first takes 29 MiB or more.
    """
    grown = {}
    for way in ("all", "bounded"):
        command = [sys.executable, "-c", GROWTH, way, str(tmp_path)]
        grown[way] = float(subprocess.run(command, check=True, capture_output=True, timeout=300).stdout)
    assert grown["all"] > 380 and grown["all"] - grown["bounded"] > 345


def test_pydicom_open_clip_and_monai_are_imported_only_to_be_used() -> None:
    """A site's process that trains on PNG and JPEG starts without the first, a server's without the second, and no
    picture is fitted by the third: each takes seconds."""
    code = (
        "import sys, medfedvqa.federation.launch, medfedvqa.federation.serve\nfrom medfedvqa.data import phantom\n"
        "data = phantom.read(('head',))\nassert data.load(data.rows[0], 32).any()\n"
        "sys.exit(' '.join({'pydicom', 'open_clip', 'torchvision', 'monai'} & sys.modules.keys()) or None)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
