"""Drawings of rows with answers, of label distributions, and of prompts. Those of rows show patients' pictures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill

import torch

from medfedvqa.figures import BLUE, COLOURS, GREEN, GREY, INK, MARKERS, VERMILION, encoded, new_figure, styled

Candidates = tuple[tuple[str, float], ...]
"""Answers with their shares in 0..1, the largest first."""
MOST_LABELS = 100
"""Answers in a label distribution, the most frequent ones over all sites, as in FedP3's Fig. 6."""
SEED = 0


@dataclass(frozen=True)
class DrawnRow:
    """The content of one row in a figure."""

    picture: torch.Tensor
    """float32 [1, size, size] in 0..1."""
    question: str
    answer: str
    """The right answer."""
    given: str = ""
    """The model's answer, or whether it is right; empty without a model."""
    candidates: Candidates = ()
    """Answers that a model is forgetting; empty for other pictures."""


@styled()
def draw_samples(samples: Sequence[DrawnRow]) -> bytes:
    """A PNG with a column for each row: picture, question, right answer, and a model's answer."""
    figure = new_figure(2.7 * len(samples), 3.9)
    for axes, sample in zip(figure.subplots(1, len(samples), squeeze=False)[0], samples, strict=True):
        axes.imshow(sample.picture[0].numpy(), cmap="gray", vmin=0, vmax=1)
        axes.set_title(fill(sample.question, 34), fontsize=8)
        axes.set_xticks([])
        axes.set_yticks([])
        lines = [f"answer: {sample.answer}"]
        if sample.given:
            lines.append(f"model: {sample.given}")
        lines += [f"r = {share:.2f}  {answer}" for answer, share in sample.candidates]
        colour = GREEN if sample.given in ("right", sample.answer) else VERMILION if sample.given else INK
        axes.set_xlabel("\n".join(fill(line, 34) for line in lines), color=colour)
    return encoded(figure, "png")


@styled()
def draw_labels(counts: Mapping[str, Mapping[str, int]]) -> bytes:
    """A PNG of each site's share of training rows by answer; answers that only one site has are highlighted.

    `counts`: training rows by answer, by site.
    """
    totals: dict[str, int] = {}
    for by_answer in counts.values():
        for answer, count in by_answer.items():
            totals[answer] = totals.get(answer, 0) + count
    order = sorted(totals, key=lambda answer: -totals[answer])[:MOST_LABELS]
    holders = {answer: sum(by_answer.get(answer, 0) > 0 for by_answer in counts.values()) for answer in order}
    figure = new_figure(min(12.0, 3.0 + 0.14 * len(order)), 1.0 + 1.1 * len(counts))
    rows = figure.subplots(len(counts), 1, sharex=True, squeeze=False)
    for axes, (site, by_answer) in zip(rows[:, 0], counts.items(), strict=True):
        rows_of_site = max(1, sum(by_answer.values()))
        shares = [100 * by_answer.get(answer, 0) / rows_of_site for answer in order]
        axes.bar(range(len(order)), shares, color=[VERMILION if holders[answer] == 1 else BLUE for answer in order])
        axes.set_title(site)
        axes.set_ylabel("rows, %")
    named = order if len(order) <= 40 else []
    rows[-1, 0].set_xticks(range(len(named)), named, rotation=90, fontsize=6)
    rows[-1, 0].set_xlabel("answer, by rows of all sites; red: of this site alone")
    return encoded(figure, "png")


@styled()
def draw_prompts(prompts: Mapping[str, torch.Tensor]) -> bytes:
    """A PNG of a t-SNE of prompts' tokens, [blocks, length, width] by name: colours show names, numbers blocks.

    Source: L. van der Maaten and G. Hinton, 2008, as scikit-learn has it.
    """
    from sklearn.manifold import TSNE

    tokens = torch.cat([prompt.flatten(0, 1) for prompt in prompts.values()]).float().numpy()
    perplexity = min(30.0, (len(tokens) - 1) / 3)
    places = TSNE(perplexity=perplexity, init="pca", random_state=SEED).fit_transform(tokens)
    figure = new_figure(5.4, 4.4)
    axes = figure.subplots()
    start = 0
    for number, (name, prompt) in enumerate(prompts.items()):
        blocks, length, _ = prompt.shape
        of_site = places[start : start + blocks * length]
        start += blocks * length
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number // len(COLOURS) % len(MARKERS)]
        axes.scatter(of_site[:, 0], of_site[:, 1], color=colour, marker=marker, s=14, label=name)
        for block in range(blocks):
            x, y = of_site[block * length : (block + 1) * length].mean(axis=0)
            axes.annotate(str(block + 1), (x, y), color=GREY, fontsize=7)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title("t-SNE of prompts' tokens; numbers are blocks")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7)
    return encoded(figure, "png")
