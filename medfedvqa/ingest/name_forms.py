"""Normal forms of names in every script, by which a name in a header is recognised in a text, and closed lists of
words.

A name is a sequence of letters. In scripts with spaces it is a word, which may be inflected (`Иванову` for Иванов) or
spelled in another alphabet (`Ivanov`). In scripts without spaces (Han, Kana, Thai and their kin), and in Hangul, a text
is a sequence of signs, in which each run of one to eight is looked up.

Forms: `name:` the whole name, `near:` a name that lacks at most one letter, `short:` a name of one or two letters,
which counts only where it stands as a name, `sound:` its sound in a spelling that three alphabets share.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


MONTHS = {
    start: number
    for number, starts in enumerate(
        (
            "jan ene gen янв ιαν ينا جنو فرو محر มกร जनव sty", "feb fev фев φεβ فبر ارد صفر กุม फरव lut",
            "mar mrz maa мар μαρ مار خرد มีน मार", "apr avr abr апр απρ ابر افر تير เมษ अप् kwi",
            "may mai mag maj мая май маи μαι ماي مرد พฤษ मई", "jun giu июн ιουν يون شهر มิถ जून cze",
            "jul lug июл ιουλ يول مهر رجب กรก जुल lip", "aug ago aou авг αυγ اغس ابا شعب สิง अगस sie",
            "sep set сен σεπ سبت اذر رمض กัน सित wrz", "oct okt ott out окт οκτ اكت دي شوا ตุล अक् paz",
            "nov ноя νοε نوف بهم พฤศ नवं lis", "dec dez dic dek дек δεκ ديس اسف ธัน दिस gru",
        ),
        start=1,
    )
    for start in starts.split()
}  # fmt: skip
"""Months by the first three or four letters of their names, in 13 languages, and Iran's and Islamic ones."""

ORDINALS = {
    word: day
    for day, word in enumerate(
        (
            "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh",
            "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth", "eighteenth", "nineteenth",
        ),
        start=1,
    )
}  # fmt: skip
"""Days in words; days above 20 are composed of these."""

ERAS = {"明治": 1867, "大正": 1911, "昭和": 1925, "平成": 1988, "令和": 2018, "S": 1925, "H": 1988, "R": 2018}
"""Japan's reigns, and the year before each."""

GENERIC = _words(
    "hospital hospitals clinic clinics klinik klinikum krankenhaus uniklinik universitatsklinikum university "
    "universitat universite hopital ospedale institute institut institution center centre zentrum medical medicine "
    "medizin health healthcare radiology radiologie radiological diagnostic diagnostics imaging department dept "
    "abteilung ward station emergency general memorial regional national community county city state central north "
    "south east west northern southern eastern western street strasse road avenue lane drive square place platz weg "
    "allee main new saint sankt santa room unit service services group practice praxis and und the for von van der "
    "den del della medic mobile portable scanner outpatient inpatient intensive care surgery surgical cardiology "
    "neurology oncology orthopedics pediatrics trauma chest heart cancer children brain lung spineast women eye"
)
"""Words of names of places that identify no place."""

NOBODY = _words("anonymous anonym anonymized unknown patient test none name mister miss professor")
"""Words that stand where a name is missing."""

MEDICAL = _words(
    "apex arch back ball band barium bell berg black bland blood bone bones bow bowel bowman bright brown bush cannon "
    "cave cavity child chin clear close cold cord core cross crown cyst day dense dark deep disc drain duct early "
    "edge end faint fair far field flat fluid foot forest free french frame front gas gland glass good graft gray "
    "grey green ground hand hard head hill hip hook house jung joint kidney klein knee lake large late left light "
    "line little liver lobe long low lower major marrow mark mass may mild moon neck noble nose page pane park part "
    "pearl pen pike pin plain plate point pole pool price prior read rib rice ring rise rose rot round sand scar "
    "shadow shaft sharp short side silver small soft solid spot stem stent stern still stone storm strong sweet swan "
    "tall temple thick thin tip tube upper valve vein wall warm water wedge weak weiss white wide wing wood young yes "
    "weber grave graves hodgkin crohn parkinson alzheimer down marfan cushing paget wilson hunter baker burns rich "
    "savage coffin gross strange will miller pancoast kerley schwarz rock seal self ray thorax heart lungs brain "
    "cortex colon dorsal pedicle atlas axis sella bowels salt root mai mann frau rein roth lang kurz stark gut "
    "tumor tumour kopf herz hirn lunge leber niere magen hals fuss bein arm rippe mund auge ohr zahn haut corazon "
    "cuore coeur tete testa cabeza bras jambe foie 健康 正常 安康 平安 光明 文明 高明 清明 明白 白血 心安 大明 左右 "
    "前后 上下 大小 中心 중심 정상 하나 지수 가슴 머리 수술"
)
"""Words of medicine and of everyday language that are names, too. As a word they identify nobody."""

