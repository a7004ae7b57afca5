"""Names in every script: the forms in which a header's name and a word of a text are the same.

A form is a class and letters, as in `name:muller`. `name:` is the name itself; `short:` two letters, or one of Chinese,
Japanese or Korean, which are a name only where they stand as one; `near:` lacks one letter (the symmetric deletion of
Garbe's SymSpell); `stem:` lacks an ending; `roman:` and `latin:` are sounds, of a header in Latin letters and of one in
Cyrillic or Greek.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator

from medfedvqa.ingest.word_lists import NOBODY

LEAST_NAME = 3
"""The fewest letters of a name. Of Chinese, Japanese and Korean characters two are a name."""
FUZZY = 5
"""The fewest letters of a name that is also recognised with one letter wrong."""
LONGEST = 8
"""The most characters of a name in a text without blanks."""
MARKS = (
    "\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed\u0900-\u0963"
    "\u0971-\u0dff\u0e31-\u0e4e\u0eb1-\u0ece\u0f71-\u0f84\u102b-\u103e\u17b4-\u17d3\u200c\u200d"
)
"""What Python counts as no letter although words of other scripts have it: vowel signs, accents, joiners."""
LETTERS = rf"(?:[^\W\d_]|[{MARKS}])"
EAST_ASIAN = (
    r"\u3005\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uff66-\uff9f\uf900-\ufaff"
)
RUN = re.compile(rf"[{EAST_ASIAN}](?:[ \u3000·・･]?[{EAST_ASIAN}])*")
"""Characters of scripts in which a sentence has no blanks, and a name may have one."""
_EAST_ASIAN = re.compile(f"[{EAST_ASIAN}]")
_UMLAUTS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss", "ø": "oe", "å": "aa", "æ": "ae", "œ": "oe"})
_PLAIN = str.maketrans(
    {"ß": "ss", "ø": "o", "æ": "ae", "œ": "oe", "ł": "l", "đ": "d", "ı": "i", "ـ": "", "ى": "ي", "ة": "ه", "ך": "כ",
     "ם": "מ", "ן": "נ", "ף": "פ", "ץ": "צ", "ς": "σ"}
)  # fmt: skip
_VOWEL_SIGNS = re.compile(
    "[\u0900-\u0dff\u0e31-\u0e4e\u0eb1-\u0ece\u0f71-\u0f84\u102b-\u103e\u17b4-\u17d3\u3099\u309a]"
)
"""Marks that are part of a name's spelling, where others are accents."""
_LOOKALIKES = dict(zip("aceopxyhkmtbi", "асеорхункмтві", strict=True))
_TO_CYRILLIC = str.maketrans(_LOOKALIKES)
_TO_LATIN = str.maketrans({other: letter for letter, other in _LOOKALIKES.items()})
_CYRILLIC, _GREEK, _LATIN = re.compile("[\u0400-\u04ff]"), re.compile("[\u0370-\u03ff]"), re.compile("[a-z]")
_SEMITIC = re.compile("[\u0590-\u06ff]")
_PREFIXES = re.compile("(?:[وفبلكס]?ال|لل|[وفبلك]|[הובלמשכ]{1,2})(?=.{3})")
"""Articles, prepositions and conjunctions that Arabic and Hebrew write as one word with a name."""


def folded(word: str) -> str:
    """A word in lower case, without accents, punctuation and white space; katakana as hiragana."""
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", word).casefold().translate(_PLAIN))
    kept = "".join(letter for letter in plain if letter.isalnum() or _VOWEL_SIGNS.match(letter))
    return "".join(chr(ord(c) - 96) if "ァ" <= c <= "ヶ" else c for c in unicodedata.normalize("NFC", kept))


_ENDINGS = {
    _CYRILLIC: "ого его ому ему ыми ими ами ями ой ою ей ею ый ий ая яя ые ым им ом ем ых их ах ях ам ям "
    "а я у ю ы и е о й ь",
    _GREEK: "ους εως ος ου ης ας ες ων ις ιο α η ο ε ι υ ς",
    _LATIN: "ova ove ovi ovou owi owa owej iego iemu ego emu ej em om ym im a e u y i",
}
ENDINGS = {script: tuple(map(folded, endings.split())) for script, endings in _ENDINGS.items()}
"""Endings of names by case, number and sex in Slavic languages and Greek."""
_SOUNDS = str.maketrans(
    dict(zip("абвгґдеєжзиіїйклмнопрстуфхцчшщыэюя", "abvggdeezziiiiklmnoprstufhccssieua", strict=True))
    | {"ъ": "", "ь": ""}
    | dict(zip("αβγδεζηθικλμνξοπρστυφχω", "avgdezitiklmnxoprstifho", strict=True))
    | {"ψ": "ps", "ξ": "ks"}
)
_GREEK_SPELLINGS = {"ου": "u", "ει": "i", "οι": "i", "αι": "e", "μπ": "b", "ντ": "d"}
_SPELLINGS = {
    "shch": "s", "sch": "s", "sh": "s", "zh": "z", "kh": "h", "tch": "c", "ch": "c", "ts": "c", "tz": "c", "ph": "f",
    "th": "t", "yu": "u", "iu": "u", "ju": "u", "ya": "a", "ia": "a", "ja": "a", "yo": "e", "jo": "e", "ye": "e",
    "ie": "e", "je": "e", "ou": "u", "w": "v", "y": "i", "j": "i", "ck": "k", "q": "k", "x": "ks",
}  # fmt: skip
"""Ways to write a sound of Russian or Greek in Latin letters, the longest first."""


