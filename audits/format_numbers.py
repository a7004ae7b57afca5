"""Names of formats that end in a number, such as `medfedvqa.privacy-report/1`, and what a higher number means."""

import re

from audits.errors import NewerFormat

_NAME = re.compile(r"(.+[ /])([1-9][0-9]{0,8})")


def check_number(name: object, expected: str, what: str) -> bool:
    """Whether a file's format is the one of the name `expected`.

    Raises `NewerFormat`, which says `what` the file is, where it is the same name with a higher number.
    """
    this, that = _NAME.fullmatch(name) if isinstance(name, str) else None, _NAME.fullmatch(expected)
    if this and that and this[1] == that[1] and int(this[2]) > int(that[2]):
        raise NewerFormat(what)
    return name == expected
