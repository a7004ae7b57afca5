"""Text is looked for where the gate's network says that it may stand, and nowhere else."""

import cv2
import numpy as np
import pytest

from medfedvqa.ingest import text_gate
from medfedvqa.ingest.burned_in_text import SMALL, TextFinder
from medfedvqa.ingest.text_gate import CELL, STRIP, TextGate, may_hold
from medfedvqa.ingest.text_lines import TILE, detected_lines, marked_tiles, regions


@pytest.fixture(scope="module")
def gate() -> TextGate:
    return TextGate()


def tissue(height: int = 300) -> np.ndarray:
    """Smooth grey tissue with grain and an edge as those of organs, uint8 [height, 400]."""
    generator = np.random.default_rng(5)
    smooth = cv2.GaussianBlur(generator.normal(size=(height, 400)).astype(np.float32), (0, 0), 12)
    levels = 110 + 25 * smooth / smooth.std() + generator.normal(0, 2, (height, 400))
    levels += 60 / (1 + np.exp((300 - np.arange(400)) / 3))
    return np.clip(levels, 0, 255).astype(np.uint8)


def written(capitals: int, contrast: int = -70, top: int = 150) -> tuple[np.ndarray, np.ndarray]:
    """Tissue with capitals of this height, and which pixels they change."""
    plain = tissue(max(300, top + 50))
    mask, thick = np.zeros(plain.shape, np.uint8), max(1, round(capitals / 10))
    cv2.putText(mask, "JANE DAVIDSON", (30, top), cv2.FONT_HERSHEY_SIMPLEX, capitals / 21, 255, thick, cv2.LINE_AA)
    return np.clip(plain + contrast * (mask / 255), 0, 255).astype(np.uint8), mask > 127


