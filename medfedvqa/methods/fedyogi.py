"""FedYogi: Yogi at the server (S. J. Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2).

It is `fedadam` with v = v - (1 - beta_2) D^2 sign(v - D^2): the second moment grows and shrinks by at most the square
of one step.

| paper | here | why |
|---|---|---|
| steps from the first round | from the second | the server holds no model before the first mean |
| a fraction of clients per round | all sites | hospitals are few |
"""

import numpy as np

from medfedvqa.core.registry import register
from medfedvqa.methods.fedadam import Array, FedAdam


@register
class FedYogi(FedAdam):
    """The mean, by a step of Yogi at the server."""

    name = "fedyogi"

    def second(self, moment: Array, square: Array) -> Array:
        """The second moment after a step whose square is `square`."""
        return moment - (1 - self.config.beta_2) * square * np.sign(moment - square)
