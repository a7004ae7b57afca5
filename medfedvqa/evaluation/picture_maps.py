"""Maps of attention over a picture, and of rows' similarity to answers. They show a patient's data, so they stay at the
site.
"""

import torch
import torch.nn.functional as F

from medfedvqa.figures import encoded, new_figure, styled


@styled()
def draw_attention(picture: torch.Tensor, weights: torch.Tensor, title: str) -> bytes:
    """A PNG of a picture, [1, size, size] in 0..1, alone and under the weights of its parts, [parts], in row-major
    order.
    """
    side = round(len(weights) ** 0.5)
    spread = F.interpolate(weights.view(1, 1, side, side), size=picture.shape[-2:], mode="bilinear")[0, 0]
    figure = new_figure(7.0, 3.8)
    for axes, name in zip(figure.subplots(1, 2), ("the picture", "attention, share per part"), strict=True):
        axes.imshow(picture[0].numpy(), cmap="gray", vmin=0, vmax=1)
        axes.set_title(name)
        axes.axis("off")
    overlay = axes.imshow(spread.numpy(), cmap="inferno", alpha=0.55, vmin=0)
    figure.colorbar(overlay, ax=axes, shrink=0.8)
    figure.suptitle(title)
    return encoded(figure, "png")


@styled()
def draw_similarity(before: torch.Tensor, after: torch.Tensor) -> bytes:
    """A PNG of two matrices [rows, rows], on one scale: positive pairs are on the diagonal."""
    figure = new_figure(8.0, 3.8)
    low, high = (float(choose(torch.stack([before, after]))) for choose in (torch.min, torch.max))
    panels = figure.subplots(1, 2)
    for axes, matrix, name in zip(panels, (before, after), ("before training", "after training"), strict=True):
        drawn = axes.imshow(matrix.numpy(), cmap="viridis", vmin=low, vmax=high)
        axes.set_title(name)
        axes.set_xlabel("answer of row")
    panels[0].set_ylabel("row")
    figure.colorbar(drawn, ax=panels, shrink=0.8, label="similarity")
    return encoded(figure, "png")