TITLES = _words(
    "mr mrs ms miss dr prof doctor professor sir madam herr frau patient patients named name called physician "
    "daughter son mother father wife husband sister brother nurse m mme mlle monsieur madame docteur sr sra senor "
    "senora senorita don dona senhor senhora sig signor signora signorina dott dottor dottoressa pan pani hr fru "
    "dhr mevr mevrouw meneer bay bayan sayın patientin paciente paziente pacjent pacjenta docteure doctora "
    "г н г-н г-жа господин господина госпожа госпожи доктор доктора др пациент пациента пациентка пациентки "
    "пациентке пациенту больной больного κ κος κυριος κυριου κυρια κυριας ασθενης ασθενους ασθενη "
    "السيد السيده سيد سيده الدكتور دكتور المريض المريضه مريض آقاي اقاي خانم بيمار מר גב גברת דר ד״ר פרופ המטופל "
    "श्री श्रीमती डॉ डाक्टर मरीज़ मरीज रोगी"
)
"""Titles. A word after one of them counts as a name if it may be one."""

BEFORE_NAMES = r"(?:患者さん|患者|病人|病患|氏名|姓名|환자|นาย|นาง|นางสาว|คุณ|[MD]r\.?)[はのは：:]?\s?$"
AFTER_NAMES = (
    r"\s?(?:さん|様|さま|氏|君|先生|殿|ちゃん|医師|醫師|女士|小姐|医生|醫生|大夫|教授|主任|同志|太太|"
    "씨|님|선생|환자|교수|양의|군의)"
)
"""Titles of scripts that put no blank between words."""

MARKERS = _words(
    "l r lt rt left right links rechts li re ap pa lat lateral erect supine prone upright semi portable sup inf ant "
    "post axial sagittal coronal cor sag ax stehend liegend hand foot cm mm hu kv ma mas kvp wl ww w c t sl st te tr "
    "fov zoom mag flair dwi adc cc mlo rcc lcc rmlo lmlo rl ll h f a p i s hr hl fr fl al ar pl pr im se ex mpr mip "
    "kev"
)
"""Words on pictures that identify nobody: sides, directions, views, units and settings of the device."""

IMAGING = _words(
    "mri ct cta mra pet scan scans ultrasound xray rays image images series study view views phase contrast nativ "
    "with without weighted sequence slice slices thorax thorakal schadel schaedel abdomen abdominal pelvis becken "
    "pelvic cervical lumbar thoracic skull shoulder elbow wrist ankle femur tibia femoral rectus port wilms tumor "
    "tumour hounsfield fistula effusion fracture pneumonia edema oedema embolism artery arterial venous aortic "
    "aorta control kontrolle follow follow-up routine screening biopsy postop preop protocol native nach vor mit "
    "ohne bei zum zur oder nicht verdacht ausschluss please call anrufen urgent pain schmerz schmerzen fever since "
    "year years weeks days tochter sohn mutter vater daughter mother father wife husband is are was has there this "
    "that what where which who how does did can from not saggital axial sagittal coronal obl oblique thick thin "
    "bilateral kidneys pancreas spleen bladder stomach uterus prostate breasts hilum trachea esophagus mediastinum "
    "diaphragm ribs spinal vertebra 患者 病人 头部 胸部 腹部 图像 平扫 增强 頭部 造影 検査 単純 骨盤 머리 흉부 복부 "
    "검사 ct检查 ct平扫"
)
"""Words of the texts of headers that name no person."""
ORDINARY = MEDICAL | GENERIC
_DISEASE = re.compile(
    "(?:itis|.{4}oma|.{4}omas|osis|emia|pathy|graphy|graphie|scopy|skopie|ectomy|ektomie|ogram|ography|logy|logie|ical|ular|tion)$"
)


