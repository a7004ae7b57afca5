"""The largest and smallest values in a job, and the patterns of its names.

The limits are far beyond any published experiment; they only keep a hostile job from demanding absurd amounts of a
site's memory or time. This module does not import torch, because the processes that check job folders never load it.
"""

import re
from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

MOST_SEED = 2**63 - 1
MOST_SITES = 10_000
MOST_SECONDS = 31 * 86_400.0
"""The longest time limit of a round: a signed job is fresh for 31 days."""
MOST_ROUNDS = 10_000
"""Rounds, and options that count rounds."""
MOST_PASSES = 10_000
"""Passes over rows in one round, or its batches."""
MOST_ROWS = 4_096
"""Rows of a batch."""
MOST_WIDTH = 8_192
"""Units of a layer."""
MOST_SPACE = 2_048
"""Width of a representation, and of layers for each word or each part of a picture."""
MOST_RANK = 512
"""Rank of low-rank updates."""
MOST_LAYERS = 256
"""Blocks of a backbone that are tuned."""
MOST_HOPS = 16
"""Layers of attention."""
MOST_LENGTH = 256
"""Tokens of a prompt in a block, or of an answer."""
MOST_VIEWS = 64
"""Augmented views of a picture."""
MOST_PIXELS = 512
"""Side of a picture."""
MOST_CHARACTERS = 2000
"""The most characters of a caption, and of a question or an answer about a public picture."""
MOST_PAIRS = 100_000
"""Public pictures with captions."""
MOST_WEIGHT = 1e6
"""Weight of a part of a loss."""
MOST_RATE = 100.0
"""Learning rates, and the deviation of new values."""
LEAST_TEMPERATURE, MOST_TEMPERATURE = 1e-4, 1e4
MOST_ANSWERS = 10_000
"""The most answers that a job's list may have."""
MOST_FEATURES = 512
"""Features of a table's row."""
MOST_TEXT = 200
"""Characters of an answer, and of any other string of a job."""
MOST_DECAYS = 1_000
"""Rounds after which a learning rate decays."""

Weight = Annotated[float, Field(ge=0, le=MOST_WEIGHT)]
Temperature = Annotated[float, Field(ge=LEAST_TEMPERATURE, le=MOST_TEMPERATURE)]
Rate = Annotated[float, Field(gt=0, le=MOST_RATE)]
WeightDecay = Annotated[float, Field(ge=0, le=MOST_RATE)]
Share = Annotated[float, Field(ge=0, lt=1)]
"""A dropout rate, or a momentum."""
Factor = Annotated[float, Field(gt=0, le=1)]
"""A factor on a learning rate."""
Rounds = Annotated[int, Field(ge=1, le=MOST_ROUNDS)]
Passes = Annotated[int, Field(ge=1, le=MOST_PASSES)]
ExtraPasses = Annotated[int, Field(ge=0, le=MOST_PASSES)]
"""Passes that a method can do without."""
BatchRows = Annotated[int, Field(ge=1, le=MOST_ROWS)]
Width = Annotated[int, Field(ge=1, le=MOST_WIDTH)]
Space = Annotated[int, Field(ge=1, le=MOST_SPACE)]
Rank = Annotated[int, Field(ge=1, le=MOST_RANK)]
Blocks = Annotated[int | None, Field(ge=1, le=MOST_LAYERS)]
"""How many of the last blocks; None means all of them."""
PromptLength = Annotated[int, Field(ge=2, le=MOST_LENGTH)]

EXPANDED = frozenset("{}$")
"""Characters that mark text which FLARE replaces by the site's environment variables."""


def _plain(text: str) -> str:
    if not text.isprintable() or EXPANDED & set(text):
        raise ValueError("a text must not have control characters or '{', '}' and '$'")
    return text


Text = Annotated[str, StringConstraints(min_length=1, max_length=MOST_TEXT), AfterValidator(_plain)]
"""Words of a job: printable, without the characters that FLARE expands."""
SiteName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\z", max_length=64)]
"""A site, as the federation names it."""
ORGAN_NAME = r"[a-z][a-z0-9-]{0,31}"
OrganName = Annotated[str, StringConstraints(pattern=rf"^{ORGAN_NAME}\z")]
"""An organ. In a run on one machine it is the name of a site, and visible to others."""
Identifier = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]*\z", max_length=32)]
"""A method, a reader."""
JOIN = "+"
"""Joins the names of several data sets, as in `vqa-rad+slake`."""
DataName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]*(\+[a-z][a-z0-9_-]*)*\z", max_length=64)]
"""A reader, or several with `JOIN` between."""
BackboneName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/@:+-]*\z", max_length=MOST_TEXT)]
"""A backbone's name; never a path of the site, because policies list backbones by name."""

PublicSet = Annotated[
    Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}\z", max_length=71)] | None,
    Field(description="the digest of a public set that all parties have, by `medfedvqa data check`; null is drawn"),
]
"""The name of a public set; None means the drawn set."""
PUBLIC_FOLDER = "MEDFEDVQA_PUBLIC"
"""The environment variable that names the folder of a public set of one's own."""
PUBLIC_TABLE = "pairs.csv"
"""The table of pictures and captions in that folder."""

NONCE = r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\z"
"""A random UUID."""
FINGERPRINT = r"^SHA256(:[0-9A-F]{2}){32}\z"
"""The fingerprint of a certificate, as FLARE's tools print it."""

_NUMBER = r"(-?[0-9]{1,12}(?:\.[0-9]{1,12})?)"
_FEATURE = re.compile(rf"[a-z][a-z0-9_ -]{{0,60}} {_NUMBER}\.\.{_NUMBER}")


def feature_range(name: str) -> tuple[float, float] | None:
    """The ends of the range that a feature's name states, as `age 18..95`; None for any other text."""
    stated = _FEATURE.fullmatch(name)
    if stated is None or not (low := float(stated[1])) < (high := float(stated[2])):
        return None
    return low, high
