"""How much a tier of the tests tries: `make test` a fifth of the drawn examples, `make test-all` all of them."""

from hypothesis import settings

settings.register_profile("quick", max_examples=20)
settings.register_profile("full", max_examples=100)
settings.load_profile("quick")  # unless pytest is given --hypothesis-profile


def examples(full: int, least: int = 5) -> int:
    """`full` under the profile of that name, else a fifth of it, but not fewer than `least`."""
    return full if settings.get_current_profile_name() == "full" else min(full, max(least, full // 5))
