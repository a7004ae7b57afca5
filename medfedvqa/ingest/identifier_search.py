"""Finds what identifies a patient in a text: by the forms of the patient's header, and by patterns."""

import re
from collections.abc import Callable, Iterable

from medfedvqa.ingest.calendar_dates import dates_in
from medfedvqa.ingest.declared_numbers import national_numbers, telephone_numbers
from medfedvqa.ingest.identifier_forms import Spotted, spotted
from medfedvqa.ingest.name_forms import LETTERS, folded
from medfedvqa.ingest.word_lists import GENERIC, HONORIFICS, MEDICAL, TITLES

Place = tuple[int, int]
"""Start and end in a text."""
ORDINARY = MEDICAL | GENERIC
PLACEHOLDER = "[removed]"
PATTERNS = (
    # Numbers that a word declares to be somebody's.
    r"\b(?:mrn|pid|id|acc(?:ession)?|case|fall(?:nummer)?|pat(?:ient)?(?:en)?)[ .#:-]{0,3}"
    r"(?:no|nr|number|id)?[ .#:=-]{0,3}[a-z]{0,4}[-_]?\d[\d-]{3,}",
    r"\b(?:9\d|1[01]\d)[ -]?(?:years?\b|yrs?\b|y/?o\b|jahre)",  # ages above 89 years
    r"[\w.+-]+@[\w-]+\.[\w.-]+",
    r"\b[^\W\d_]{3,}(?:stra(?:ß|ss)e|str\.|weg|platz|allee)\s?\d+",
    r"\b\d{1,4} (?:[^\W\d_]+ ){1,2}(?:street|road|avenue|lane|drive)\b",
)
_PATTERN = re.compile("|".join(PATTERNS), re.IGNORECASE)


def identifiers_in(text: str, is_known: Callable[[str], bool], doubtful: bool = False) -> list[Place]:
    """The places of a text that identify a patient, in order and merged where they overlap.

    `is_known`: whether the patient's header has a form. `doubtful`: the text was read from pixels, where case means
    nothing and a name with a wrong letter counts as the name. In a question such a name counts if it looks like one.
    """
    spots = list(spotted(text))
    places = [match.span() for match in _PATTERN.finditer(text)] + [(start, end) for start, end, _ in dates_in(text)]
    places += [*national_numbers(text), *telephone_numbers(text)]
    uncertain = list[Spotted]()
    for spot in spots:
        if any(is_known(form) for form in spot.forms):
            ordinary = folded(text[spot.start : spot.end]) in ORDINARY
            if (ordinary and not doubtful) or all(form.startswith("short:") for form in spot.forms):
                uncertain.append(spot)
            else:
                places.append((spot.start, spot.end))
        elif known := [form for form in spot.near if is_known(form)]:
            # On a picture the header's sentences say what it shows.
            sure = doubtful and not all(form.startswith("free:") for form in known)
            if sure or _looks_like_a_name(text, spot):
                places.append((spot.start, spot.end))
    named = [spot for spot in uncertain if _is_used_as_name(text, spot, places)]
    return merged([*places, *((spot.start, spot.end) for spot in named)])


def without(text: str, places: Iterable[Place]) -> str:
    """The text with a placeholder in each of these places."""
    for start, end in sorted(places, reverse=True):
        text = text[:start] + PLACEHOLDER + text[end:]
    return text


def merged(places: Iterable[Place]) -> list[Place]:
    """Places in order; those that overlap become one."""
    result = list[Place]()
    for start, end in sorted(places):
        if result and start < result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result


def _looks_like_a_name(text: str, spot: Spotted) -> bool:
    """Whether a word that no list has is written with a capital within a sentence, or stands after a title."""
    word, before = text[spot.start : spot.end], text[: spot.start].rstrip()
    if folded(word) in ORDINARY:
        return False
    within = bool(before) and before[-1] not in ".?!:" and not text.isupper()
    # In Cyrillic and Greek a word of the header without its ending is no accident at a sentence's start either.
    return _follows_title(before) or (word[0].isupper() and (within or ord(word[0]) in range(0x370, 0x530)))


def _is_used_as_name(text: str, spot: Spotted, places: Iterable[Place]) -> bool:
    """Whether a word that is a name and an ordinary word, or is very short, stands as a name: after a title, before an
    honorific, or beside another name."""
    if _follows_title(text[: spot.start].rstrip()) or text[spot.end :].lstrip().startswith(HONORIFICS):
        return True
    return any(
        re.fullmatch(r"[\s,^.·・-]{0,3}", text[end : spot.start] or text[spot.end : start])
        for start, end in places
        if end <= spot.start or start >= spot.end
    )


def _follows_title(before: str) -> bool:
    title = re.search(rf"((?:{LETTERS}|-)+)[.\s]*$", before)
    return title is not None and folded_title(title.group(1)) in _TITLES


def folded_title(word: str) -> str:
    """A title as it is compared: with its hyphen, as in `г-н`."""
    return "-".join(folded(part) for part in word.split("-"))


_TITLES = frozenset(map(folded_title, TITLES))