def person_forms(text: str) -> set[str]:
    """The forms of a person's name in a header, whose groups stand between `=` and whose parts between `^`."""
    forms: set[str] = set()
    for group in unicodedata.normalize("NFKC", text).split("="):
        parts = [part for part in group.split("^") if part.strip()]
        forms |= _east_asian_forms(parts)
        for part in (*parts, group.replace("^", " ")):
            words = re.findall(rf"{LETTERS}+", _EAST_ASIAN.sub(" ", part.replace("'", "").replace("’", "")))
            for word in (*words, "".join(words)):
                forms |= all_forms(word)
    return forms


def all_forms(word: str, least: int = LEAST_NAME) -> set[str]:
    """The forms of a word of a header."""
    forms = exact_forms(word, least) - {f"name:{nobody}" for nobody in NOBODY}
    if len(folded(word)) == 2 and least <= LEAST_NAME:
        forms.add(f"short:{folded(word)}")
    names = [form.removeprefix("name:") for form in forms if form.startswith("name:")]
    sounds = {f"{'latin' if _CYRILLIC.search(name) or _GREEK.search(name) else 'roman'}:{sound}"
              for name in names for sound in _sounds(name)}  # fmt: skip
    stems = {f"stem:{stem}" for name in names for stem in _stems(name)}
    return forms | set(_near(names)) | stems | sounds


def exact_forms(word: str, least: int = LEAST_NAME) -> set[str]:
    """The word itself: with accents dropped, with umlauts in two letters, without letters of two scripts."""
    letters = word.casefold()
    spellings = {folded(letters), folded(letters.translate(_UMLAUTS))}
    if _CYRILLIC.search(letters) and _LATIN.search(letters):
        spellings |= {folded(letters.translate(_TO_CYRILLIC)), folded(letters.translate(_TO_LATIN))}
    return {f"name:{spelling}" for spelling in spellings if len(spelling) >= least and not spelling.isdigit()}


def likely_forms(word: str) -> set[str]:
    """The forms by which a word of a text is probably a name, if it is written like one."""
    letters = folded(word)
    names = [form.removeprefix("name:") for form in exact_forms(word)]
    forms = {*_near(names), *(f"stem:{stem}" for name in names for stem in _stems(name)), f"free:{letters}"}
    if _CYRILLIC.search(letters) or _GREEK.search(letters):
        return forms | {f"roman:{sound}" for stem in _stems(letters) for sound in _sounds(stem)}
    return forms | {f"latin:{sound}" for sound in _sounds(letters)}


def without_prefixes(word: str) -> tuple[str, ...]:
    """The word, and what is left of it without the words that Arabic and Hebrew write before it."""
    if not _SEMITIC.search(word):
        return (word,)
    found = _PREFIXES.match(word)
    return (word, *(word[cut:] for cut in range(1, found.end() + 1))) if found else (word,)


def east_asian_spots(text: str) -> Iterator[tuple[int, int, str]]:
    """Start, end and form of all that may be a name in runs without blanks; single characters before an honorific."""
    for run in RUN.finditer(text):
        places = [place for place in range(*run.span()) if _EAST_ASIAN.match(text[place])]
        for first in range(len(places)):
            for last in range(first, min(first + LONGEST, len(places))):
                letters = folded("".join(text[place] for place in places[first : last + 1]))
                yield places[first], places[last] + 1, f"{'name' if last > first else 'short'}:{letters}"


def _east_asian_forms(parts: list[str]) -> set[str]:
    """Family and given name, alone and in both orders. Without `^`, the family has one character, or two of four."""
    names = [folded("".join(_EAST_ASIAN.findall(part))) for part in parts[:3]]
    names = [name for name in names if name]
    if len(names) == 1 and len(names[0]) in (2, 3, 4) and not re.search("[ぁ-ヿ]", names[0]):
        cut = 2 if len(names[0]) == 4 else 1
        names = [names[0][:cut], names[0][cut:]]
    whole = {"".join(names), "".join(reversed(names))}
    return {f"{'name' if len(name) > 1 else 'short'}:{name}" for name in (*names, *whole) if name}


def _near(names: Iterable[str]) -> Iterator[str]:
    """What lacks at most one letter of a name in letters."""
    for name in names:
        if len(name) >= FUZZY and not _EAST_ASIAN.search(name):
            yield f"near:{name}"
            yield from (f"near:{name[:place]}{name[place + 1 :]}" for place in range(len(name)))


def _stems(name: str) -> Iterator[str]:
    """The name, and what is left without each ending that it may have."""
    for script, endings in ENDINGS.items():
        if script.search(name):
            least = 4 if script is _LATIN else 3
            yield name
            fitting = (len(ending) for ending in endings if name.endswith(ending))
            yield from {name[:-length] for length in fitting if len(name) - length >= least}


def _sounds(name: str) -> set[str]:
    """The name's sounds in Latin letters, of four letters at least, with and without vowels at its end."""
    sound = name
    for spelling, short in _GREEK_SPELLINGS.items():
        sound = sound.replace(spelling, short)
    sound = sound.translate(_SOUNDS)
    for spelling, short in _SPELLINGS.items():
        sound = sound.replace(spelling, short)
    sound = re.sub(r"(.)\1", r"\1", sound)
    found = {sound, sound.rstrip("aeiou")}
    return {form for form in found if len(form) >= 4 and form.isascii()}
