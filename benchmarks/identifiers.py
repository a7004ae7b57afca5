"""Counts the names that are found in questions, by script, and the ordinary questions that are refused.

*Found*: names of invented patients stand in sentences of their language, in the ways people write them: family's name
first or last, with a title, in a case, without accents, in another alphabet than the header's. *Refused*: the questions
of VQA-RAD and SLAKE, English and Chinese, beside headers of the same invented patients, and without any header. None of
them names a patient.

`python benchmarks/identifiers.py $MEDFEDVQA_DATA`. Everything follows from the seed.
"""

import argparse
import json
import random
import time
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

from pydicom.dataset import Dataset

from medfedvqa.data import read
from medfedvqa.ingest.identifier_forms import header_forms, spotted
from medfedvqa.ingest.identifier_search import identifiers_in

Written = tuple[str, str]
"""A header's PatientName, and a text that names the patient."""
STUDIES = (
    "CT Abdomen and Pelvis with contrast", "MRI BRAIN W/O CONTRAST", "XR CHEST 2 VIEWS", "Thorax pa und lateral",
    "头部CT平扫", "胸部正位片", "IRM cérébrale", "CT Schädel nativ", "Chest PA", "MR LIVER", "腹部增强扫描",
    "Abdomen^Routine", "Head^HeadSeq (Adult)",
)  # fmt: skip
SERIES = ("Ax T2 FLAIR", "Sagittal T1", "Coronal MPR 3 mm", "AP erect", "Lateral", "T2 加权", "Lung window", "Scout")
LATIN_STARTS = (
    "Brú Črn Dvoř Fjör Gäns Håk Jør Kłos Łuk Mül Nuñ Öst Përr Řeh Søl Šim Tür Übe Vác Wójc Yıl Žiž Åker Đor Sée"
)
LATIN_ENDS = "mann ová sen ski oğlu ez ić escu berg gård aitis enský eira ström kötter hánsson"
LATIN_GIVEN = "Jürgen Zoë Søren María Łukasz Çağla Amélie Jörg Ágnes Řehoř Anna Ida Tomáš Ülle Þóra Bo Li"
LATIN_SHORT = "Ng Li Wu Bo Ek Öz Ås Ho Xu Yi"
LATIN = (
    "Does Mr. {family} have a bleed?", "Is {given} {family}'s heart large?", "Is this {upper}, {given}?",
    "Hat Frau {family} eine Fraktur?", "Did Dr. {family} see it?", "Is there fluid in {given} {plain}?",
    "M. {family} a-t-il une fracture ?", "¿Tiene la Sra. {family} una fractura?",
)  # fmt: skip
CYRILLIC_STEMS = "Иван Петр Соколь Кузнец Морозк Лебедь Белозер Гриш Тимош Щерб Журавл Чайк Фёдор Юрьк Яблон Зимор"
CYRILLIC_GIVEN = "Пётр Анна Сергей Мария Юлия Николай Ольга Михаил Елена Андрей"
CYRILLIC = (
    "Есть ли опухоль у {genitive}?", "Есть ли у пациента {genitive} перелом?", "Назначить {dative} снимок?",
    "{given} {family} жалуется на боль?", "Что видно на снимке {genitive}?", "Доволен ли врач {instrumental}?",
    "{family} {given}: есть ли кровоизлияние?", "Виден ли перелом на снимке пациентки {woman}?",
)  # fmt: skip
GREEK_STEMS = "Παπαδόπουλ Γεωργιάδ Νικολαΐδ Διονυσί Κωνσταντίν Βλάχ Μαυρίδ Ζαχαριάδ Θεοδώρ Χατζόπουλ Ψαρόπουλ Ξενάκ"
GREEK_GIVEN = "Νίκος Ελένη Μαρία Γιώργος Δημήτρης Κατερίνα Σοφία"
GREEK = (
    "Έχει ο {family} όγκο;", "Έχει ο κ. {family} κάταγμα;", "Υπάρχει όγκος στον εγκέφαλο του {genitive};",
    "{given} {family}: υπάρχει αιμορραγία;", "Η ακτινογραφία του ασθενούς {genitive} δείχνει κάταγμα;",
    "Ο {upper} έχει πνευμονία;",
)  # fmt: skip
ARABIC_FAMILY = "قباني الشمري حداد العتيبي خليفة المصري أبوزيد منصور الحسيني درويش الخطيب سليماني نجار بركات"
ARABIC_GIVEN = "نزار محمد فاطمة خالد يوسف مريم إبراهيم ليلى أحمد سعاد"
ARABIC = (
    "هل يعاني {family} من ورم؟", "هل لدى السيد {family} كسر؟", "هل توجد كتلة ل{family}؟",
    "{given} {family} هل لديه نزيف؟",
    "ما نتيجة صورة المريض {given} {family}؟", "هل يعاني {pointed} من ورم؟", "الصورة ل{given} و{family}؟",
)  # fmt: skip
HEBREW_FAMILY = "שרון לוינסון מזרחי פרידמן אברהמי רוזנברג ביטון גולדברג אוחיון שפירא כרמלי דיין צור כץ"
HEBREW_GIVEN = "דבורה משה רחל יוסף אסתר דניאל מיכל נועם"
HEBREW = (
    "האם ל{given} {family} יש גידול?", "האם מר {family} סובל מדימום?", "מה רואים בצילום של {given} {family}?",
    "האם גב' {family} נפלה?", "האם יש שבר אצל ד\"ר {family}?", "{given} {pointed} עם דימום?",
)  # fmt: skip
HAN_FAMILY = (
    "王 李 张 刘 陈 杨 赵 黄 周 吴 徐 孙 胡 朱 高 林 何 郭 马 罗 梁 宋 郑 谢 韩 唐 冯 于 董 萧 程 曹 袁 邓 许 "
    "欧阳 司马 上官 诸葛"
)
HAN_GIVEN = "明华东伟芳娜敏静丽强磊军洋勇艳杰娟涛超秀霞平刚桂英文辉玲建国志海燕波宁浩宇轩梓涵怡晨曦嘉琪瑞博凯峰"
HAN = (
    "{family}{given}的脑部是否有肿瘤？", "患者{family}{given}有骨折吗？", "{family}先生的肺正常吗？",
    "这是{family} {given}的图像吗？", "{family}女士的心脏是否增大？", "请问{family}{given}肝脏里有什么？",
    "图中{given}・{family}的肾脏在哪里？",
)  # fmt: skip
KANA_FAMILY = "やまだ すずき たかはし わたなべ いとう なかむら こばやし かとう よしだ ささき まつもと いのうえ きむら"
KANA_GIVEN = "たろう はなこ ゆうき さくら けんじ みさき だいすけ ともこ あやか ひろし"
KANA = (
    "{family}{given}さんの頭部に出血はありますか", "{family}さんに骨折はありますか", "{family} {given}の肺は正常ですか",
    "{katakana}の心臓は大きいですか", "{half}の肝臓に腫瘍はありますか", "{given}・{family}の検査結果は？",
    "患者は{family}ですか",
)  # fmt: skip
HANGUL_FAMILY = "김 이 박 최 정 강 조 윤 장 임 한 오 서 신 권 황 안 송 류 홍 남궁 선우"
HANGUL_GIVEN = "민서준윤지우하은도현예진수영호철희경미정훈성재"
HANGUL = (
    "{family}{given} 환자의 머리에 출혈이 있습니까?", "{family} {given}의 폐는 정상입니까?",
    "{family}{given}은 골절이 있습니까?", "{family}{given} 님의 심장이 큽니까?",
    "환자 {family}{given}에게 종양이 있습니까?", "이 사진은 {family}{given}의 것입니까?",
)  # fmt: skip
DEVANAGARI_FAMILY = "शर्मा वर्मा गुप्ता सिंह यादव मिश्रा कुलकर्णी देशपांडे चौधरी अग्रवाल पाटिल जोशी त्रिपाठी भट्टाचार्य"
DEVANAGARI_GIVEN = "राम सीता अमित प्रिया सुनीता विजय लक्ष्मी कृष्ण गौरी मनोज दीपिका"
DEVANAGARI = (
    "क्या {given} {family} को ट्यूमर है?", "क्या श्री {family} को रक्तस्राव है?", "{family} के सिर में क्या दिखता है?",
    "मरीज {given} की हड्डी टूटी है?", "क्या यह {family} {given} का चित्र है?",
)  # fmt: skip
SPELLED = (
    "а:a б:b в:v г:g д:d е:e з:z и:i й:y к:k л:l м:m н:n о:o п:p р:r с:s т:t у:u ф:f х:kh ц:ts ч:ch ш:sh щ:shch ы:y "
    "э:e ю:yu я:ya ж:zh ь: ъ: α:a β:v γ:g δ:d ε:e ζ:z η:i θ:th ι:i κ:k λ:l μ:m ν:n ξ:x ο:o π:p ρ:r σ:s ς:s τ:t υ:y φ:f "
    "χ:ch ψ:ps ω:o"
)
ROMAN = {letter: latin for letter, _, latin in (pair.partition(":") for pair in SPELLED.split())}
"""Cyrillic and Greek letters as passports spell them."""
HALF_WIDTH = "ｱｲｳｴｵｶｷｸｹｺｻｼｽｾｿﾀﾁﾂﾃﾄﾅﾆﾇﾈﾉﾊﾋﾌﾍﾎﾏﾐﾑﾒﾓﾔﾕﾖﾗﾘﾙﾚﾛﾜﾝ"
HALF = {unicodedata.normalize("NFKC", letter): letter for letter in HALF_WIDTH}
"""Katakana of half width by those of full width."""