def is_ordinary(word: str) -> bool:
    """Whether a word is one of medicine or of every text of a header, by the lists or by its end. `word`: folded."""
    return word in ORDINARY or word in IMAGING or word in MARKERS or word in NOBODY or bool(_DISEASE.search(word))


LEAST_NAME = 3
"""The fewest letters of a name that counts wherever it stands; two suffice in Han and Hangul, not in Kana."""
FUZZY = 5
"""The fewest letters of a name that is also recognised with one letter wrong."""
MOST_SIGNS = 8
"""The most signs of a run that is looked up; a longer name has the forms of all its runs of this length."""
MARKS = "".join(chr(code) for code in range(0x300, 0x3100) if unicodedata.category(chr(code))[0] == "M")
"""Combining marks, such as accents, vowel points, and vowel signs of Indian scripts."""
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3041-\u30fa\u30fc-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
"""Letters of scripts without spaces between words, and of Hangul, whose words end in particles."""
WORD = re.compile(rf"(?:[^\W\d_{UNSPACED}][{MARKS}\u200c\u200d]*)+(?:['’´`ʼ׳״](?:[^\W\d_{UNSPACED}][{MARKS}]*)+)?")
_SIGN = rf"[{UNSPACED}][{MARKS}ﾞﾟ\u1160-\u11ff]*"
RUN = re.compile(rf"{_SIGN}(?:[ \u3000・･·]?{_SIGN})*")
_KANA, _HANGUL = re.compile("[\u3041-\u30ff]"), re.compile("[\uac00-\ud7af]")
_UMLAUTS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss", "ø": "oe", "å": "aa", "æ": "ae", "œ": "oe"})
_PLAIN = str.maketrans(
    {"ß": "ss", "ø": "o", "æ": "ae", "œ": "oe", "ł": "l", "đ": "d", "ı": "i", "ى": "ي", "ی": "ي", "ک": "ك", "ة": "ه"}
    | {chr(katakana): chr(katakana - 0x60) for katakana in range(0x30A1, 0x30F7)}
)
_DROPPED = re.compile("[\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670\u06d6-\u06ed\u093c\u09bc]")
"""Marks that people leave out. Vowel signs of Indian and Thai scripts are marks, too, and stay."""
_LOOKALIKES = (
    (re.compile("[\u0400-\u04ff]"), str.maketrans("abcehikmoptxy", "авсенікмортху")),
    (re.compile("[\u0370-\u03ff]"), str.maketrans("aeikoptuxyvn", "αεικορτυχγνη")),
)
"""For a word that mixes alphabets: Latin letters, and the Cyrillic or Greek ones that look the same."""
_LATIN = str.maketrans(
    dict(zip("абвгдезиіїйклмнопрстуфыэґєў", "abvgdeziiijklmnoprstufiegeu", strict=True))
    | {"ж": "zh", "х": "kh", "ц": "ts", "ч": "ch", "ш": "sh", "щ": "sh", "ю": "yu", "я": "ya", "ь": "", "ъ": ""}
    | dict(zip("αβγδεζηικλμνοπρστυφωξ", "avgdeziiklmnoprstyfox", strict=True))
    | {"θ": "th", "χ": "ch", "ψ": "ps", "ς": "s"}
)
_SPELLINGS = tuple(
    (re.compile(before), after)
    for before, after in (
        ("shch|sch|sh", "s"), ("kh|ch|tch|h", "h"), ("ts|tz|cz", "c"), ("zh", "z"), ("ph", "f"), ("th", "t"),
        ("x|ks", "s"), ("mp(?=[aeiou])|mb", "b"), ("nt(?=[aeiou])|nd", "d"), ("gg|gk|gh", "g"),
        ("ay(?=[vfkpt])|af|au|av", "av"), ("ey(?=[vfkpt])|ef|eu|ev", "ev"), ("ou|oy|w(?=[^aeiou])", "u"),
        ("ai(?!a)|ae", "e"), ("iya|ija|iia|ia|ya|ja", "a"), ("iyu|yu|iu|ju", "u"), ("yo|io|jo|ye|ie|je", "e"),
        ("oi|ei", "i"), ("[yj]", "i"), ("i{2,}", "i"), ("w", "v"),
    )
)  # fmt: skip
"""Spellings of a sound and the one that replaces them, in this order."""
_ENDINGS = (
    "a", "u", "i", "e", "o", "s", "ai", "ei", "oi", "om", "em", "am", "im", "ah", "ih", "oe", "aa", "uu", "ii", "os",
    "is", "as", "es", "on", "us", "ogo", "ego", "omu", "emu", "imi", "ami", "eos",
)  # fmt: skip
"""Case endings, in the spelling of `_SPELLINGS`."""
_PREFIXES = (re.compile("^[ושהבלכמ](?=[\u05d0-\u05ea]{2})"), re.compile("^[وفبلك](?=[\u0621-\u064a]{2})"))
"""Prefixes that Hebrew and Arabic write without a space before a word: `and`, `to`, `in`."""
_ARTICLE = re.compile("^ال(?=[\u0621-\u064a]{3})")


