"""Numbers of things in sentences."""


def counted(number: int, one: str, many: str = "") -> str:
    """Such as `1 entry` or `21 entries`; `many` is `one` with an s, if it is not given."""
    return f"{number} {one if number == 1 else many or one + 's'}"
