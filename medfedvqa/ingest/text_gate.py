"""Finds where text may stand in a picture: the text finder searches these places alone.

`benchmarks/text_gate.py` trains the network, of 8,045 weights, and measures its misses.
"""

from pathlib import Path
from typing import Any

import cv2
import numpy as np

Array = np.ndarray
CELL = 8
"""The side, in pixels, of the square cells that the network decides about."""
LEVELS = (1, 2, 4, 8)
"""How many times a picture is reduced. The network knows capitals of 4 to 18 pixels at each level."""
LEAST, SURE = 0.2, 0.3
"""The network's least value, 0 to 1, in a cell that may hold text, and the least largest one among cells that touch:
letters stand in rows, and at least one of them is clear where all of them are."""
STRIP, HALO = 512, 128
"""Rows that it sees at once, and those above and below that it sees with them; multiples of `CELL`."""
CONTEXT, GRAIN, STRONG, MOST = 33, 3.0, 30.0, 4.0
"""The window in pixels of the local mean and deviation, and the grey levels that are added to the deviation; the grey
levels that scale to 1, and the largest scaled value."""


class TextGate:
    """The network that finds where text may stand, loaded once."""

    def __init__(self) -> None:
        self._session = network(Path(__file__).with_name("text_gate.onnx"), keeps_memory=False)

    def __call__(self, picture: Array) -> Array:
        """Where text may stand in a picture, uint8 [height, width], as uint8 [height / CELL, width / CELL], rounded up:
        the sum of those of `LEVELS` at which it may."""
        rows, columns = (-(-length // CELL) for length in picture.shape)
        cells = np.zeros((rows, columns), np.uint8)
        for level in LEVELS:
            size = picture.shape[1] // level, picture.shape[0] // level
            if min(size) >= CELL:
                marks = may_hold(self._values(cv2.resize(picture, size, interpolation=cv2.INTER_AREA)))
                marks = np.kron(marks, np.full((level, level), level, np.uint8))[:rows, :columns]
                cells[: marks.shape[0], : marks.shape[1]] |= marks
        return cells

    def _values(self, view: Array) -> Array:
        """The network's values, float32 [height / CELL, width / CELL]."""
        values = []
        for top in range(0, view.shape[0], STRIP):
            first = max(0, top - HALO)
            (strip,) = self._session.run(None, {"picture": evened(view[first : top + STRIP + HALO])[None]})
            values.append(strip[0, 0, (top - first) // CELL : (top - first + STRIP) // CELL])
        return np.concatenate(values)


def network(path: Path, keeps_memory: bool) -> Any:
    """A session of an ONNX network on one thread. `keeps_memory`: it keeps what it used for its next run."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = keeps_memory
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def may_hold(values: Array) -> Array:
    """Which cells may hold text, uint8 0 or 1, by the network's values [rows, columns]."""
    marks = (values >= LEAST).astype(np.uint8)
    groups = np.asarray(cv2.connectedComponents(cv2.dilate(marks, np.ones((3, 3), np.uint8)))[1])
    clear: Array = marks * np.isin(groups, groups[values >= SURE])
    return clear.astype(np.uint8)


def evened(view: Array) -> Array:
    """A picture, uint8 [height, width], without its coarse structure, as the network takes it: float32 [2, height,
    width], in deviations of the surroundings and in grey levels."""
    difference = view.astype(np.float32)
    difference -= cv2.blur(difference, (CONTEXT, CONTEXT))
    deviation = np.sqrt(cv2.blur(difference**2, (CONTEXT, CONTEXT)).clip(0))
    return np.stack([difference / (deviation + GRAIN), difference / STRONG]).clip(-MOST, MOST)