def latin(draw: random.Random) -> Written:
    """With accents; the text has them as the header has, in capitals, or without. One in ten has two letters."""
    is_short = draw.random() < 0.1
    family = _one(draw, LATIN_SHORT) if is_short else _one(draw, LATIN_STARTS) + _one(draw, LATIN_ENDS)
    given, text = _one(draw, LATIN_GIVEN), draw.choice(LATIN)
    return f"{family}^{given}", text.format(family=family, given=given, upper=family.upper(), plain=_plain(family))


def cyrillic(draw: random.Random) -> Written:
    """Every second header is in Latin letters; the text has the name in a case."""
    stem, given = _one(draw, CYRILLIC_STEMS), _one(draw, CYRILLIC_GIVEN)
    family, endings = draw.choice(
        (
            (f"{stem}ов", ("а", "у", "ым", "ой")),
            (f"{stem}ин", ("а", "у", "ым", "ой")),
            (f"{stem}ский", ("ого", "ому", "им", "ой")),
        )
    )
    base = family.removesuffix("ий")
    cases = dict(
        zip(("genitive", "dative", "instrumental", "woman"), (base + ending for ending in endings), strict=True)
    )
    header = f"{family}^{given}"
    return _roman(header) if draw.random() < 0.5 else header, draw.choice(CYRILLIC).format(
        family=family, given=given, **cases
    )


