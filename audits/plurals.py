"""Numbers of things in sentences."""


def quantity(number: int, singular: str, plural: str = "") -> str:
    """Such as `1 entry` or `21 entries`; `plural` is `singular` with an s, if it is not given."""
    return f"{number} {singular if number == 1 else plural or singular + 's'}"
