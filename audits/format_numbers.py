"""Names of formats that end in a number, such as `medfedvqa.privacy-report/1`, and what a higher number means."""

import re

from audits.errors import NewerFormat

_NAME = re.compile(r"(.+[ /])([1-9][0-9]{0,8})")


def check_number(name: object, known: str, what: str) -> bool:
    """Whether a file's format is the one of the name `known`.

    Raises `NewerFormat`, which says `what` the file is, where it is the same name with a higher number.
    """
    found, here = _NAME.fullmatch(name) if isinstance(name, str) else None, _NAME.fullmatch(known)
    if found and here and found[1] == here[1] and int(found[2]) > int(here[2]):
        raise NewerFormat(what)
    return name == known