def greek(draw: random.Random) -> Written:
    """Every third header is in Latin letters; the text has the nominative or the genitive."""
    stem, given = _one(draw, GREEK_STEMS), _one(draw, GREEK_GIVEN)
    first, second = ("ης", "η") if stem.endswith(("δ", "κ")) else ("ος", "ου")
    family, header = stem + first, f"{stem}{first}^{given}"
    text = draw.choice(GREEK).format(
        family=family, given=given, genitive=stem + second, upper=_plain(family).upper()
    )  # fmt: skip
    return _roman(header) if draw.random() < 0.3 else header, text


def arabic(draw: random.Random) -> Written:
    """With and without vowel points, after prepositions that are written with the name."""
    family, given = _one(draw, ARABIC_FAMILY), _one(draw, ARABIC_GIVEN)
    pointed = "".join(letter + draw.choice(("\u064e", "\u064f", "")) for letter in family)
    return f"{family}^{given}", draw.choice(ARABIC).format(family=family, given=given, pointed=pointed)


def hebrew(draw: random.Random) -> Written:
    """With and without points, after prepositions that are written with the name."""
    family, given = _one(draw, HEBREW_FAMILY), _one(draw, HEBREW_GIVEN)
    pointed = "".join(letter + draw.choice(("\u05b7", "\u05b4", "")) for letter in family)
    return f"{family}^{given}", draw.choice(HEBREW).format(family=family, given=given, pointed=pointed)


def han(draw: random.Random) -> Written:
    """Headers as China's devices write them: beside a Latin spelling, in one piece, or in two."""
    family, given = _one(draw, HAN_FAMILY), "".join(draw.choices(HAN_GIVEN, k=draw.choice((1, 2, 2))))
    header = draw.choice((f"Bai^XiaoDong={family}^{given}", f"{family}{given}", f"{family}^{given}"))
    text = draw.choice(HAN)
    if len(family) > 1 and len(given) == 1 and header == f"{family}{given}":
        text = HAN[0]  # nothing tells where a name in one piece is divided
    return header, text.format(family=family, given=given)


def kana(draw: random.Random) -> Written:
    """Hiragana, Katakana, and Katakana of half width."""
    family, given = _one(draw, KANA_FAMILY), _one(draw, KANA_GIVEN)
    header = draw.choice((f"Yamada^Tarou=山田^太郎={family}^{given}", f"{family}^{given}", f"{family} {given}"))
    katakana = "".join(chr(ord(letter) + 0x60) for letter in family + given)
    parts = unicodedata.normalize("NFD", katakana[: len(family)]).replace("\u3099", "ﾞ")
    half = "".join(HALF.get(letter, letter) for letter in parts)
    return header, draw.choice(KANA).format(family=family, given=given, katakana=katakana, half=half)


def hangul(draw: random.Random) -> Written:
    """Particles follow the name without a blank."""
    family, given = _one(draw, HANGUL_FAMILY), "".join(draw.choices(HANGUL_GIVEN, k=2))
    header = draw.choice((f"Kim^Minsu={family}^{given}", f"{family}^{given}", f"{family}{given}"))
    text = draw.choice(HANGUL).format(family=family, given=given)
    return header, unicodedata.normalize("NFD", text) if draw.random() < 0.1 else text


