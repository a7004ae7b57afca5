"""BUTD: top-down attention over regions (P. Anderson et al., CVPR 2018, section 3.3, Eqs. 6 to 12)."""

import torch
from torch import nn

from medfedvqa.models.backbone import Regions
from medfedvqa.papers.networks.recurrent import Reader
from medfedvqa.papers.networks.trunks.parts import Trunk, masked


class GatedTanh(nn.Module):
    """tanh(W x + b) * sigmoid(W' x + b')."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.value, self.gate = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.value(inputs).tanh() * self.gate(inputs).sigmoid()
        return output


class Butd(Trunk):
    """The question, a GRU's last state, weighs regions once; both are multiplied and go through a last gated layer."""

    def __init__(self, regions: int, words: int, width: int) -> None:
        """`regions`, `words`: the widths of the inputs; `width`: the width of the states, 512 in the paper."""
        super().__init__()
        self.features = width
        self.reader = Reader("gru", words, width)
        self.attend, self.score = GatedTanh(regions + width, width), nn.Linear(width, 1)
        self.question, self.picture = GatedTanh(width, width), GatedTanh(regions, width)
        self.joint = GatedTanh(width, width)

    def forward(
        self, regions: Regions, words: torch.Tensor, present: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        question = self.reader(words, present)[:, -1]
        beside = question[:, None].expand(-1, regions.values.shape[1], -1)
        scores = self.score(self.attend(torch.cat([regions.values, beside], dim=2)))[..., 0]
        weights = masked(scores, regions.present).softmax(dim=1)
        picture = (weights[:, None] @ regions.values)[:, 0]
        return self.joint(self.question(question) * self.picture(picture)), weights
