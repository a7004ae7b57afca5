"""A site's allow-list."""

from typing import Any

import pytest

from audits import Kind, PolicyError, SitePolicy, TensorSpec

FOUND = {"methods": ["prompt_pfl", "fedavg"], "kinds": ["parameters", "statistic"]}
SPEC = TensorSpec("shared", (2,), "float32", Kind.PARAMETERS, "A prompt.")


def test_a_configuration_becomes_a_policy_with_the_server_as_only_peer() -> None:
    """`recipients` may be left out; then only the server is allowed."""
    assert SitePolicy.from_mapping(FOUND) == SitePolicy(
        ("prompt_pfl", "fedavg"), (Kind.PARAMETERS, Kind.STATISTIC), ("server",)
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
    ],
)
def test_a_malformed_configuration_is_refused(found: Any) -> None:
    """An unknown key, a missing one or a value of another type never becomes a policy."""
    with pytest.raises(PolicyError):
        SitePolicy.from_mapping(found)


def test_the_digest_is_stable_and_ignores_order() -> None:
    """Logs name policies by digest; two lists that allow the same have the same one."""
    policy = SitePolicy.from_mapping(FOUND)
    assert policy.digest() == "410055b111272b33d98880cc325e2ac1783104804ae5480f8038d4be35f7516e"
    assert SitePolicy(policy.methods[::-1], policy.kinds[::-1] * 2).digest() == policy.digest()
    assert SitePolicy(policy.methods, policy.kinds[:1]).digest() != policy.digest()


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
