"""How much a tier of the tests tries: `make test` a fifth of the drawn examples, `make test-all` all of them."""

from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is, and nothing about the claim.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", patient, max_examples=20)
settings.register_profile("full", patient, max_examples=100)
settings.load_profile("quick")  # unless pytest is given --hypothesis-profile


def examples(full: int, least: int = 5) -> int:
    """`full` under the profile of that name, else a fifth of it, but not fewer than `least`."""
    return full if settings.get_current_profile_name() == "full" else min(full, max(least, full // 5))
