"""A very small CLIP as open_clip builds it: for the tests of everything but accuracy, some fifty times as quick.

To import this module makes the architecture known to open_clip in the process.
"""

import json
from pathlib import Path

import open_clip
import torch
from open_clip.model import CLIP

from medfedvqa.research.pretraining.train import write_weights

ARCHITECTURE = "tiny-clip"
TINY = f"{ARCHITECTURE}@random"
"""Name of the backbone with random weights, in a file that `write_random` makes."""

_FILE = Path(__file__).with_name(f"{ARCHITECTURE}.json")
open_clip.add_model_config(_FILE)


def write_random(path: Path) -> None:
    """The weights, the same ones each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        write_weights(CLIP(**json.loads(_FILE.read_text())), path, [])
