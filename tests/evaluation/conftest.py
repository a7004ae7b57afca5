"""A finished run of three sites, small enough to check by hand."""

from dataclasses import replace

import numpy as np
import pytest

from medfedvqa.evaluation import History, RoundRecord, RunFacts, Score

SITES = ("chest", "abdomen", "head")
WEIGHTS = [[0.0, 0.25, 0.75], [0.4, 0.0, 0.6], [0.1, 0.9, 0.0]]
BLOCKS, TOKENS = 4, 2


@pytest.fixture
def facts() -> RunFacts:
    return RunFacts(
        method="prompt_pfl",
        options={"rounds": 3},
        data="vqa-rad",
        split={"kind": "official", "seed": 7},
        backbone="medclip2-slake",
        backbone_seen=["open", "slake"],
        seed=1,
        engine="local",
        sites=SITES,
        rounds_planned=3,
    )


@pytest.fixture
def history() -> History:
    """Three rounds; in the first, nothing came down. Each block's prompts lie far from the other blocks'."""
    generator = np.random.default_rng(0)

    def prompts() -> dict[str, np.ndarray]:
        shapes = {"prompt.image": (BLOCKS, TOKENS, 8), "prompt.text": (BLOCKS, TOKENS, 6)}
        far = {name: 10 * np.eye(BLOCKS, shape[2])[:, None] for name, shape in shapes.items()}
        return {name: (far[name] + generator.normal(size=shape)).astype("float32") for name, shape in shapes.items()}

    rounds = [
        RoundRecord(
            round=number,
            seconds=2.0,
            site_seconds={site: 0.5 for site in SITES},
            bytes_up=dict.fromkeys(SITES, 1004),
            bytes_down=dict.fromkeys(SITES, 0 if number == 1 else 1000),
            accuracy={"chest": 0.25 * number, "abdomen": 0.5, "head": 0.6},
            reliability={"prompt.image": WEIGHTS, "prompt.text": np.transpose(WEIGHTS).tolist()},
        )
        for number in (1, 2, 3)
    ]
    return History(SITES, rounds, {site: prompts() for site in SITES}, {site: prompts() for site in SITES})


@pytest.fixture
def scores() -> dict[str, Score]:
    """Chest beats the question-only prior with and without the others, abdomen only with, head not at all."""
    return {
        "chest": Score(rows=116, correct=71, train_rows=395, majority_correct=58, prior_correct=58, alone_correct=66),
        "abdomen": Score(rows=102, correct=55, train_rows=337, majority_correct=45, prior_correct=47, alone_correct=47),
        "head": Score(rows=54, correct=26, train_rows=295, majority_correct=24, prior_correct=26, alone_correct=20),
    }


@pytest.fixture
def kept(scores: dict[str, Score]) -> dict[str, Score]:
    """The same sites after each has trained on; head keeps the model that it trained alone."""
    counts = {"chest": (76, 69, 70, 0), "abdomen": (60, 49, 50, 0), "head": (25, 22, 24, 3)}
    names = ("finished_correct", "alone_equal_correct", "ensemble_correct", "kept_model")
    return {site: replace(scores[site], **dict(zip(names, each, strict=True))) for site, each in counts.items()}
