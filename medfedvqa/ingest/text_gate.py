"""Finds where text may stand in a picture: the text finder searches these places alone.

`benchmarks/text_gate.py` trains the network, of 8,045 weights, and measures its misses.
"""

from pathlib import Path

import cv2
import numpy as np

Array = np.ndarray
CELL = 8
"""The side, in pixels, of the square cells that the network decides about."""
LEVELS = (1, 2, 4, 8)
"""How many times a picture is reduced. The network knows capitals of 4 to 18 pixels at each level."""
LEAST = 0.2
"""The network's least value, 0 to 1, in a cell that may hold text."""
STRIP, HALO = 512, 128
"""Rows that it sees at once, and those above and below that it sees with them; multiples of `CELL`."""
CONTEXT, GRAIN, STRONG, MOST = 33, 3.0, 30.0, 4.0
"""The window in pixels of the local mean and deviation, and the grey levels that are added to the deviation; the grey
levels that scale to 1, and the largest scaled value."""


class TextGate:
    """The network that finds where text may stand, loaded once."""

    def __init__(self) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.enable_cpu_mem_arena = False
        path = str(Path(__file__).with_name("text_gate.onnx"))
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def __call__(self, picture: Array) -> Array:
        """Where text may stand in a picture, uint8 [height, width]: 2 small text, 1 larger text, 0 none, as uint8
        [height / CELL, width / CELL], rounded up."""
        rows, columns = (-(-length // CELL) for length in picture.shape)
        cells = np.zeros((rows, columns), np.uint8)
        for level in reversed(LEVELS):
            size = picture.shape[1] // level, picture.shape[0] // level
            if min(size) >= CELL:
                view = cv2.resize(picture, size, interpolation=cv2.INTER_AREA)
                may_hold = np.kron(self._values(view) >= LEAST, np.ones((level, level), bool))[:rows, :columns]
                cells[: may_hold.shape[0], : may_hold.shape[1]][may_hold] = 2 if level == 1 else 1
        return cells

    def _values(self, view: Array) -> Array:
        """The network's values, float32 [height / CELL, width / CELL]."""
        values = []
        for top in range(0, view.shape[0], STRIP):
            first = max(0, top - HALO)
            (strip,) = self._session.run(None, {"picture": evened(view[first : top + STRIP + HALO])[None]})
            values.append(strip[0, 0, (top - first) // CELL : (top - first + STRIP) // CELL])
        return np.concatenate(values)


def evened(view: Array) -> Array:
    """A picture, uint8 [height, width], without its coarse structure, as the network takes it: float32 [2, height,
    width], in deviations of the surroundings and in grey levels."""
    difference = view.astype(np.float32)
    difference -= cv2.blur(difference, (CONTEXT, CONTEXT))
    deviation = np.sqrt(cv2.blur(difference**2, (CONTEXT, CONTEXT)).clip(0))
    return np.stack([difference / (deviation + GRAIN), difference / STRONG]).clip(-MOST, MOST)
