"""A site's VQA model: a frozen backbone, its own prompts, other sites' shared prompts, and its own answer head."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from medfedvqa.errors import ConfigError
from medfedvqa.models.backbone import Backbone, BackboneShape, Batch, Depth, Features, Tuning
from medfedvqa.models.prompts import JoinedPrompts, Joining, Placing, PromptShape, initial, join

PROMPT = "prompt."
Prompts = Mapping[str, torch.Tensor]
"""Prompts by name, `prompt.` and the tower's; those that a model does without are absent."""


@dataclass(frozen=True)
class ModelConfig:
    """Options of the model; the defaults are the paper's (section 3.1) where it names one."""

    blocks: int | None = None
    """r: prompts in the last r blocks of each tower (paper: 12, all of ViT-B's); None is all blocks of each."""
    length: int = 4
    """L: tokens per block and prompt, half of them keys and half values."""
    image_prompt: bool = True
    """False is the paper's ablation AS3."""
    text_prompt: bool = True
    """False is the paper's ablation AS4; both False is AS1's model."""
    joining: Joining = "concatenate"
    """How local and shared prompts join."""
    placing: Placing = "before"
    """Whether prompts join before or after the projections to keys and values."""
    features: Features = "concat"
    """What the head sees: both towers' features; `product` adds the product of both in CLIP's common space."""
    hidden: int = 512
    """Width of the head's hidden layer."""
    dropout: float = 0.2
    """Share of hidden units dropped in training."""
    prompt_std: float = 0.02
    """Standard deviation of new prompts; the paper gives none."""

    def __post_init__(self) -> None:
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout is {self.dropout}; it lies in [0, 1)")
        if self.hidden < 1 or self.prompt_std <= 0:
            raise ConfigError("the head's hidden width and the prompts' standard deviation must be positive")


def prompt_shapes(shape: BackboneShape, config: ModelConfig) -> dict[str, PromptShape]:
    """The prompts that a model trains and shares, by name. Raises `ConfigError`."""
    wanted = {"image": config.image_prompt, "text": config.text_prompt}
    if not wanted.keys() <= shape.towers.keys() and config.image_prompt != config.text_prompt:
        raise ConfigError("this backbone reads picture and question in one tower: prompts are for both or for none")
    shapes = {}
    for name, tower in shape.towers.items():
        if wanted.get(name, config.image_prompt):
            blocks = tower.layers if config.blocks is None else config.blocks
            if blocks > tower.layers:
                raise ConfigError(f"'{PROMPT}{name}' is asked for in {blocks} blocks; its tower has {tower.layers}")
            shapes[PROMPT + name] = PromptShape(blocks, config.length, tower.width)
    return shapes


def prompt_depth(shape: BackboneShape, config: ModelConfig) -> Depth:
    """How deep prompts reach into each tower. Raises `ConfigError`."""
    shapes = prompt_shapes(shape, config)
    return {tower: shapes[PROMPT + tower].blocks if PROMPT + tower in shapes else 0 for tower in shape.towers}


class AnswerHead(nn.Module):
    """The personal answer layer: features to `hidden` units, ReLU, dropout, answers."""

    def __init__(self, features: int, hidden: int, answers: int, dropout: float, generator: torch.Generator) -> None:
        super().__init__()
        self.hidden = _linear(features, hidden, generator)
        self.answers = _linear(hidden, answers, generator)
        self._dropout = dropout

    def forward(self, features: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        """Features [rows, width] to logits [rows, answers]; dropout only with a generator to draw from."""
        hidden = self.hidden(features).relu()
        if generator is not None:
            kept = torch.rand(hidden.shape, generator=generator).to(hidden.device) >= self._dropout
            hidden = hidden * kept / (1 - self._dropout)
        return self.answers(hidden)


def _linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """torch's default initial values, from our generator and no global one."""
    layer = nn.utils.skip_init(nn.Linear, inputs, outputs)
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, -(inputs**-0.5), inputs**-0.5, generator=generator)
    return layer


class SiteModel(nn.Module):
    """Everything that a site trains, on a backbone that many sites may share.

    Its parameters are `prompt.*` (image and text, for CLIP) and `head.*`; the frozen backbone is not among them.
    Shared prompts come with every call: they are data received from others, not part of the model.
    """

    def __init__(self, backbone: Backbone, config: ModelConfig, answers: int, generator: torch.Generator) -> None:
        """`answers`: the size of the site's answer space; `generator` draws all initial values.

        Raises `ConfigError`.
        """
        super().__init__()
        self.config, self._backbone = config, backbone
        shape, shapes = backbone.shape, prompt_shapes(backbone.shape, config)
        self.prompt = nn.ParameterDict(
            {name.removeprefix(PROMPT): initial(size, config.prompt_std, generator) for name, size in shapes.items()}
        )
        width = shape.width + (shape.embed if config.features == "product" else 0)
        self.head = AnswerHead(width, config.hidden, answers, config.dropout, generator)
        self.to(backbone.device)

    @property
    def prompts(self) -> dict[str, nn.Parameter]:
        """The local prompts by name."""
        return {PROMPT + tower: prompt for tower, prompt in self.prompt.items()}

    def state(self) -> dict[str, torch.Tensor]:
        """A copy of all that is trained, by name; `load_state_dict` puts it back."""
        return {name: tensor.detach().clone() for name, tensor in self.state_dict().items()}

    def forward(
        self,
        batch: Batch,
        shared: Prompts | None = None,
        generator: torch.Generator | None = None,
        local: Prompts | None = None,
    ) -> torch.Tensor:
        """Logits [rows, answers].

        `shared`: the shared prompts, None before the first exchange. `generator`: for training; dropout draws from it.
        `local`: prompts to use instead of the model's own. Each may be [owners, blocks, length, width]: then the
        batch was gathered with owners, and the gradient of each slice is that owner's alone.
        """
        tuning = self.tuned(batch, shared, self.prompts if local is None else local)
        return self.head(self._backbone.features(batch, tuning, self.config.features), generator)

    def tuned(self, batch: Batch, shared: Prompts | None, local: Prompts) -> Tuning:
        """These prompts, joined, as the backbone takes them."""
        joined = {name.removeprefix(PROMPT): self._joined(name, local, shared, batch) for name in local}
        return Tuning(prompts=joined)

    def _joined(self, name: str, local: Prompts, shared: Prompts | None, batch: Batch) -> JoinedPrompts:
        own, owner = local[name], None
        if own.dim() == 4:
            owner = batch.owners[name.removeprefix(PROMPT)]
            if owner is None:
                raise ConfigError("prompts of several owners need a batch that was gathered with owners")
        return join(own, shared[name] if shared else None, self.config.joining, self.config.placing, owner)
