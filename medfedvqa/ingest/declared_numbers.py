"""Numbers that a state or a telephone company gives to one person, by the libraries that know their digits."""

import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any

Place = tuple[int, int]

COUNTRIES = (
    "us.ssn", "gb.nhs", "de.idnr", "fr.nir", "it.codicefiscale", "es.dni", "es.nie", "nl.bsn", "be.nn",
    "ch.ssn", "at.vnr", "se.personnummer", "no.fodselsnummer", "dk.cpr", "fi.hetu", "pl.pesel", "cz.rc",
    "cn.ric", "kr.rrn", "in_.aadhaar", "br.cpf", "tr.tckimlik", "ro.cnp", "bg.egn", "hr.oib", "ie.pps",
    "ca.sin", "jp.in_", "lt.asmens", "ee.ik", "gr.amka", "za.idnr", "mx.curp", "si.emso", "il.idnr",
)  # fmt: skip
"""National numbers of people, by their modules in python-stdnum."""
REGIONS = (
    "US", "GB", "DE", "FR", "IT", "ES", "NL", "BE", "CH", "AT", "SE", "NO", "DK", "FI", "PL", "CZ", "CN", "KR", "IN",
    "BR", "TR", "JP",
)  # fmt: skip
"""The countries whose telephone numbers are known without the code of the country."""
SURE = 10
"""Digits and letters from which a number with the right check digit is no accident; a shorter one needs its own
separators, a letter, or a word before it."""
_RUN = re.compile(r"(?<![\w.])(?:[A-Z]{1,6}\d|\d)(?:[ ./+-]?[\dA-Z]){7,20}(?![\w])")
_OWN_FORM = re.compile(r"\d{3}-\d{2}-\d{4}|\d{6}[-+A]\d{3,4}[\dA-Z]?|\d{3} \d{3} \d{3}")
_NAMED = re.compile(
    r"(?:ssn|social security|nhs|ahv|avs|bsn|nir|cpf|cpr|pesel|hetu|aadhaar|dni|nie|sin|pps|egn|oib|insurance|"
    r"personnummer|fiscale|versicherung\w*|身份证\w*|주민\w*|マイナンバー)\W{0,3}(?:(?:no|nr|number|num)\W{0,3}|号码?\W{0,2})?$",
    re.IGNORECASE,
)
_CALL = re.compile(
    r"(?:call|tel|phone|fax|mobile|cell|handy|ruf\w*|appel\w*|telefon\w*|тел\w*|звон\w*|电话|電話|手机|携帯|전화|फोन|هاتف|טלפון)\W{0,3}"
    r"(?:(?:no|nr|number|at|unter|au)\W{0,3})?$",
    re.IGNORECASE,
)
_DIGITS = re.compile(r"\d(?:[ ()./-]{0,2}\d){6,}")


def national_numbers(text: str) -> Iterator[Place]:
    """The places of national numbers whose check digits, or whose dates, are right."""
    for match in _RUN.finditer(text):
        number = match.group()
        size = sum(map(str.isalnum, number))
        named = _NAMED.search(text[: match.start()])
        # A letter within, as in an Italian or Irish number: words of capitals have no digit between.
        lettered = bool(re.search(r"\d[A-Z]|[A-Z]\d", number)) and size >= 8
        if size < SURE and not (named or lettered or _OWN_FORM.fullmatch(number)):
            continue
        if any(module.is_valid(number) for module in _modules()):
            yield match.span()


def telephone_numbers(text: str) -> Iterator[Place]:
    """The places of telephone numbers: with the code of a country, after a word for calls, or valid in a country."""
    runs = list(_DIGITS.finditer(text))
    if not runs:
        return
    import phonenumbers

    yield from _matched(text, None, phonenumbers.Leniency.POSSIBLE)
    called = any(_CALL.search(text[: run.start()].rstrip("(+ ")) for run in runs)
    leniency = phonenumbers.Leniency.POSSIBLE if called else phonenumbers.Leniency.VALID
    for region in REGIONS:
        yield from _matched(text, region, leniency)


def _matched(text: str, region: str | None, leniency: Any) -> Iterator[Place]:
    import phonenumbers

    for match in phonenumbers.PhoneNumberMatcher(text, region, leniency=leniency):
        yield match.start, match.end


@cache
def _modules() -> tuple[Any, ...]:
    return tuple(import_module(f"stdnum.{name}") for name in COUNTRIES)
