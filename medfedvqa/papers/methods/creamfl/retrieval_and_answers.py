"""The test of CreamFL's server model, which is the paper's result (Sec. 4): retrieval, and answers to questions.

Everything here is public and at the server: pictures, captions, questions and answers that no site holds.
"""

import torch
import torch.nn.functional as F

from medfedvqa.data import PublicPairs
from medfedvqa.evaluation import ServerScore
from medfedvqa.evaluation.retrieval import found_first
from medfedvqa.models import IMAGE, TEXT, Backbone
from medfedvqa.papers.methods.creamfl.server_model import (
    EnsembleServer,
    features,
    network,
    numbers,
    pairs_of,
    untuned,
)
from medfedvqa.papers.public_server import one_thread
from medfedvqa.training import FrozenRows

HEAD_EPOCHS = 50
"""Passes of the answer head over the public set's questions."""


def server_score(
    server: EnsembleServer, backbone: Backbone, learned: PublicPairs, held_out: PublicPairs, seed: int
) -> ServerScore:
    """The score on the `held_out` pairs. For answers, a head learns from the questions about the `learned` ones.

    The head stands on the server's representations as they are, and the server's model does not change.
    """
    with one_thread():
        both = server.of(features(backbone, pairs_of(backbone, held_out)))
        captions = numbers(held_out.captions)
        first = torch.stack([(captions == number).nonzero()[0, 0] for number in range(int(captions.max()) + 1)])
        image_to_text, text_to_image = found_first((both[IMAGE] @ both[TEXT][first].T).detach(), captions)
        questions = held_out.questions
        return ServerScore(
            questions=len(questions),
            correct=_answered(server, backbone, learned, held_out, seed),
            pictures=len(held_out),
            captions=len(first),
            image_to_text=image_to_text,
            text_to_image=text_to_image,
        )


def _answered(
    server: EnsembleServer, backbone: Backbone, learned: PublicPairs, held_out: PublicPairs, seed: int
) -> int:
    """The held-out questions that a two-layer head on picture, question and their product answers right."""
    space = tuple(sorted({*learned.questions.answers, *held_out.questions.answers}))
    (train, right), (test, truth) = (_inputs(server, backbone, pairs, space) for pairs in (learned, held_out))
    generator, config = torch.Generator().manual_seed(seed), server.config
    head = network(train.shape[1], config.server_hidden, len(space), generator)
    optimizer = torch.optim.Adam(head.parameters(), config.server_rate)
    for _ in range(HEAD_EPOCHS):
        for rows in torch.split(torch.randperm(len(train), generator=generator), config.public_rows):
            optimizer.zero_grad()
            torch.autograd.backward(F.cross_entropy(head(train[rows]), right[rows]))
            optimizer.step()
    return int((head(test).argmax(dim=1) == truth).sum())


@torch.no_grad()
def _inputs(
    server: EnsembleServer, backbone: Backbone, pairs: PublicPairs, space: tuple[str, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The head's input for each question, [questions, 3 space], and the number of its answer, int64 [questions]."""
    size = backbone.shape.image_size
    rows = FrozenRows.of_questions(backbone.cache_of, size, untuned(backbone), pairs, space)
    both = server.of(features(backbone, rows))
    return torch.cat([both[IMAGE], both[TEXT], both[IMAGE] * both[TEXT]], dim=1), rows.answers
