"""Closed lists of words that the comparison with identifiers needs. All are lower case, without accents."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


MONTHS = {
    "jan": 1, "feb": 2, "mar": 3, "mrz": 3, "apr": 4, "may": 5, "mai": 5, "jun": 6, "jul": 7, "aug": 8, "sep": 9,
    "oct": 10, "okt": 10, "nov": 11, "dec": 12, "dez": 12, "fev": 2, "avr": 4, "ene": 1, "abr": 4, "ago": 8, "dic": 12,
}  # fmt: skip
"""Months by the first three letters of their names, in English and German, and some in French and Spanish."""

_NTH = [
    "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh",
    "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth",
    "seventeenth", "eighteenth", "nineteenth", "twentieth",
]  # fmt: skip
ORDINALS = {
    **{word: place for place, word in enumerate(_NTH, start=1)},
    **{f"twenty-{word}": 20 + place for place, word in enumerate(_NTH[:9], start=1)},
    "thirtieth": 30,
    "thirty-first": 31,
}
"""Days of a month in words."""

ERAS = {
    "明治": 1868, "大正": 1912, "昭和": 1926, "平成": 1989, "令和": 2019,
    "M": 1868, "T": 1912, "S": 1926, "H": 1989, "R": 2019,
}  # fmt: skip
"""The first year of each Japanese era since 1868."""

GENERIC = _words(
    "hospital hospitals clinic clinics klinik klinikum krankenhaus uniklinik universitatsklinikum university "
    "universitat universite hopital ospedale institute institut institution center centre zentrum medical medicine "
    "medizin health healthcare radiology radiologie radiological diagnostic diagnostics imaging department dept "
    "abteilung ward station emergency general memorial regional national community county city state central north "
    "south east west northern southern eastern western street strasse road avenue lane drive square place platz weg "
    "allee main new saint sankt santa room unit service services group practice praxis and und the for von van der "
    "den del della medic mobile portable scanner outpatient inpatient intensive care surgery surgical cardiology "
    "neurology oncology orthopedics pediatrics trauma chest heart cancer children brain lung spine breast women eye"
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
    "cortex colon dorsal pedicle atlas axis sella bowels salt root mai mann frau rein roth lang kurz stark gut"
)
"""Words of medicine and of everyday language that are names, too. As a word they identify nobody."""

TITLES = _words(
    "mr mrs ms miss dr prof doctor professor sir madam herr frau herrn patient patients named name called physician "
    "daughter son mother father monsieur madame mme senor senora sr sra signor signora pan pani pana pacjent pacjentka "
    "г-н г-жа господин госпожа доктор др пациент пациента пациентка пациентки пациентку пациенту больной больная "
    "больного больнои κυριος κυρια κυριου κυριασ κ κα ασθενης ασθενησ γιατρος γιατροσ السيد السيده سيد المريض المريضه "
    "مريض الدكتور دكتور מר גברת גב הגברת המטופל המטופלת מטופל החולה דר דוקטור श्री श्रीमती सुश्री डॉ रोगी मरीज मरीज़ कुमारी"
)
"""Words after which a word of `MEDICAL`, or of two letters, is a name."""

HONORIFICS = (
    "先生", "女士", "小姐", "太太", "医生", "醫生", "大夫", "さん", "様", "さま", "氏", "君", "くん", "ちゃん",
    "殿", "씨", "님", "군", "양", "선생", "환자",
)  # fmt: skip
"""What follows a name in Chinese, Japanese and Korean."""

MARKERS = _words(
    "l r lt rt left right links rechts li re ap pa lat lateral erect supine prone upright semi portable sup inf ant "
    "post axial sagittal coronal cor sag ax stehend liegend hand foot cm mm hu kv ma mas kvp wl ww w c t sl st te tr "
    "fov zoom mag flair dwi adc cc mlo rcc lcc rmlo lmlo rl ll h f a p i s hr hl fr fl al ar pl pr im se ex mpr mip "
    "kev"
)
"""Words on pictures that identify nobody: sides, directions, views, units and settings of the device."""
