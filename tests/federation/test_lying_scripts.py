"""A random lying server: whatever it asks, no honest site's input follows from what it and its colluders know."""

import os
from collections.abc import Callable
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
SCRIPTS = int(os.environ.get("MEDFEDVQA_SCRIPTS", "16"))
"""How many are played against each protocol."""
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


def test_no_random_server_of_a_mean_learns_an_upload_or_spends_beyond_the_plan(
    federation: Federation, tmp_path: Path
) -> None:
    """Issue R: going back, leaping, repeating, equivocating, denying, dropping, redrawing, under new jobs as well."""
    for seed in range(FIRST, FIRST + SCRIPTS):
        MeanScript(seed, federation, tmp_path / f"mean-{seed}").run()


def test_no_random_dealer_and_members_of_a_mixture_learn_an_input_or_spend_beyond_the_plan(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue R: tuples repeated and bent, attempts ended when the coins do not suit, under new jobs as well. Members who
    collude see what others show them; the server, who deals, sees no share."""
    for seed in range(FIRST, FIRST + SCRIPTS):
        ears = Ears()
        with monkeypatch.context() as patch:
            patch.setattr(Session, "open", lambda session, sealed, ears=ears: ears.open(session, sealed))
            MixScript(seed, federation, tmp_path / f"mix-{seed}", ears=ears).run()
