"""A site whose rows are pictures with captions: it learns to find them, and is tested by retrieval."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from medfedvqa.data import Examples, fold
from medfedvqa.evaluation.retrieval import places_of_right
from medfedvqa.models import IMAGE, TEXT, PairedModel, Values
from medfedvqa.papers.methods.creamfl.ensemble import of_pairs
from medfedvqa.papers.methods.creamfl.server_model import numbers
from medfedvqa.training import RowLoss, Rows, Trainer


def pair_losses(model: PairedModel, temperature: float) -> RowLoss:
    """The contrast of each row's picture and caption with the others of its batch, in the common space."""

    def loss(values: Values, rows: Rows) -> torch.Tensor:
        both = model.represent(values, rows.batch)
        return of_pairs(both[IMAGE], both[TEXT], rows.answers, temperature)

    return loss


@torch.no_grad()
def places_of_captions(
    trainer: Trainer, model: PairedModel, values: Mapping[str, torch.Tensor], examples: Examples
) -> torch.Tensor:
    """The place of each row's caption among the distinct captions of all these rows, from 0, int64 [rows]."""
    captions = numbers(tuple(map(fold, examples.questions)))
    if not len(examples):
        return captions.long()
    batches = torch.split(torch.arange(len(examples)), trainer.config.batch_rows)
    parts = [model.represent(values, trainer.all_rows(examples.chosen(rows)).batch) for rows in batches]
    image, text = (torch.cat([part[modality] for part in parts]).cpu() for modality in (IMAGE, TEXT))
    firsts = {caption: row for row, caption in reversed([*enumerate(captions.tolist())])}
    cosines = image @ text[[firsts[caption] for caption in range(len(firsts))]].T
    return places_of_right(cosines, F.one_hot(captions, len(firsts)).bool())
