"""Closed lists of words that the comparison with identifiers needs. All are lower case, without accents."""

import re


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
