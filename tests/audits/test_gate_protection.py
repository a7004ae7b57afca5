"""What may leave a site by its protection: under differential privacy, in shares, or in clear."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from borders import ROWS, border

from audits import (
    Exchange,
    Kind,
    Outcome,
    Protection,
    ReleaseRefused,
    Sharing,
    SitePolicy,
    TaskSpec,
    Tensors,
    TensorSpec,
    verify,
)
from audits.errors import ReleaseFault
from audits.exchange import SITES
from audits.gate import LogCharge

NOISY = TensorSpec("noisy", (2,), "float32", Kind.PARAMETERS, "A noisy sum.", protection=Protection.DP)
FIGURE = TensorSpec("epsilon", (2,), "float64", Kind.PUBLIC, "What it costs.")
PRIVATE = Exchange("prompt_pfl", (TaskSpec("train", up=(NOISY, FIGURE), down=()),))
STRICT = SitePolicy(("prompt_pfl",), (Kind.PARAMETERS, Kind.PUBLIC, Kind.STATISTIC), require_dp=True)
CHARGED = LogCharge({"delta": 1e-5}, 0.25, 0.75)


def private_message() -> Tensors:
    return {"noisy": np.zeros(2, "float32"), "epsilon": np.array([0.25, 0.75])}


def test_what_is_declared_under_differential_privacy_leaves_with_its_charge(tmp_path: Path) -> None:
    """The entry says what was charged, and the cohort's epsilon before and after."""
    site = border(tmp_path, PRIVATE, STRICT)
    site.gate.release("train", 1, private_message(), charge=CHARGED)
    (entry,) = site.entries()
    assert (entry.dp_event, entry.epsilon_before, entry.epsilon_after) == ({"delta": 1e-5}, 0.25, 0.75)
    assert verify(tmp_path).ok


def test_without_a_charge_it_does_not_leave(tmp_path: Path) -> None:
    """A method that forgets to charge releases nothing."""
    site = border(tmp_path, PRIVATE, STRICT)
    with pytest.raises(ReleaseRefused, match=re.escape(ReleaseFault.UNCHARGED.format(name="noisy"))):
        site.gate.release("train", 1, private_message())
    assert [entry.outcome for entry in site.entries()] == [Outcome.REFUSED]


def test_a_site_that_requires_differential_privacy_releases_nothing_else_that_depends_on_data(tmp_path: Path) -> None:
    """Also not beside a charge: the charge stands for other tensors."""
    bare = Exchange("prompt_pfl", (TaskSpec("train", up=(NOISY, ROWS), down=(ROWS,)),))
    site = border(tmp_path, bare, STRICT)
    site.gate.receive("train", 1, {"rows": np.array(17)})
    with pytest.raises(ReleaseRefused, match=re.escape(ReleaseFault.UNPROTECTED.format(name="rows"))):
        site.gate.release("train", 1, {"noisy": np.zeros(2, "float32"), "rows": np.array(17)}, charge=CHARGED)


HIDDEN = TensorSpec("prompt", (2,), "float32", Kind.PARAMETERS, "A prompt.", (SITES,), Protection.MASKED)
MIXED = Exchange("prompt_pfl", (TaskSpec("train/mix", up=(HIDDEN, FIGURE), down=(HIDDEN,)),))
SHARING = Sharing("one", "mix", ("abdomen", "chest", "head"), "server")


def test_what_is_shared_is_logged_with_the_sites_and_the_dealer_and_without_a_digest(tmp_path: Path) -> None:
    """A digest of values that stay is an oracle; the server gets its own part of the task's tensors only."""
    policy = SitePolicy(("prompt_pfl",), (Kind.PARAMETERS, Kind.PUBLIC), require_secagg=True)
    site, values = border(tmp_path, MIXED, policy), {"prompt": np.ones(2, "float32")}
    site.gate.share("train/mix", 1, values, SHARING)
    site.gate.reveal("train/mix", 1, values, SHARING)
    site.gate.release("train/mix", 1, {"epsilon": np.zeros(2)})
    assert [(entry.direction, entry.peer) for entry in site.entries()] == [
        *(("out", "sites"), ("in", "sites"), ("out", "server"))
    ]
    for entry in site.entries()[:2]:
        assert entry.reason == "shares only, attempt one at a mix among abdomen, chest, head, dealt by the server"
        assert [(record.protection, record.sha256) for record in entry.tensors] == [(Protection.MASKED, None)]
    with pytest.raises(ReleaseRefused, match=re.escape(ReleaseFault.ADDRESS.format(name="prompt"))):
        site.gate.release("train/mix", 1, values | {"epsilon": np.zeros(2)})


def test_other_sites_get_nothing_but_shares(tmp_path: Path) -> None:
    """A method that would send them values in clear is refused."""
    clear = Exchange("prompt_pfl", (TaskSpec("train/mix", up=(replace(HIDDEN, protection=Protection.NONE),), down=()),))
    site = border(tmp_path, clear, SitePolicy(("prompt_pfl",), (Kind.PARAMETERS,)))
    with pytest.raises(ReleaseRefused, match=re.escape(ReleaseFault.OPEN.format(name="prompt"))):
        site.gate.share("train/mix", 1, {"prompt": np.ones(2, "float32")}, SHARING)


def test_a_site_that_requires_secure_aggregation_releases_nothing_in_clear(tmp_path: Path) -> None:
    """But for what depends on no data."""
    policy = SitePolicy(("prompt_pfl",), (Kind.PARAMETERS, Kind.PUBLIC), require_secagg=True)
    with pytest.raises(ReleaseRefused, match=re.escape(ReleaseFault.UNMASKED.format(name="noisy"))):
        border(tmp_path, PRIVATE, policy).gate.release("train", 1, private_message(), charge=CHARGED)
