"""Numbers of things in sentences."""


def quantity(number: int, singular: str, plural: str = "") -> str:
    """A number with its noun, such as `1 entry` or `21 entries`. `plural`: by default `singular` with an s."""
    return f"{number} {singular if number == 1 else plural or singular + 's'}"
