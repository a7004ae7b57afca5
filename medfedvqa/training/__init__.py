"""One trainer for all methods: a site's local steps on named values, plain or under differential privacy by patient."""

from medfedvqa.training.private import Privacy
from medfedvqa.training.rows import MakeCache, Penalty, RowLoss, Rows, SiteRows, answer_losses, cached
from medfedvqa.training.site import Optimizer, Site, TrainingConfig
from medfedvqa.training.trainer import CLIPPED, Part, Trainer, copied

__all__ = [
    "CLIPPED",
    "MakeCache",
    "Optimizer",
    "Part",
    "Penalty",
    "Privacy",
    "RowLoss",
    "Rows",
    "Site",
    "SiteRows",
    "Trainer",
    "TrainingConfig",
    "answer_losses",
    "cached",
    "copied",
]
