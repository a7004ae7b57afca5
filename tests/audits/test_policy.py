"""A site's allow-list."""

from dataclasses import replace
from typing import Any

import pytest

from audits import Kind, Refusal, SitePolicy, TensorSpec
from audits.errors import PolicyError, ReleaseFault
from audits.exchange import SITES
from audits.policy import Offer

FOUND = {"methods": ["prompt_pfl", "fedavg"], "kinds": ["parameters", "statistic"]}
SPEC = TensorSpec("shared", (2,), "float32", Kind.PARAMETERS, "A prompt.")


def test_a_configuration_becomes_a_policy_with_the_server_and_the_other_sites_as_peers() -> None:
    """`recipients` may be left out; other sites then get shares, which is all that a policy ever lets them have."""
    assert SitePolicy.from_mapping(FOUND) == SitePolicy(
        ("prompt_pfl", "fedavg"), (Kind.PARAMETERS, Kind.STATISTIC), ("server", SITES)
    )
    assert SitePolicy.from_mapping(FOUND | {"recipients": ["site-2"]}).recipients == ("site-2",)


@pytest.mark.parametrize(
    "found",
    [
        None,
        ["methods"],
        {},
        {"methods": ["m"]},
        {"kinds": ["parameters"]},
        FOUND | {"method": ["m"]},
        FOUND | {1: ["m"]},
        FOUND | {"methods": "prompt_pfl"},
        FOUND | {"methods": {"prompt_pfl": True}},
        FOUND | {"methods": [1]},
        FOUND | {"methods": [""]},
        FOUND | {"methods": None},
        FOUND | {"kinds": ["weights"]},
        FOUND | {"kinds": [["parameters"]]},
        FOUND | {"recipients": "server"},
        FOUND | {"recipients": True},
        FOUND | {"require_dp": "yes"},
        FOUND | {"require_dp": 1},
        FOUND | {"require_secagg": None},
        FOUND | {"require_dp": True, "max_epsilon": 0},
        FOUND | {"require_dp": True, "max_epsilon": "8"},
        FOUND | {"require_dp": True, "max_epsilon": float("nan")},
        FOUND | {"require_dp": True, "max_epsilon_per_job": float("inf")},
        FOUND | {"require_dp": True, "max_epsilon": True},
        FOUND | {"max_epsilon": 8},
        FOUND | {"max_epsilon_per_job": 8},
        FOUND | {"delta": 0},
        FOUND | {"delta": 1},
        FOUND | {"delta": "1e-5"},
        FOUND | {"unit": "row"},
        FOUND | {"min_sites": 0},
        FOUND | {"min_sites": 2.0},
        FOUND | {"committee": "chest"},
        FOUND | {"min_committee": 2},
        FOUND | {"min_difference": 1},
        FOUND | {"min_difference": True},
        FOUND | {"colluders": True},
        FOUND | {"colluders": False},
        FOUND | {"colluders": -1},
        FOUND | {"colluders": "all"},
    ],
)
def test_a_malformed_configuration_is_refused(found: Any) -> None:
    """An unknown key, a missing one or a value of another type never becomes a policy."""
    with pytest.raises(PolicyError):
        SitePolicy.from_mapping(found)


def test_the_digest_is_stable_and_ignores_order() -> None:
    """Logs name policies by digest, since version 0.1.0; two lists that allow the same have the same one."""
    policy = SitePolicy.from_mapping(FOUND)
    assert policy.digest() == "0e94edcb851218049a2b17925e5b8f4241ebafd8596d0763ff650c6a5a13cbef"
    assert SitePolicy(policy.methods[::-1], policy.kinds[::-1] * 2).digest() == policy.digest()
    assert SitePolicy(policy.methods, policy.kinds[:1]).digest() != policy.digest()
    assert replace(policy, repeats=4).digest() != policy.digest() != replace(policy, min_difference=3).digest()


@pytest.mark.parametrize(
    ("policy", "word"),
    [
        (SitePolicy(("other",), (Kind.PARAMETERS,)), "method"),
        (SitePolicy(("prompt_pfl",), (Kind.STATISTIC,)), "kind"),
        (SitePolicy(("prompt_pfl",), (Kind.PARAMETERS,), ("site-2",)), "peer"),
        (SitePolicy((), ()), "method"),
    ],
)
def test_what_is_not_named_is_refused_with_a_reason(policy: SitePolicy, word: str) -> None:
    """Method, kind and peers must all be on the list."""
    reason = policy.allows("prompt_pfl", SPEC)
    assert reason is not None and word in reason


def test_what_is_named_is_allowed() -> None:
    """No reason means allowed."""
    assert SitePolicy.from_mapping(FOUND).allows("prompt_pfl", SPEC) is None


DEMANDING = SitePolicy.from_mapping(
    FOUND | {"require_dp": True, "max_epsilon": 8, "delta": 1e-5, "require_secagg": True, "min_sites": 3}
)
OFFER = Offer(min_sites=3, secagg=True, delta=1e-5, unit="patient", members=3)


@pytest.mark.parametrize(
    ("offer", "reason"),
    [
        (Offer(3, True, None, None), ReleaseFault.DP),
        (Offer(3, True, 1.1e-5, "patient"), ReleaseFault.DELTA),
        (Offer(3, True, 1e-5, "row"), ReleaseFault.UNIT.format(unit="patient")),
        (Offer(3, False, 1e-5, "patient"), ReleaseFault.SECAGG),
        (Offer(2, True, 1e-5, "patient"), ReleaseFault.SITES.format(count=3)),
        (Offer(3, True, 1e-5, "patient", 2), ReleaseFault.MEMBERS.format(count=3)),
        (Offer(3, True, 1e-5, "patient", 3, ("a", "b", "c")), ReleaseFault.COMMITTEE),
        (Offer(9, True, 1e-5, "patient", 3, colluders=8), Refusal.NOISE.sentence),
    ],
)
def test_a_job_that_offers_less_than_the_site_demands_is_refused_with_the_reason(offer: Offer, reason: str) -> None:
    """Each demand by itself is enough to refuse."""
    refusal = DEMANDING.refusal(offer)
    assert refusal is not None and refusal[1] == reason


def test_a_job_may_be_stricter_than_the_site() -> None:
    """More sites, a smaller delta, and protection that nobody asked for."""
    assert DEMANDING.refusal(OFFER) is None
    assert DEMANDING.refusal(Offer(5, True, 1e-7, "patient", 5)) is None
    assert SitePolicy.from_mapping(FOUND).refusal(OFFER) is None
    named = SitePolicy.from_mapping(FOUND | {"committee": ["b", "a", "c"]})
    assert named.refusal(replace(OFFER, committee=("a", "b", "c"))) is None
    assert named.refusal(OFFER) == (Refusal.COMMITTEE, ReleaseFault.COMMITTEE) and named.refusal(Offer()) is None


@pytest.mark.parametrize(
    "demand",
    [
        {"require_dp": True},
        {"require_secagg": True},
        {"min_sites": 2},
        {"min_committee": 4},
        {"min_difference": 3},
        {"colluders": 0},
        {"delta": 1e-6},
    ],
)
def test_every_demand_changes_the_digest(demand: dict[str, Any]) -> None:
    """The log shows under which demands an entry was written."""
    assert SitePolicy.from_mapping(FOUND | demand).digest() != SitePolicy.from_mapping(FOUND).digest()
