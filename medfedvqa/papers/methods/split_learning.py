"""Split learning without sharing labels: Algorithm 2 of Sun and Ochiai (2023), after P. Vepakomma et al. (2018).

A site holds the first part of the model and the last one, the server the part between. A step is two exchanges:
activations go up and come down, then the gradients of the site's own loss go up and come down.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F

from audits import TaskSpec, Tensors
from medfedvqa.core.head_options import ListedAnswers
from medfedvqa.core.hub import Hub
from medfedvqa.core.method import Handler, State, arrays_of, tensors_of
from medfedvqa.core.registry import register
from medfedvqa.data import Examples, numbered
from medfedvqa.errors import FederationError
from medfedvqa.models import BackboneShape, Shapes
from medfedvqa.papers.networks.split import TAIL, MiddlePart, head_initial, head_shapes, tail_logits
from medfedvqa.papers.split_training import OUT_OF_ORDER, ROWS, SplitConfig, SplitTraining, leaves_of
from medfedvqa.training import Site

MIDDLE = "v_middle"
"""The server's output for a batch. The gradient of the site's loss goes up under the same name."""


class SplitLearningConfig(SplitConfig, ListedAnswers, frozen=True):
    """Options of the method `split_learning`."""


@register
class SplitLearning(SplitTraining[SplitLearningConfig]):
    """Supervised split learning whose labels stay at their site, which computes the loss by itself."""

    name = "split_learning"
    config_type = SplitLearningConfig
    at_cut = {ROWS: "what the trunk makes of pictures and questions"}
    why_not_private = "it sends the activations of single rows"

    @property
    def public_answers(self) -> tuple[str, ...]:
        """See `Method.public_answers`."""
        return self.config.listed

    @property
    def in_clear(self) -> Collection[str]:
        """See `SplitTraining.in_clear`; also the tasks that send the loss's gradients, on which the server
        continues.
        """
        return [*super().in_clear, *(task.name for task in self.between)]

    @property
    def between(self) -> tuple[TaskSpec, ...]:
        """In each step the server's output comes down, and the loss's gradient with respect to it goes up."""
        output = "what the server makes of the rows"
        up = (self.activations_of(MIDDLE, f"gradient of the loss by {output}", self.config.space),)
        down = (self.activations_of(MIDDLE, output, self.config.space),)
        return tuple(TaskSpec(_loss_name(number), up, down) for number in range(1, self.config.steps + 1))

    def site_shapes(self, shape: BackboneShape) -> Shapes:
        """The shapes of the trunk with its projection, and of the layer from the server's output to the answers."""
        return head_shapes(shape, self.config.tuned, self.config.width) | self._tail

    @property
    def server_shapes(self) -> Shapes:
        """The shapes of the part in the middle."""
        return self.server.middle_shapes

    def server_part(self, seed: int) -> MiddlePart:
        """The part in the middle."""
        return MiddlePart(self.server, seed)

    def setup(self, site: Site) -> State:
        """The same values at all sites, whatever their data."""
        generator = torch.Generator().manual_seed(site.seed)
        values = head_initial(self.networks(site), self._tail, generator)
        return {"values": values, "optimizer": None, "step": 0, "losses": 0}

    def handler(self, task: TaskSpec, site: Site) -> Handler:
        """See `Method.handler`. Each step's loss is a task of its own."""
        return self.loss if task in self.between else super().handler(task, site)

    def handle(self, task: TaskSpec, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """See `SplitTraining.handle`. A step's loss stands between its activations and the next ones."""
        if task.name in (*self.steps, "update") and state["losses"] != state["step"]:
            raise FederationError(OUT_OF_ORDER)
        if task in self.between and (task.name, state["losses"]) != (_loss_name(state["step"]), state["step"] - 1):
            raise FederationError(OUT_OF_ORDER)
        return super().handle(task, site, state, received, round)

    def forward(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """See `SplitTraining.forward`."""
        return super().forward(site, {**state, "losses": 0}, received, round)

    def loss(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """Updates the last part on the server's output. Returns the mean cross-entropy's gradient at that output."""
        train = self._encoded(site, site.data.train).answered
        right = train.answers[self.rows_of(site, len(train), round, state["step"])].to(site.device)
        values, middle = leaves_of(state), tensors_of(received, site.device)[MIDDLE].requires_grad_()
        torch.autograd.backward(F.cross_entropy(tail_logits(values, middle), right))
        assert middle.grad is not None  # the loss depends on it
        gradient = arrays_of({MIDDLE: middle.grad})
        return {**self.learned(state, values, round), "losses": state["losses"] + 1}, gradient

    def gradients(
        self, hub: Hub, parts: Mapping[str, MiddlePart], activations: Mapping[str, Tensors], step: int, rate: float
    ) -> dict[str, Tensors]:
        """The server's outputs go down, their gradients come up, and each part takes its step."""
        rows = {site: tensors_of(activations[site])[ROWS] for site in hub.sites}
        outputs = {site: arrays_of({MIDDLE: parts[site].forward(rows[site])}) for site in hub.sites}
        replies = hub.collect(_loss_name(step), outputs)
        by_output = {site: tensors_of(replies[site])[MIDDLE] for site in hub.sites}
        return {site: arrays_of({ROWS: parts[site].backward(by_output[site], rate)}) for site in hub.sites}

    def activations(
        self, site: Site, values: Mapping[str, torch.Tensor], round: int, step: int
    ) -> dict[str, torch.Tensor]:
        """The first part's output on a batch."""
        train = self._encoded(site, site.data.train).answered
        rows = self.rows_of(site, len(train), round, step)
        return {ROWS: self.networks(site).rows(values, self.batch(site, train, rows))}

    @torch.no_grad()
    def right(self, site: Site, values: Mapping[str, torch.Tensor], examples: Examples) -> torch.Tensor:
        """Whether the answer with the largest logit is the row's. An answer outside of the list is never right."""
        examples, choices = self._encoded(site, examples), []
        for part in torch.split(torch.arange(len(examples)), self.config.batch_rows):
            rows = self.networks(site).rows(values, self.batch(site, examples, part))
            middle = self.server.rows(values, rows, training=False)
            choices.append(tail_logits(values, middle).argmax(dim=1).cpu())
        return torch.cat(choices).eq(examples.answers)

    @property
    def _tail(self) -> Shapes:
        count = len(self.public_answers)
        return {f"{TAIL}weight": (count, self.config.space), f"{TAIL}bias": (count,)}

    def _encoded(self, site: Site, examples: Examples) -> Examples:
        """The rows with answers in the public list; -1 for one outside of it."""
        return replace(examples, answers=numbered(site.data.answers, self.public_answers, examples.answers))


def _loss_name(number: int) -> str:
    """The name of the task in which sites compute the loss of step `number`."""
    return f"loss/{number}"
