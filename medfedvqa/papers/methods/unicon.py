"""UniCon: unidirectional split learning with a contrastive loss (Sun and Ochiai, 2023, also known as BiCSL).

Sites hold the trunk and the answer projection; the server holds two adapters for each site, and contrasts rows with
answers.
"""

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field

from audits import Tensors
from medfedvqa.bounds import MOST_LENGTH, Temperature
from medfedvqa.core.hub import Hub
from medfedvqa.core.method import TESTED, State, arrays_of, tensors_of
from medfedvqa.core.registry import register
from medfedvqa.data import Examples
from medfedvqa.errors import ConfigError
from medfedvqa.models import BackboneShape, Shapes, TokenEmbeddings
from medfedvqa.papers.networks.split import APN, LTA, RowContrast, ServerPart, similarities, site_shapes
from medfedvqa.papers.split_training import ROWS, SERVER_SEED, SplitConfig, SplitTraining
from medfedvqa.training import Site

ANSWERS = "v_apn"
"""The activations of a batch's answers. Their gradient comes back under the same name."""


class UniConConfig(SplitConfig, frozen=True):
    """Options; `variant` and `averaged` say `paper` or `reference` where the paper and its released code differ."""

    temperature: Temperature = Field(0.07, description="tau (paper: 0.07)")
    variant: Literal["reference", "paper"] = Field(
        "reference", description="InfoNCE: cosine, own key included, mean (code); or dot product, excluded, sum"
    )
    mask_duplicates: bool = Field(True, description="rows with one answer are not negatives of each other (paper: are)")
    mask_padding: bool = Field(True, description="zeros beyond an answer's end take no part in the maximum (code: do)")
    answering: Literal["trained", "dot"] = Field("trained", description="similarity at test: as trained, or dot (code)")
    averaged: Literal["paper", "reference"] = Field(
        "paper", description="all four modules, or trunk and NHA alone, which is what the released code averages"
    )
    words: int = Field(8, ge=1, le=MOST_LENGTH, description="tokens of an answer (paper: 8)")

    @property
    def contrast(self) -> RowContrast:
        """The loss at the server."""
        return RowContrast(self.variant, self.temperature, self.mask_duplicates)


@register
class UniCon(SplitTraining[UniConConfig]):
    """Split learning: activations go to the server, gradients come back; answers are chosen by similarity."""

    name = "unicon"
    config_type = UniConConfig
    at_cut = {ROWS: "what the trunk makes of pictures and questions", ANSWERS: "what the projection makes of answers"}
    why_not_private = (
        "its loss holds every row against the others of its batch, so that no patient's part of a gradient can be "
        "bounded by itself"
    )

    def site_shapes(self, shape: BackboneShape) -> Shapes:
        """See `SplitTraining`. Raises `ConfigError` for a backbone without token embeddings."""
        return site_shapes(shape, self.config.tuned, self.config.width)

    @property
    def server_shapes(self) -> Shapes:
        """The shapes of both adapters' tensors."""
        return self.server.shapes

    def server_part(self, seed: int) -> ServerPart:
        """Both adapters, and the contrast."""
        return ServerPart(self.server, self.config.contrast, seed)

    def is_averaged(self, name: str) -> bool:
        """See `SplitTraining`. The released code leaves the answers' side out."""
        return self.config.averaged == "paper" or not name.startswith((APN, LTA))

    def setup(self, site: Site) -> State:
        """The same values at all sites, whatever their data."""
        values = self.networks(site).initial(torch.Generator().manual_seed(site.seed))
        return {"values": values, "optimizer": None, "step": 0}

    def gradients(
        self, hub: Hub, parts: Mapping[str, ServerPart], activations: Mapping[str, Tensors], step: int, rate: float
    ) -> dict[str, Tensors]:
        """The gradients for each site. The loss contrasts the rows of one site's batch only."""
        return {site: _learn(parts[site], activations[site], rate) for site in hub.sites}

    def activations(
        self, site: Site, values: Mapping[str, torch.Tensor], round: int, step: int
    ) -> dict[str, torch.Tensor]:
        """v_MHA and v_APN of a batch."""
        networks, train = self.networks(site), site.data.train.answered
        rows = self.rows_of(site, len(train), round, step)
        answers = networks.answers(values, self._words(site), self.config.mask_padding)
        right = train.answers[rows].to(answers.device)
        return {ROWS: networks.rows(values, self.batch(site, train, rows)), ANSWERS: answers[right]}

    def right(self, site: Site, values: Mapping[str, torch.Tensor], examples: Examples) -> torch.Tensor:
        """Whether the site's most similar answer is the true one, for each row."""
        return self.chosen(site, values, examples).eq(examples.answers)

    @torch.no_grad()
    def chosen(self, site: Site, values: Mapping[str, torch.Tensor], examples: Examples) -> torch.Tensor:
        """The answer to each row from both sides' values, int64 [rows] into the site's answers."""
        networks, cosine = self.networks(site), self.config.contrast.cosine and self.config.answering == "trained"
        answers = networks.answers(values, self._words(site), self.config.mask_padding)
        keys, choices = self.server.answers(values, answers), []
        for part in torch.split(torch.arange(len(examples)), self.config.batch_rows):
            activations = networks.rows(values, self.batch(site, examples, part))
            rows = self.server.rows(values, activations, training=False)
            choices.append(similarities(rows, keys, cosine).argmax(dim=1).cpu())
        return torch.cat(choices)

    @torch.no_grad()
    def similarity(self, site: Site, state: State, examples: Examples) -> tuple[torch.Tensor, torch.Tensor]:
        """The similarity of each row to each row's answer before the first step and at the end, [rows, rows] each.

        This is the paper's Fig. 3, for rows with answers in the site's list. It never leaves the site. Raises
        `ConfigError` for a state before the evaluation, which lacks the server's part.
        """
        if TESTED not in state:
            raise ConfigError(
                "the site has no copy of the server's part: run the job to its evaluation, with this version"
            )
        first = self.setup(site)["values"] | self.server_part(site.seed + SERVER_SEED).values
        last = state["values"] | {name: value.to(site.device) for name, value in state[TESTED].items()}
        batch = self.batch(site, examples, torch.arange(len(examples)))
        matrices = []
        for values in (first, last):
            answers = self.networks(site).answers(values, self._words(site), self.config.mask_padding)
            keys = self.server.answers(values, answers[examples.answers])
            rows = self.server.rows(values, self.networks(site).rows(values, batch), training=False)
            matrices.append(similarities(rows, keys, self.config.contrast.cosine))
        return matrices[0], matrices[1]

    def _words(self, site: Site) -> TokenEmbeddings:
        return site.derive(
            ("words", self.config.words), lambda: site.backbone.words(site.data.answers, self.config.words)
        )


def _learn(part: ServerPart, activations: Tensors, rate: float) -> Tensors:
    """A step at the server, which returns the gradients of the activations."""
    at_cut = tensors_of(activations)
    gradients = part.learn(at_cut[ROWS], at_cut[ANSWERS], rate)
    return arrays_of(dict(zip((ROWS, ANSWERS), gradients, strict=True)))