@lru_cache(maxsize=2**14)
def folded(word: str) -> str:
    """A word in lower case, without accents, punctuation and white space."""
    if word.isascii():
        return "".join(filter(str.isalnum, word.lower()))
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", word).casefold().translate(_PLAIN))
    kept = "".join(letter for letter in plain if (letter.isalnum() or letter in MARKS) and not _DROPPED.match(letter))
    if not kept.isascii() and re.search("[a-z]", kept):
        for alphabet, letters in _LOOKALIKES:
            kept = kept.translate(letters) if alphabet.search(kept) else kept
    return unicodedata.normalize("NFKC", kept)


def person_forms(text: str, fuzzy: bool = True) -> set[str]:
    """The forms of a person's name in a header: `Wang^XiaoDong=王^小东`. `fuzzy`: those with a wrong letter, too."""
    forms = set[str]()
    for group in re.split(r"[=\\]", text):
        components = [part for part in group.split("^") if part.strip()]
        for number, component in enumerate(components):
            words = WORD.findall(component)
            forms |= {form for word in (*words, "".join(words)) for form in word_forms(word, LEAST_NAME, fuzzy)}
            if number < 3:
                forms |= {f"short:{folded(word)}" for word in words if len(folded(word)) == 2}
        names = ["".join(WORD.findall(part)) for part in components[:2]]
        if len(components) == 1:
            names = WORD.findall(group)
        if len(names) == 2:
            joined = (f"{names[0]}{names[1]}", f"{names[1]}{names[0]}")
            forms |= {form for name in joined for form in word_forms(name, LEAST_NAME, fuzzy)}
        forms |= _sequence_forms([run for part in components[:3] for run in RUN.findall(part)])
    return forms


def word_forms(word: str, least: int, fuzzy: bool = True) -> set[str]:
    """The forms of a header's word that names somebody."""
    forms = spelled(word, least) - {f"name:{nobody}" for nobody in NOBODY}
    near = set(near_forms(forms)) if fuzzy else set()
    return forms | near | (sounds(word) if forms else set())


def spelled(word: str, least: int) -> set[str]:
    """A word's spellings: without accents, with umlauts as two letters, and without an Arabic article."""
    letters = word.casefold()
    spellings = {folded(spelling) for spelling in {letters, letters.translate(_UMLAUTS)}}
    if not word.isascii():
        spellings |= {_ARTICLE.sub("", spelling) for spelling in spellings}
    return {f"name:{spelling}" for spelling in spellings if len(spelling) >= least and not spelling.isdigit()}


def without_prefixes(word: str) -> list[str]:
    """A Hebrew or Arabic word with fewer and fewer prefixes: `לשרון` is `to Sharon`. Other words stay as they are."""
    words = [word]
    for prefix in (*_PREFIXES, *_PREFIXES):
        words.append(prefix.sub("", words[-1]))
    return words


def near_forms(forms: Iterable[str]) -> Iterator[str]:
    """The forms that lack at most one letter of a name."""
    for form in forms:
        name = form.removeprefix("name:")
        if len(name) >= FUZZY:
            yield f"near:{name}"
            yield from (f"near:{name[:place]}{name[place + 1 :]}" for place in range(len(name)))


