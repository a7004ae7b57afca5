"""What a site's process loads in tests only: code of an attacker that changes what its executor answers."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

Change = Callable[[dict[str, Any]], Any]


def _put(name: str, value: float, dtype: str) -> Change:
    return lambda tensors: tensors.update({name: np.array(value, dtype)})


LIES: dict[str, Change] = {
    "accuracy not a number": _put("accuracy", np.nan, "float32"),
    "accuracy 1e9": _put("accuracy", 1e9, "float32"),
    "weight 1e30": _put("train_rows", 1e30, "float64"),
    "weight 1e9": _put("train_rows", 10**9, "int64"),
    "weight negative": _put("train_rows", -5, "int64"),
    "an extra name": _put("patient-17", 1.0, "float32"),
    "text for an array": lambda tensors: tensors.update({next(iter(tensors)): np.array("patient-17")}),
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
                    LIES[order.read_text()](reply[TENSORS])
                return reply

            SiteExecutor.execute = lying