def marked(cells: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Which pixels lie in marked cells, bool."""
    return np.kron(cells, np.ones((CELL, CELL)))[: shape[0], : shape[1]] > 0


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize(("capitals", "contrast"), [(5, -70), (8, -30), (8, 30), (16, -30), (30, -30)])
def test_letters_are_marked_and_tissue_grain_and_edges_are_not(
    gate: TextGate, capitals: int, contrast: int, turned: int
) -> None:
    """At eight pixels and thirty grey levels, in both polarities and directions; of the rest a twentieth at most."""
    film, letters = (np.ascontiguousarray(np.rot90(array, turned)) for array in written(capitals, contrast))
    cells = marked(gate(film), film.shape)
    near = cv2.dilate(letters.astype(np.uint8), np.ones((6 * capitals, 6 * capitals))) > 0
    assert cells[letters].mean() > 0.8 and cells[~near].mean() < 0.05


def test_letters_are_marked_at_the_levels_of_their_size(gate: TextGate) -> None:
    """Small ones at full resolution, the only ones worth the look that enlarges four times; large ones reduced."""
    for capitals, level in ((6, 1), (30, 4), (60, 8)):
        film, letters = written(capitals)
        values = np.kron(gate(film), np.ones((CELL, CELL), np.uint8))[: film.shape[0], : film.shape[1]][letters]
        assert ((values & level) > 0).mean() > 0.8


def test_cells_that_touch_count_if_one_of_them_is_clear() -> None:
    """A faint end of a line stays with its clear letters; a doubtful cell by itself is no text."""
    values = np.zeros((5, 12), np.float32)
    values[1, 1:6], values[1, 3], values[3, 9] = 0.22, 0.9, 0.22
    marks = may_hold(values)
    assert marks[1, 1:6].all() and marks.sum() == 5


def test_strips_have_the_values_of_the_whole(gate: TextGate, monkeypatch: pytest.MonkeyPatch) -> None:
    """The network sees a film in strips, also letters that lie across two of them."""
    film, letters = written(8, top=STRIP + 4)
    assert marked(gate(film), film.shape)[letters].mean() > 0.8
    values = gate._values(film)
    monkeypatch.setattr(text_gate, "STRIP", 16 * STRIP)
    assert np.allclose(gate._values(film), values, atol=1e-4)


@pytest.mark.parametrize("shape", [(16, 16), (9, 700), (301, 77), (1031, 515)])
def test_a_picture_of_any_size_has_a_cell_for_each_pixel(gate: TextGate, shape: tuple[int, int]) -> None:
    """Also where the sides are no multiples of a cell."""
    cells = gate(np.random.default_rng(1).integers(0, 255, shape, np.uint8))
    assert cells.shape == (-(-shape[0] // CELL), -(-shape[1] // CELL))


@pytest.mark.parametrize("scale", [0.5, 1.0, 4.0])
def test_every_marked_cell_is_in_a_tile_with_its_surroundings_and_little_else_is(scale: float) -> None:
    """Tiles lie where their places say, at most `TILE` pixels a side, and those without a mark are left out."""
    columns = np.tile(np.arange(2000, dtype=np.float32) / 8, (800, 1))
    where = np.zeros((100, 250), np.uint8)
    where[50, 100], where[51, 220:] = 1, 2
    seen = np.zeros(columns.shape, bool)
    for (x, y), tile in marked_tiles(columns.astype(np.uint8), where, scale):
        height, width = (round(length / scale) for length in tile.shape)
        seen[int(y) : int(y) + height, int(x) : int(x) + width] = True
        inside = tile[:, : round((2000 - x) * scale)]
        assert max(tile.shape) <= TILE and abs(float(inside.mean()) - (x + inside.shape[1] / scale / 2) / 8) < 2
    assert seen[marked(cv2.dilate(where, np.ones((3, 3))), columns.shape)].all() and seen.mean() < 0.2


def test_a_frame_of_marks_is_searched_along_its_sides_and_not_within() -> None:
    """Text along two sides of a film: rectangles that hold every mark, and a fifth of what lies between them."""
    where = np.zeros((100, 140), np.uint8)
    where[96:, :], where[:, 1:3] = 1, 1
    held = np.zeros(where.shape, bool)
    for top, left, bottom, right in regions(where, 2):
        held[top:bottom, left:right] = True
    assert held[where > 0].all() and held.mean() < 0.2


def test_letters_cut_by_the_edge_of_a_picture_are_blanked() -> None:
    """They get ground around them: the detector sees nothing of letters that touch the edge of what it is shown."""
    film = np.full((200, 320), 20, np.uint8)
    cv2.putText(film, "JANE DOE", (60, 8), cv2.FONT_HERSHEY_SIMPLEX, 0.8, 250, 2)
    assert not (TextFinder().clean(film, 320).grey > 200).any()


def _whole_view(view: np.ndarray) -> list[np.ndarray]:
    """The whole view as one line."""
    height, width = view.shape
    return [np.float32([(0, 0), (width, 0), (width, height), (0, height)])]


@pytest.mark.parametrize("turned", [False, True])
def test_only_places_of_small_text_are_enlarged_and_lines_come_back_where_they_lie(
    gate: TextGate, turned: bool
) -> None:
    """The detector sees a part of the picture; its boxes have the picture's own coordinates, also if upright."""
    film, row = (np.ascontiguousarray(np.rot90(array, turned)) for array in written(6))
    views, where = list[np.ndarray](), gate(film)
    lines = detected_lines(film, where, SMALL, lambda view: (views.append(view), _whole_view(view))[1])
    assert views and sum(view.size for view in views) < 2 * 16 * film.size / 3
    (top, left), (bottom, right) = np.argwhere(row).min(axis=0), np.argwhere(row).max(axis=0)
    inside = [line for line in lines if line[:, 0].min() <= left + 8 and line[:, 0].max() >= right - 8]
    assert any(line[:, 1].min() <= top + 8 and line[:, 1].max() >= bottom - 8 for line in inside)
    margin = 3 * CELL
    assert all((line >= -margin).all() and (line <= np.array(film.shape[::-1]) + margin).all() for line in lines)
    assert not detected_lines(film, where & ~np.uint8(1), SMALL, _whole_view)


def test_the_detector_sees_nothing_of_an_even_picture_and_little_of_tissue() -> None:
    """A finder without the gate would see all of both, in six views and more."""
    finder, pixels = TextFinder(), [0]
    detect = finder._reader.detect
    finder._reader.detect = lambda view: (pixels.append(view.size), detect(view))[1]  # type: ignore[assignment]
    finder._reader.detect.forget = detect.forget  # type: ignore[attr-defined]
    finder.clean(np.full((600, 600), 90, np.uint8), 384)
    assert sum(pixels) == 0
    finder.clean(cv2.resize(tissue(), (1600, 1200)), 384)
    assert sum(pixels) < 1600 * 1200 / 4
