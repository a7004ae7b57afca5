"""Figures that papers print for these data sets, in per cent, and how the setting here differs.

`PRINTED` has tables 1 and 2 of the prompt paper (H. Zhu et al., ICASSP 2024), `LITERATURE` models that were trained
centrally on all rows, closed and open. Figures whose source was not accessible are left out.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from medfedvqa.data.site_cuts import Cut

PM = "prompt_pfl (PM)"
ABLATIONS = {
    "AS1": "prompt_pfl AS1 (no prompts; not shared)",
    "AS2": "prompt_pfl AS2 (not shared)",
    "AS3": "prompt_pfl AS3 (no image prompt)",
    "AS4": "prompt_pfl AS4 (no text prompt)",
    "PM": PM,
}


@dataclass(frozen=True)
class Place:
    """Selects the sites whose mean is compared with a printed column: one by name or number, or all of a kind."""

    site: str = ""
    of: Literal["all", "seen", "unseen", "none"] = "all"
    """`seen` sites train, `unseen` ones only test; `none`: no site here matches the column."""
    number: int | None = None
    """The position, from 0, of a single site among those of `of`; None: all of them."""
    cut: str = ""
    """Selects nothing under any other cut into sites; empty: every cut fits."""

    def sites(self, sites: Sequence[str], unseen: Collection[str] = ()) -> tuple[str, ...]:
        """The selected ones among a table's sites; empty if none matches."""
        if self.cut and sites and self.cut != (Cut.of_site(sites[0]) or Cut()).kind:
            return ()
        kinds = {"all": sites, "seen": [each for each in sites if each not in unseen], "unseen": unseen, "none": ()}
        chosen = [each for each in sites if each in kinds[self.of] and self.site in ("", each)]
        return tuple(chosen if self.number is None else chosen[self.number : self.number + 1])


@dataclass(frozen=True)
class PrintedRow:
    """A row as printed; `label` names this project's system that it is compared with, if there is one."""

    name: str
    figures: tuple[float | None, ...]
    """None where the paper prints none."""
    label: str
    differs: str
    backbone: str = ""
    """The only architecture it is compared with; empty: every backbone that no other row names."""


@dataclass(frozen=True)
class PrintedTable:
    """A table as printed; `columns` maps the paper's headings, in its order, to places here."""

    title: str
    columns: Mapping[str, Place]
    rows: tuple[PrintedRow, ...]
    notes: tuple[str, ...] = ()
    personal: bool = False
    """Whether its figures at sites that train are those of their own models before the last mean."""


_BACKBONE = "backbone (CLIP ViT-B there), budget"
_SIZE = "network and pre-training"

