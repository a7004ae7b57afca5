"""Finds what identifies a patient in a text: by the forms of the patient's header, and by patterns."""

import re
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module

from medfedvqa.ingest.identifier_forms import Spotted, spotted
from medfedvqa.ingest.name_forms import AFTER_NAMES, BEFORE_NAMES, ORDINARY, RUN, TITLES, folded, is_ordinary
from medfedvqa.ingest.written_dates import dates_in

# Finds national numbers of persons and telephone numbers, by the libraries that know each country's rules.
#
# A number whose check digits are strong, such as Poland's eleven digits, is found wherever it stands. One that chance
# makes often, such as nine digits of the United States, must be written in its usual form or follow a word that says
# so.

CHECKED = {
    "it.codicefiscale": "", "de.idnr": "", "fr.nir": "", "be.nn": "", "ch.ssn": "", "no.fodselsnummer": "",
    "pl.pesel": "", "cn.ric": "", "kr.rrn": "", "br.cpf": "", "tr.tckimlik": "", "fi.hetu": "", "es.dni": "",
    "es.nie": "", "ro.cnp": "", "mx.curp": "", "in_.aadhaar": "", "jp.in_": "", "za.idnr": "", "th.pin": "",
    "us.ssn": r"\d{3}-\d\d-\d{4}", "gb.nhs": r"\d{3}[ -]\d{3}[ -]\d{4}",
    "nl.bsn": r"\d{4}\.\d\d\.\d{3}|\d{3} \d{3} \d{3}",
    "at.vnr": r"\d{4}[ -]\d{6}", "se.personnummer": r"\d{6}(?:\d\d)?[-+]\d{4}", "dk.cpr": r"\d{6}-\d{4}",
    "cz.rc": r"\d{6}/\d{3,4}", "ca.sin": r"\d{3}[ -]\d{3}[ -]\d{3}", "ie.pps": r"\d{7}[A-Z]{1,2}",
    "is_.kennitala": r"\d{6}-\d{4}",
}  # fmt: skip
"""Modules of python-stdnum, and the form without which a number with few check digits does not count."""
_NUMBER = re.compile(r"(?<![\w.])[A-Za-z]{0,6}-?\d(?:[ ./+-]?[0-9A-Za-z]){7,20}(?!\w)", re.ASCII)
_DECLARED = re.compile(
    r"(?:ssn|social security|nhs|bsn|sofi|sin|personnummer|cpr|pps|national|identity|insurance|versicherungs\w*|"
    r"rodn\w+|kennitala)[\w ]{0,12}[ .:#=-]{0,3}$",
    re.IGNORECASE,
)  # fmt: skip
_DIGITS = re.compile(r"[+(]?\d(?:[ ()./-]{0,2}\d){6,}")
_CALL = re.compile(
    r"(?:\b(?:call|tel|phone|fax|mobile?|cell|contact|t[eé]l|handy|anruf\w*|ring|telef\w+|tfno)|тел\w*|τηλ\w*|"
    r"电话|電話|手机|携帯|전화|هاتف|טלפון|फोन|โทร)[\w.]{0,8}[ .:(]{0,3}(?:at|on|no\.?|nr\.?|number|under)?[ .:]{0,2}$",
    re.IGNORECASE,
)
REGIONS = (
    "CH", "DE", "AT", "FR", "IT", "ES", "PT", "NL", "BE", "GB", "IE", "SE", "NO", "DK", "FI", "PL", "CZ", "GR", "TR",
    "RU", "IL", "US", "BR", "MX", "IN", "CN", "JP", "KR", "TH", "ZA", "AU",
)  # fmt: skip
"""Countries whose national ways to write a telephone number are known."""
LEAST_DIGITS = 9
"""The fewest digits of a national telephone number that no word announces."""


def numbers_of_persons(text: str) -> Iterator[tuple[int, int]]:
    """The places of national numbers and of telephone numbers in a text."""
    for match in _NUMBER.finditer(text):
        for part in re.finditer(r"(?<!\w)\w.*", match.group(), re.ASCII):
            start = match.start() + part.start()
            place = _national(text, start, match.end())
            if place:
                yield place
                break
    yield from _phones(text)


def _national(text: str, start: int, end: int) -> tuple[int, int] | None:
    """The longest number that starts here and that a country would give, in whole words."""
    is_declared = bool(_DECLARED.search(text[max(0, start - 40) : start]))
    while end - start >= 8:
        number = text[start:end]
        for name, form in CHECKED.items():
            usual = not form or is_declared or re.fullmatch(form, number)
            # Here, since only a text with a number needs one, and every process that trains loads this module.
            if usual and import_module(f"stdnum.{name}").is_valid(number):
                return start, end
        end = start + max(number.rfind(" "), 0)
    return None


def _phones(text: str) -> Iterator[tuple[int, int]]:
    for match in _DIGITS.finditer(text):
        number, start = match.group(), match.start()
        is_called = bool(_CALL.search(text[max(0, start - 30) : start]))
        if _is_phone(number, is_called):
            yield match.span()


def _is_phone(number: str, is_called: bool) -> bool:
    """Whether a country has such a number. After a word such as `call` its length alone counts: `079 555 01 23` is
    written for examples, and nobody has it. Else it starts with 0, with + or in brackets, and is one in use."""
    import phonenumbers  # here, for the same reason

    number = re.sub(r"^00(?=[1-9])", "+", number)
    regions = (None,) if number.startswith("+") else REGIONS if is_called or re.match(r"0[1-9]|\(", number) else ()
    if not is_called and not number.startswith("+") and not re.search(r"\d\D+\d", number):
        return False  # digits in one piece may count anything
    for region in regions:
        try:
            parsed = phonenumbers.parse(number, region)
        except phonenumbers.NumberParseException:
            continue
        if is_called or region is None:
            if phonenumbers.is_possible_number(parsed):
                return True
        elif len(re.sub(r"\D", "", number)) >= LEAST_DIGITS and phonenumbers.is_valid_number(parsed):
            return True
    return False


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