def devanagari(draw: random.Random) -> Written:
    """Vowels are marks, which tell names apart."""
    family, given = _one(draw, DEVANAGARI_FAMILY), _one(draw, DEVANAGARI_GIVEN)
    return f"{family}^{given}", draw.choice(DEVANAGARI).format(family=family, given=given)


SCRIPTS: dict[str, Callable[[random.Random], Written]] = {
    "Latin with accents": latin, "Cyrillic": cyrillic, "Greek": greek, "Arabic": arabic, "Hebrew": hebrew, "Han": han,
    "Kana": kana, "Hangul": hangul, "Devanagari": devanagari,
}  # fmt: skip


def _one(draw: random.Random, words: str) -> str:
    return draw.choice(words.split())


def _plain(word: str) -> str:
    return "".join(letter for letter in unicodedata.normalize("NFD", word) if not unicodedata.combining(letter))


def _roman(name: str) -> str:
    """A name in Latin letters."""
    letters = (ROMAN.get(letter, letter) for letter in _plain(name.lower().replace("ου", "ou")))
    return "".join(letters).title()


def header_of(name: str, draw: random.Random) -> Dataset:
    """A header as devices write it, of an invented patient."""
    header = Dataset()
    header.SpecificCharacterSet = "ISO_IR 192"
    header.PatientName, header.PatientID = name, str(draw.randint(10**6, 10**8))
    header.PatientBirthDate = f"{draw.randint(1930, 2015)}{draw.randint(1, 12):02}{draw.randint(1, 28):02}"
    header.ReferringPhysicianName = latin(draw)[0]
    header.InstitutionName, header.Manufacturer = "Klinikum Wolkenstein", "SIEMENS"
    header.StudyDescription, header.SeriesDescription = draw.choice(STUDIES), draw.choice(SERIES)
    return header


def missed(script: str, count: int, seed: int) -> list[Written]:
    """Headers' names and texts in which nothing was found, of `count`."""
    draw, texts = random.Random(f"{seed} {script}"), list[Written]()
    for _ in range(count):
        name, text = SCRIPTS[script](draw)
        if not identifiers_in(text, header_forms(header_of(name, draw)).__contains__):
            texts.append((name, text))
    return texts


def questions(data: Path) -> dict[str, list[str]]:
    """The questions of both sets, with their answers."""
    texts = {
        name: [f"{row.question} {row.answer}" for row in read(name, data / name).rows] for name in ("vqa-rad", "slake")
    }
    files = (data / "slake" / f"{part}.json" for part in ("train", "validate", "test"))
    rows = [row for file in files for row in json.loads(file.read_text(encoding="utf-8"))]
    texts["slake in Chinese"] = [f"{row['question']} {row['answer']}" for row in rows if row["q_lang"] == "zh"]
    return texts


def refused(texts: list[str], headers: list[frozenset[str]]) -> Iterator[tuple[int, str]]:
    """Pairs of header and text in which something was found. Header -1 is none at all."""
    for text in texts:
        if identifiers_in(text, frozenset().__contains__):
            yield -1, text
        forms = {form for spot in spotted(text) for form in spot.forms | spot.near}
        for number, header in enumerate(headers):
            # Without a form in common the verdict is that of no header.
            if not header.isdisjoint(forms) and identifiers_in(text, header.__contains__):
                yield number, text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with vqa-rad and slake")
    parser.add_argument("--names", type=int, default=1000, help="of each script (default: 1000)")
    parser.add_argument("--headers", type=int, default=20, help="of each script, beside the questions (default: 20)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="print what was missed and refused")
    options = parser.parse_args()
    headers = list[frozenset[str]]()
    for script, written in SCRIPTS.items():
        left = missed(script, options.names, options.seed)
        print(f"{script}: {1 - len(left) / options.names:.2%} of {options.names} found")
        if options.show:
            print(*sorted(set(left)), sep="\n")
        draw = random.Random(f"{options.seed} {script} headers")
        headers += [header_forms(header_of(written(draw)[0], draw)) for _ in range(options.headers)]
    for name, texts in questions(options.data).items():
        started = time.perf_counter()
        pairs = list(refused(texts, headers))
        seconds = (time.perf_counter() - started) / len(texts)
        alone = sum(number < 0 for number, _ in pairs)
        share = (len(pairs) - alone) / max(len(headers) * len(texts), 1)
        print(
            f"{name}: of {len(texts)} questions {alone} refused without a header; "
            f"of the pairs with {len(headers)} headers {share:.4%}; {1000 * seconds:.2f} ms a question"
        )
        if options.show:
            print(*sorted({text for _, text in pairs}), sep="\n")


if __name__ == "__main__":
    main()
