"""Maps a body part, as a header or a questions file names it, to the organ whose site gets the question."""

import re
from collections.abc import Collection, Iterable

from medfedvqa.bounds import ORGAN_NAME
from medfedvqa.errors import ConfigError

ORGANS = ("abdomen", "breast", "chest", "extremity", "head", "neck", "pelvis", "spine", "others")
"""The organs that body parts are mapped to, in the order of a store's sites."""
MOST_ORGANS = 32
"""The most organs that a hospital may add."""
RESERVED = ("all", "server")
"""Names that a run uses for something else."""

PARTS = {
    "abdomen": "ABDOMEN ABD ABDO ABDOMENPELVIS LIVER KIDNEY KUB SPLEEN PANCREAS STOMACH BOWEL COLON GALLBLADDER "
    "BILEDUCT ADRENAL SMALLINTESTINE UGI",
    "breast": "BREAST MAMMA",
    "chest": "CHEST THORAX LUNG HEART CARDIAC MEDIASTINUM RIB RIBS STERNUM CORONARYARTERY AORTA CHESTABDOMEN "
    "THORAXABDOMEN CHESTABDPELVIS",
    "extremity": "EXTREMITY ARM LEG HAND FOOT WRIST ELBOW SHOULDER KNEE ANKLE FINGER TOE THUMB FEMUR TIBIA FIBULA "
    "HUMERUS RADIUS ULNA FOREARM CLAVICLE SCAPULA CALCANEUS PATELLA THIGH CALF JOINT",
    "head": "HEAD BRAIN SKULL FACE ORBIT EYE EAR SINUS NOSE JAW MANDIBLE MAXILLA PITUITARY IAC TMJ HEADNECK",
    "neck": "NECK THYROID LARYNX PHARYNX CAROTID",
    "pelvis": "PELVIS HIP BLADDER PROSTATE UTERUS RECTUM OVARY SACRUM PELVICCAVITY",
    "spine": "SPINE CSPINE TSPINE LSPINE SSPINE CTSPINE TLSPINE LSSPINE COCCYX WHOLESPINE",
    "others": "WHOLEBODY BODY OTHERS OTHER",
}
_ORGANS = {part: organ for organ, parts in PARTS.items() for part in parts.split()}

CODES = {
    "818981001": "abdomen", "113345001": "abdomen", "T-D4000": "abdomen", "10200004": "abdomen", "64033007": "abdomen",
    "76752008": "breast", "T-04000": "breast",
    "51185008": "chest", "816094009": "chest", "T-D3000": "chest", "39607008": "chest", "80891009": "chest",
    "69536005": "head", "T-D1100": "head", "12738006": "head", "89546000": "head",
    "45048000": "neck", "T-D1600": "neck",
    "12921003": "pelvis", "816092008": "pelvis", "T-D6000": "pelvis",
    "421060004": "spine", "122494005": "spine", "122495006": "spine", "122496007": "spine", "T-11500": "spine",
    "66019005": "extremity", "61685007": "extremity", "53120007": "extremity",
}  # fmt: skip
"""Anatomic regions by their SNOMED code (context group 4), where the header names no body part."""


def in_order(organs: Collection[str]) -> tuple[str, ...]:
    """Organs in the order of a store's sites: those of the list, then the hospital's own by name."""
    return (*(organ for organ in ORGANS if organ in organs), *sorted(set(organs) - set(ORGANS)))


def checked_organs(names: Iterable[str]) -> frozenset[str]:
    """The names of a hospital's own organs. Raises `ConfigError` for a name that no site could have.

    The names are chosen by the hospital and not taken from its tables, since others read the name of a site.
    """
    organs = frozenset(names)
    if any(not re.fullmatch(ORGAN_NAME, organ) or organ in RESERVED for organ in organs):
        raise ConfigError(
            "an organ's name must have 1 to 32 lower-case letters, digits and hyphens and begin with a letter; "
            f"{' and '.join(RESERVED)} are reserved"
        )
    if len(organs) > MOST_ORGANS:
        raise ConfigError(f"a store can have at most {MOST_ORGANS} organs that the hospital names itself")
    return organs


def organ_of(part: str) -> str | None:
    """The organ that a body part belongs to, or None. Case, white space and punctuation do not count."""
    word = re.sub(r"[^A-Z]", "", part.upper())
    for name in (word, word.removesuffix("S")):
        if name in _ORGANS:
            return _ORGANS[name]
        if name.lower() in ORGANS:
            return name.lower()
    return None
