"""What tests of the benchmark share: runs of a grid in the process of the test."""

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from tiny_clip import TINY

from medfedvqa.research.benchmark import grid
from medfedvqa.research.benchmark.grid import Grid


class InThisProcess:
    """A pool of no processes: each task is done when it is submitted. A process of its own takes seconds to import."""

    def __init__(self, *_: Any, **options: Any) -> None:
        """Takes what `ProcessPoolExecutor` takes."""

    def __enter__(self) -> "InThisProcess":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is left."""

    def submit(self, task: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """The task's future, which is done."""
        future: Future[Any] = Future()
        try:
            future.set_result(task(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.fixture
def quick_grid(monkeypatch: pytest.MonkeyPatch, tiny_backbone: Path) -> Callable[..., Grid]:
    """Makes grids whose runs take place in this process, on the very small CLIP."""
    monkeypatch.setattr(grid, "ProcessPoolExecutor", InThisProcess)

    def make(*arguments: Any, **options: Any) -> Grid:
        return Grid(*arguments, **{"backbone": TINY, "files": {TINY: tiny_backbone}, **options})

    return make
