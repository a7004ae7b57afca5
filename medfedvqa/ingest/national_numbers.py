"""Finds national numbers of persons and telephone numbers, by the libraries that know each country's rules.

A number whose check digits are strong, such as Poland's eleven digits, is found wherever it stands. One that chance
makes often, such as nine digits of the United States, must be written in its usual form or follow a word that says so.
"""

import re
from collections.abc import Iterator
from importlib import import_module

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
