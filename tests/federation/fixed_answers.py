"""A server whose sites answer every task with fixed prompts."""

from collections.abc import Callable, Mapping

import numpy as np

from audits import Exchange, Kind, TaskSpec, TensorSpec
from medfedvqa.federation.hub import Reply, TaskCall

SITES = ("a", "b", "c")


PROMPT = TensorSpec("prompt", (1, 1, 2), "float32", Kind.PARAMETERS, "A prompt.")


ACCURACY = TensorSpec("accuracy", (), "float32", Kind.STATISTIC, "A share of rows.", bounds=(0, 1))


EXCHANGE = Exchange("mixed", tuple(TaskSpec(task, (PROMPT, ACCURACY), ()) for task in ("start", "train")))


def answer(prompts: Mapping[str, np.ndarray], accuracy: float = 0.5) -> Callable[..., dict[str, Reply]]:
    """An engine whose sites answer every task with a fixed prompt."""

    def reply(call: TaskCall) -> dict[str, Reply]:
        replies = {}
        for site in call.messages:
            replies[site] = Reply({"prompt": prompts[site], "accuracy": np.array(accuracy, np.float32)}, 0.25)
            call.answered(site)
        return replies

    return reply


def vectors(*values: tuple[float, float]) -> dict[str, np.ndarray]:
    return {site: np.float32([[value]]) for site, value in zip(SITES, values, strict=False)}