def sounds(word: str) -> set[str]:
    """The sound of a Latin, Cyrillic or Greek word, with and without a case ending."""
    sound = folded(word).translate(_LATIN)
    if not sound.isascii():
        return set()
    for spelling, letters in _SPELLINGS:
        sound = spelling.sub(letters, sound)
    stems = {sound.removesuffix(ending) for ending in _ENDINGS}
    return {f"sound:{stem}" for stem in (sound, *stems) if len(stem) >= LEAST_NAME}


def is_in_cases(word: str) -> bool:
    """Whether a word is Cyrillic or Greek, whose names change their endings; headers spell them in Latin letters."""
    return bool(re.search("[\u0370-\u03ff\u0400-\u04ff]", word))


def words_joined(text: str) -> Iterator[tuple[int, int, set[str]]]:
    """Two or three words, with capitals if their script has any, as one name: `Xiao Dong` for XiaoDong."""
    words = [match for match in WORD.finditer(text) if not match.group()[0].islower() and len(match.group()) > 1]
    for first in range(len(words)):
        for last in range(first + 1, min(first + 3, len(words))):
            if not re.fullmatch(r"[ -]|, ", text[words[last - 1].end() : words[last].start()]):
                break
            joined = re.sub("['’]s?$", "", "".join(word.group() for word in words[first : last + 1]))
            yield words[first].start(), words[last].end(), spelled(joined, LEAST_NAME)


def runs_of_signs(text: str) -> Iterator[tuple[int, int, str, set[str]]]:
    """All runs of one to eight signs in scripts without blanks: start, end, the signs, their forms."""
    for run in RUN.finditer(text):
        signs = [(run.start() + sign.start(), run.start() + sign.end(), folded(sign.group())) for sign in _signs(run)]
        for first, (start, _, _) in enumerate(signs):
            for last in range(first, min(first + MOST_SIGNS, len(signs))):
                name = "".join(sign for _, _, sign in signs[first : last + 1])
                forms = _forms_of_signs(name, last - first + 1)
                within = start > 0 and _HANGUL.match(text[start - 1])
                if not (within and _HANGUL.match(name) and last - first < 2):  # a Korean word starts with the name
                    yield start, signs[last][1], name, forms


def _signs(run: re.Match[str]) -> Iterator[re.Match[str]]:
    return re.finditer(_SIGN, run.group())


def _forms_of_signs(name: str, length: int) -> set[str]:
    least = LEAST_NAME if _KANA.search(name) or not _is_east_asian(name) else 2
    return {f"name:{name}" if length >= least else f"short:{name}"}


def _is_east_asian(name: str) -> bool:
    return name >= "\u3000"


def _sequence_forms(runs: Sequence[str]) -> set[str]:
    """The forms of a name in a script without spaces: its parts and the whole, the family name first or last."""
    names = [name for run in runs for name in re.split("[ \u3000・･·]", run) if name]
    parts = [[folded(sign) for sign in re.findall(_SIGN, name)] for name in names]
    if len(parts) == 1 and 2 <= len(parts[0]) <= 5 and _is_east_asian(parts[0][0]):
        whole = parts[0]
        at = range(1, 3) if len(whole) > 3 else range(1, 2)  # the family's name has one sign or two
        pieces = [piece for place in at for piece in (whole[:place], whole[place:])]
        parts = [whole, *pieces, *(whole[place:] + whole[:place] for place in at)]
    elif len(parts) > 1:
        parts += [[sign for part in parts for sign in part], [sign for part in reversed(parts) for sign in part]]
    return {form for part in parts if part for form in _whole_forms(part)}


def run_forms(run: str) -> set[str]:
    """The forms of a run of signs as a whole, for the name of a place: its parts are ordinary words."""
    return _whole_forms([folded(sign) for sign in re.findall(_SIGN, run)])


def _whole_forms(signs: Sequence[str]) -> set[str]:
    """The whole of at most `MOST_SIGNS` signs; of more signs, each run of that length."""
    starts = range(max(1, len(signs) - MOST_SIGNS + 1))
    parts = (signs[start : start + MOST_SIGNS] for start in starts)
    return {form for part in parts for form in _forms_of_signs("".join(part), len(part))}
