"""A map of the similarity of rows to answers. It shows which of a site's rows agree, so it stays at the site."""

import torch

from medfedvqa.figures import encoded, new_figure, styled


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
