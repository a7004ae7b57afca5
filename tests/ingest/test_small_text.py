"""Small and faint text is looked for closely where rows of marks are, and nowhere else."""

import cv2
import numpy as np
import pytest

from medfedvqa.ingest.burned_in_text import HEIGHTS, rows_of_marks, small_lines


def tissue() -> np.ndarray:
    """Smooth grey tissue with grain and a bright edge, uint8 [300, 400]."""
    generator = np.random.default_rng(5)
    smooth = cv2.GaussianBlur(generator.normal(size=(300, 400)).astype(np.float32), (0, 0), 12)
    levels = 110 + 25 * smooth / smooth.std() + generator.normal(0, 2, (300, 400))
    levels[:, 300:] += 60
    return np.clip(levels, 0, 255).astype(np.uint8)


def written(height: int, shade: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Tissue with capitals of this height, and where their row is."""
    plain = tissue()
    film = cv2.putText(plain.copy(), "JANE DAVIDSON", (60, 150), cv2.FONT_HERSHEY_SIMPLEX, height / 21, shade, 1)
    row = np.zeros(plain.shape, bool)
    rows, columns = np.nonzero(film != plain)
    row[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1] = True
    return film, row


@pytest.mark.parametrize(("capitals", "height"), [(4, 5), (8, 9), (16, 17), (30, 33)])
def test_a_row_of_letters_is_proposed_and_tissue_grain_and_edges_are_not(capitals: int, height: int) -> None:
    """The row that fits the letters lies on them; of the rest of the picture less than a fiftieth is proposed."""
    film, row = written(capitals)
    marks = rows_of_marks(film, height) > 0
    near = cv2.dilate(row.astype(np.uint8), np.ones((4 * height, 4 * height), np.uint8)) > 0
    assert marks[row].mean() > 0.1 and marks[~near].mean() < 0.02


def test_letters_on_a_narrow_plate_are_proposed_although_grain_lies_beside_it() -> None:
    """Thirty grey levels on a flat plate of which three pixels show above and below the letters."""
    film = np.clip(110 + np.random.default_rng(5).normal(0, 8, (300, 400)), 0, 255).astype(np.uint8)
    film[139:154, 50:200] = 200
    cv2.putText(film, "JANE DAVIDSON", (55, 150), cv2.FONT_HERSHEY_SIMPLEX, 8 / 21, 170, 1)
    assert (rows_of_marks(film, 9)[142:151, 55:190] > 0).mean() > 0.1


@pytest.mark.parametrize("turned", [False, True])
def test_only_places_with_rows_are_searched_and_lines_come_back_where_they_lie(turned: bool) -> None:
    """The detector sees a small part of the picture; its boxes have the picture's own coordinates, also if upright."""
    film, row = written(6)
    film, row = (np.ascontiguousarray(np.rot90(array)) if turned else array for array in (film, row))
    views, detect = list[np.ndarray](), _whole_view
    lines = small_lines(film, lambda view: (views.append(view), detect(view))[1])
    assert views and sum(view.size for view in views) < len(HEIGHTS) * 16 * film.size / 4
    top, left = np.argwhere(row).min(axis=0)
    bottom, right = np.argwhere(row).max(axis=0)
    inside = [line for line in lines if line[:, 0].min() <= left + 8 and line[:, 0].max() >= right - 8]
    assert any(line[:, 1].min() <= top + 8 and line[:, 1].max() >= bottom - 8 for line in inside)
    assert all((line >= -1).all() and (line <= np.array(film.shape[::-1]) + 1).all() for line in lines)


def _whole_view(view: np.ndarray) -> list[np.ndarray]:
    """The whole view as one line."""
    height, width = view.shape
    return [np.float32([(0, 0), (width, 0), (width, height), (0, height)])]
