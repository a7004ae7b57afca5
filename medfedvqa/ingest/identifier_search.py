"""Finds what identifies a patient in a text: by the forms of the patient's header, and by patterns."""

import re
from collections.abc import Callable, Iterable

from medfedvqa.ingest.identifier_forms import Spotted, spotted
from medfedvqa.ingest.name_forms import RUN, folded
from medfedvqa.ingest.national_numbers import numbers_of_persons
from medfedvqa.ingest.word_lists import AFTER_NAMES, BEFORE_NAMES, ORDINARY, TITLES, is_ordinary
from medfedvqa.ingest.written_dates import dates_in

Place = tuple[int, int]
"""Start and end in a text."""
PLACEHOLDER = "[removed]"
PATTERNS = (
    # Numbers that a word declares to be somebody's.
    r"\b(?:mrn|pid|id|acc(?:ession)?|case|fall(?:nummer)?|pat(?:ient)?(?:en)?|ssn|nhs|bsn|ahv|pesel)[ .#:-]{0,3}"
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
    places = [match.span() for match in _PATTERN.finditer(text)] + [(start, end) for start, end, _ in dates_in(text)]
    places += numbers_of_persons(text)
    uncertain = list[Spotted]()
    for spot in spotted(text):
        known = {form for form in spot.forms if is_known(form)}
        if known and all(form.startswith("short:") for form in known):
            uncertain.append(spot)
        elif known:
            ordinary = folded(text[spot.start : spot.end]) in ORDINARY
            if ordinary and not doubtful:
                uncertain.append(spot)
            else:
                places.append((spot.start, spot.end))
        elif (doubtful or _looks_like_a_name(text, spot)) and any(is_known(form) for form in spot.near):
            places.append((spot.start, spot.end))
    named = [spot for spot in uncertain if _is_after_title(text, spot) or _is_beside(text, spot, places)]
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
    if is_ordinary(folded(word)):
        return False
    within = bool(before) and before[-1] not in ".?!:" and not text.isupper()
    return within and word[0].isupper() or not word[0].islower() and _is_after_title(text, spot)


def _is_after_title(text: str, spot: Spotted) -> bool:
    """Whether a title stands before a name or, in scripts without blanks, after it."""
    start, after = text[max(0, spot.start - 24) : spot.start], text[spot.end : spot.end + 8]
    if RUN.match(text[spot.start : spot.end]):
        ends = re.match(r"\W|$|[的是有之のにがはをへ]", after)
        return bool(re.match(AFTER_NAMES, after) or ends and re.search(BEFORE_NAMES, start))
    before = re.search(r"([^\W_]+(?:[-\"״][^\W_]+)?)\W{1,2}$", start)
    return before is not None and folded(before.group(1)) in TITLES


def _is_beside(text: str, spot: Spotted, places: Iterable[Place]) -> bool:
    """Whether a word stands beside another name."""
    between = (text[end : spot.start] or text[spot.end : start] for start, end in places)
    return any(re.fullmatch(r"[\s,^.-]{1,3}", gap) for gap in between)
