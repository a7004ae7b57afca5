"""H. Zhu et al., "Prompt-based Personalized Federated Learning for Medical VQA", ICASSP 2024."""

from medfedvqa.research.benchmark.printed import PM, PRINTED, Place, PrintedRow, PrintedTable
from medfedvqa.research.reproduce.entries import Absent, Paper, PaperEntry, PaperPicture, PaperTable

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


def _with_printed(data: str) -> PrintedTable:
    """The paper's table, and the method with the settings that the paper prints."""
    table = PRINTED[data]
    row = PrintedRow(AS_PRINTED.name, (None,) * len(table.columns), AS_PRINTED.label, AS_PRINTED.differs)
    return PrintedTable(table.title, table.columns, (*table.rows, row), table.notes)


PAPER = Paper(
    "prompt-pfl",
    2,
    "Prompt-based Personalized Federated Learning for Medical Visual Question Answering",
    (
        PaperEntry("table1", "SLAKE by organ", PaperTable(_with_printed("slake"), BUDGET), DIFFERS, "slake"),
        PaperEntry("table2", "VQA-RAD by organ", PaperTable(_with_printed("vqa-rad"), BUDGET), DIFFERS, "vqa-rad"),
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
        PaperEntry("r", "the number of blocks with prompts", PaperTable(R, BUDGET), DIFFERS, "slake"),
    ),
)
