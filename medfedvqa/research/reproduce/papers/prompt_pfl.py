"""H. Zhu et al., "Prompt-based Personalized Federated Learning for Medical VQA", ICASSP 2024."""

from dataclasses import replace

from medfedvqa.research.benchmark.printed import ABLATIONS, PM, PRINTED, Place, PrintedRow, PrintedTable
from medfedvqa.research.reproduce.entries import (
    FACT,
    Absent,
    Paper,
    PaperEntry,
    PaperPicture,
    PaperTable,
    PrintedSetting,
)

BUDGET = {"rounds": 30, "local_epochs": 5, "decay": 0.1, "decay_every": 10}
"""Section 3.1; a local iteration is read as a pass over the rows."""
SCHEME = Absent("a drawing of the idea, nothing is measured")
DIFFERS = (
    "a small CLIP of this project's, unless --backbone names another; rate and optimiser, a head that "
    "multiplies tanh units; cosines clamped at 0, one for each tower"
)
AS_PRINTED = PrintedRow(
    "PM as printed",
    (None, None, None, None),
    "prompt_pfl as printed",
    "a row of this project: the paper's rate, head, and one cosine over both prompts",
)
R = PrintedTable(
    "The number r of blocks with prompts (section 3.1)",
    {"Average": Place()},
    (
        *(
            PrintedRow(f"r = {blocks}", (None,), f"prompt_pfl r = {blocks}", "in the last blocks of each tower")
            for blocks in (1, 2, 3, 6, 9)
        ),
        PrintedRow("all blocks", (None,), PM, "12 in a ViT-B, 4 in the project's own CLIP"),
    ),
    ("The paper names r = 12 the best of those that it tried, and prints no figures.",),
)


_3_1, _PM = "section 3.1", ("prompt_pfl",)
SETTINGS = (
    PrintedSetting(f"{FACT}backbone", "vit-b", "backbone", "CLIP with 12 blocks or more", _3_1),
    PrintedSetting("rounds", 30, "rounds", "30", _3_1),
    PrintedSetting("local_epochs", 5, "local iterations, read as passes", "5", _3_1),
    PrintedSetting("learning_rate", 0.01, "rate", "0.01", _3_1, 0.002, _PM),
    PrintedSetting("decay", 0.1, "factor on the rate", "0.1", _3_1),
    PrintedSetting("decay_every", 10, "rounds between decays", "10", _3_1),
    PrintedSetting("hidden", 512, "hidden units of the head", "512", _3_1, None, _PM),
    PrintedSetting("dropout", 0.2, "dropout", "0.2", _3_1, None, _PM),
    PrintedSetting("length", 4, "length of a prompt", "4", _3_1, None, _PM),
    PrintedSetting("alpha", 0.5, "alpha", "0.5", _3_1, None, _PM),
    PrintedSetting("beta", 0.001, "beta", "0.001", _3_1, None, _PM),
    PrintedSetting("optimizer", "adam", "optimiser", "unsaid; weights decay by beta alone", "Eq. 8", "adamw", _PM),
    PrintedSetting("fusion", "concat", "joining of features", "joined, then an MLP", "section 2", None, _PM),
    PrintedSetting("question_input", "tower", "question in the head", "the text encoder's", "section 2", None, _PM),
    PrintedSetting("similarity", "paper", "similarity of prompts", "one cosine over both", "Eqs. 7, 9", None, _PM),
)


def _with_printed(data: str) -> PrintedTable:
    """The paper's table, and the method with the settings that the paper prints."""
    table = PRINTED[data]
    row = PrintedRow(AS_PRINTED.name, (None,) * len(table.columns), AS_PRINTED.label, AS_PRINTED.differs)
    # What differs in these rows is computed.
    rows = (replace(each, differs="") if each.label in ABLATIONS.values() else each for each in table.rows)
    return PrintedTable(table.title, table.columns, (*rows, row), table.notes)


PAPER = Paper(
    "prompt-pfl",
    2,
    "Prompt-based Personalized Federated Learning for Medical Visual Question Answering",
    (
        PaperEntry("table1", "SLAKE by organ", PaperTable(_with_printed("slake"), BUDGET), data="slake"),
        PaperEntry(
            "table2",
            "VQA-RAD by organ",
            PaperTable(_with_printed("vqa-rad"), BUDGET),
            data="vqa-rad",
            fractions=(0.85, 0.0, 0.15),
            settings=(
                PrintedSetting(f"{FACT}split", "by patient 85/15", "split", "85 % to train, 15 % to test", _3_1),
            ),
        ),
        PaperEntry("fig1", "the method", SCHEME),
        PaperEntry("fig2", "the block with prompts", SCHEME),
        PaperEntry("fig3", "communication among clients", SCHEME),
        PaperEntry(
            "fig4",
            "t-SNE of prompts",
            PaperPicture("prompts", PM, BUDGET),
            f"{DIFFERS}; shared prompts are those of the site Abdomen, or of the first if there is none",
            "slake",
        ),
        PaperEntry(
            "fig5",
            "samples of answers",
            PaperPicture("samples", PM, BUDGET),
            f"{DIFFERS}; the first test rows",
            "slake",
        ),
        PaperEntry("r", "the number of blocks with prompts", PaperTable(R, BUDGET), data="slake"),
    ),
    SETTINGS,
)