PRINTED = {
    "slake": PrintedTable(
        "Table 1 of the prompt paper: SLAKE",
        {heading: Place(heading.lower()) for heading in ("Brain", "Abdomen", "Others", "Lung")},
        (
            PrintedRow("VGG+SAN", (76.92, 72.34, 74.41, 75.89), "SAN", _SIZE),
            PrintedRow("PMCLIP", (79.12, 80.85, 76.74, 82.98), "PubMedCLIP-style", _SIZE),
            PrintedRow("M2I2", (79.12, 68.09, 74.42, 81.56), "", "not built: a decoder ranks its answers"),
            PrintedRow("AS1", (79.12, 70.92, 81.40, 83.69), ABLATIONS["AS1"], _BACKBONE),
            PrintedRow("AS2", (81.32, 72.34, 79.07, 82.98), ABLATIONS["AS2"], _BACKBONE),
            PrintedRow("AS3", (80.22, 73.76, 81.84, 82.27), ABLATIONS["AS3"], _BACKBONE),
            PrintedRow("AS4", (80.22, 70.92, 76.74, 84.40), ABLATIONS["AS4"], _BACKBONE),
            PrintedRow("PM", (76.92, 72.34, 81.40, 84.40), ABLATIONS["PM"], _BACKBONE),
        ),
        ("The split is the paper's: 91, 141, 43 and 141 test rows. AS3's 81.84 cannot be a share of 43 rows.",),
    ),
    "vqa-rad": PrintedTable(
        "Table 2 of the prompt paper: VQA-RAD",
        {"Brain": Place("head"), "Abdomen": Place("abdomen"), "Chest": Place("chest")},
        (
            PrintedRow("MEVF", (68.63, 66.67, 60.61), "MEVF-style", _SIZE),
            PrintedRow("PMCLIP", (73.53, 70.00, 62.12), "PubMedCLIP-style", _SIZE),
            PrintedRow("M2I2", (64.38, 71.11, 63.64), "", "not built: a decoder ranks its answers"),
            PrintedRow("AS1", (74.24, 67.78, 61.76), ABLATIONS["AS1"], f"split, {_BACKBONE}"),
            PrintedRow("AS2", (68.18, 63.33, 61.76), ABLATIONS["AS2"], f"split, {_BACKBONE}"),
            PrintedRow("AS3", (74.24, 67.78, 61.76), ABLATIONS["AS3"], f"split, {_BACKBONE}"),
            PrintedRow("AS4", (69.70, 67.78, 60.78), ABLATIONS["AS4"], f"split, {_BACKBONE}"),
            PrintedRow("PM", (74.24, 68.89, 64.71), ABLATIONS["PM"], f"split, {_BACKBONE}"),
        ),
        (
            "The paper's test rows are not the published ones (here 54, 102 and 116): its figures are shares of 66, 90 "
            "and 102 rows, and the columns Brain and Chest look swapped in its first three rows.",
        ),
    ),
}


@dataclass(frozen=True)
class LiteratureRow:
    """A model as printed; `label` names this project's system that it is compared with, if there is one."""

    name: str
    closed: float
    open: float
    together: float | None
    source: str
    differs: str
    label: str = ""


_LAPA = "table of LaPA (Gu et al., CVPR workshops 2024; README of GaryGuTC/LaPA_model)"
_MEVF = "parts pre-trained by MAML and as a denoising auto-encoder; answers normalised"
_PUBMEDCLIP = "CLIP fine-tuned on ROCO's captions, in another network (QCR or MEVF)"
_M2I2 = "pre-trained on the captions of ImageCLEF 2022"

LITERATURE = {
    "slake": (
        LiteratureRow(
            "MEVF with BAN", 79.8, 77.8, 78.6, "table of DiffuVQA (README of cloneiq/DiffuVQA)", _MEVF, "MEVF-style"
        ),
        LiteratureRow(
            "PubMedCLIP",
            82.5,
            78.4,
            80.1,
            _LAPA,
            f"{_PUBMEDCLIP}; the list of answers is made of training and test rows (its `create_label.py`)",
            "PubMedCLIP-style",
        ),
        LiteratureRow(
            "M2I2",
            91.1,
            74.7,
            81.2,
            _LAPA,
            f"{_M2I2}; trained on validation rows too, and answers of both are ranked (its `configs/Slake.yaml`)",
        ),
    ),
    "vqa-rad": (
        LiteratureRow(
            "MEVF with BAN",
            75.1,
            43.9,
            None,
            "the authors (README of aioz-ai/MICCAI19-MedVQA)",
            f"{_MEVF}, those of training rows (its `compute_softscore.py`)",
            "MEVF-style",
        ),
        LiteratureRow("PubMedCLIP", 80.0, 60.1, 72.1, _LAPA, _PUBMEDCLIP, "PubMedCLIP-style"),
        LiteratureRow("M2I2", 81.6, 61.8, 73.7, _LAPA, f"{_M2I2}; LLaVA-Med's table has 83.5 for its closed questions"),
    ),
}
LITERATURE_NOTE = (
    "Each is one model of one institution, trained on the rows of all organs, closed and open ones. Figures are shares "
    "of all test rows, so those here are, too: means over seeds, in which a site with more rows counts more. Figures "
    "other than MEVF's on VQA-RAD are those that later papers print."
)
