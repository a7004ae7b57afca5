"""Lies of a site: what code of an attacker makes of its answers, the same in process and in a site's own processes."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

MARKER = "patient-17"
WEIGHT, FIRST = "weight", "first"
"""For the count of rows, whatever a method calls it, and for the first array of an answer."""
OUTSIDE = "tensor '{name}' holds values outside of its declared bounds "


@dataclass(frozen=True)
class Lie:
    """One array that is changed, or left out if the value is None, and the reason with which the server refuses it."""

    name: str
    value: np.ndarray | None
    reason: str

    def named(self, tensors: dict[str, Any]) -> str:
        """The array's name in this answer."""
        weight = next((name for name in ("rows", "train_rows") if name in tensors), WEIGHT)
        return {WEIGHT: weight, FIRST: next(iter(tensors))}.get(self.name, self.name)

    def told(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """The answer with the lie."""
        name = self.named(tensors)
        kept = {other: array for other, array in tensors.items() if other != name}
        return kept if self.value is None else tensors | {name: self.value}


INFINITE = "tensor '{name}' holds values that are not finite"
NO_ARRAY = "tensor '{name}' is not a plain numpy array of numbers"
OTHER = "tensor '{name}' does not have its declared "
LIES = {
    "accuracy not a number": Lie("accuracy", np.array(np.nan, "float32"), INFINITE),
    "accuracy 1e9": Lie("accuracy", np.array(1e9, "float32"), f"{OUTSIDE}0 to 1"),
    "accuracy negative": Lie("accuracy", np.array(-5, "float32"), f"{OUTSIDE}0 to 1"),
    "accuracy dtype": Lie("accuracy", np.array(0.5), f"{OTHER}dtype float32"),
    "accuracy shape": Lie("accuracy", np.full(1, 0.5, "float32"), f"{OTHER}shape []"),
    "accuracy a text": Lie("accuracy", np.array(MARKER), NO_ARRAY),
    "accuracy missing": Lie("accuracy", None, "tensor '{name}' is missing"),
    "an infinite prompt": Lie(FIRST, np.full((2, 2, 4), np.inf, "float32"), INFINITE),
    "weight 1e9": Lie(WEIGHT, np.array(10**9, "int64"), f"{OUTSIDE}0 to 1e+06"),
    "weight negative": Lie(WEIGHT, np.array(-5, "int64"), f"{OUTSIDE}0 to 1e+06"),
    "weight 1e30": Lie(WEIGHT, np.array(1e30), f"{OTHER}dtype int64"),
    "an extra name": Lie(MARKER, np.array(1, "float32"), "1 of the message's tensors are not declared for this task"),
    "text for an array": Lie(FIRST, np.array(MARKER), NO_ARRAY),
}


class SiteLies(FLComponent):
    """In the site's job processes; what the file `lie` in `folder` names happens to every answer with arrays."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        if any("worker_process" in part for part in sys.orig_argv):
            from medfedvqa.federation.flare.executor import SiteExecutor
            from medfedvqa.federation.flare.messages import TENSORS

            execute = SiteExecutor.execute

            def lying(executor: SiteExecutor, task: str, message: Shareable, fl_ctx: FLContext, signal: Any) -> Any:
                reply = execute(executor, task, message, fl_ctx, signal)
                order = Path(folder) / "lie"
                if order.exists() and reply.get(TENSORS):
                    reply[TENSORS] = LIES[order.read_text()].told(reply[TENSORS])
                return reply

            SiteExecutor.execute = lying
