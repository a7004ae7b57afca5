"""A random lying server: whatever it asks, no honest site's input follows from what it and its colluders know."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lying_network import CLOCK
from mean_scripts import MeanScript
from mix_scripts import Ears, MixScript
from random_scripts import METHODS, NAMES, Federation

from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.methods import base
from privacy.secagg import masking
from privacy.secagg.channel import Session

Sites = Callable[..., dict[str, SiteConfig]]
SCRIPTS = int(os.environ.get("MEDFEDVQA_SCRIPTS", "5"))
"""How many are played against each protocol."""
MEMORY = Path("/dev/shm")
FIRST = int(os.environ.get("MEDFEDVQA_FIRST_SCRIPT", "0"))
"""The seed of the first; those of others follow."""


@pytest.fixture
def federation(introduced: Sites, monkeypatch: pytest.MonkeyPatch) -> Federation:
    """Eight sites, and methods that are known during the test."""
    for method in METHODS:
        monkeypatch.setitem(base._METHODS, method.name, method)
    # Members that wait for each other's words look at a clock of their own.
    monkeypatch.setattr(masking, "time", CLOCK)
    return Federation(introduced(*NAMES, organ="chest"), "medclip@random")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is a file system for that: sites wait for the disk after every task."""
    if not MEMORY.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY) as path:
        yield Path(path)


def test_no_random_server_of_a_mean_learns_an_upload_or_spends_beyond_the_plan(
    federation: Federation, folder: Path
) -> None:
    """Issue R: going back, leaping, repeating, equivocating, denying, dropping, redrawing, under new jobs as well."""
    for seed in range(FIRST, FIRST + SCRIPTS):
        MeanScript(seed, federation, folder / f"mean-{seed}").run()


def test_no_random_dealer_and_members_of_a_mixture_learn_an_input_or_spend_beyond_the_plan(
    federation: Federation, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue R: tuples repeated and bent, attempts ended when the coins do not suit, under new jobs as well. Members who
    collude see what others show them; the server, who deals, sees no share."""
    for seed in range(FIRST, FIRST + SCRIPTS):
        ears = Ears()
        with monkeypatch.context() as patch:
            patch.setattr(Session, "open", lambda session, sealed, ears=ears: ears.open(session, sealed))
            MixScript(seed, federation, folder / f"mix-{seed}", ears=ears).run()
