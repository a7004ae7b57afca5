"""What a lying server makes of the sums that it opens, in jobs of federated averaging."""

import numpy as np
from lying_server import numbers

from medfedvqa.core import Tensors
from medfedvqa.federation.job import JobSpec
from medfedvqa.models import shape_of
from privacy.secagg.ring import Ring

ROWS = "train_rows"
"""The weight of a site."""


def averaged_shapes(job: JobSpec) -> dict[str, tuple[int, ...]]:
    """What the job averages, in the order in which a sum holds it."""
    down = job.build().exchange(shape_of(job.backbone)).task("evaluate").down
    return {spec.name: spec.shape for spec in sorted(down, key=lambda spec: spec.name)}


def mean_of(total: Ring, shapes: dict[str, tuple[int, ...]]) -> Tensors:
    """What the server sends to sites as the mean."""
    values, weight = numbers(total)[:-1], numbers(total)[-1]
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])[:-1]
    parts = np.split(np.float32(values / weight), ends)
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
