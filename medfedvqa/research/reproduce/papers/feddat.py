"""H. Chen et al., "FedDAT: An Approach for Foundation Model Finetuning in Multi-Modal Heterogeneous FL", AAAI 2024."""

from collections.abc import Mapping

from medfedvqa.research.benchmark.printed import Place, PrintedRow, PrintedTable
from medfedvqa.research.reproduce.entries import (
    FACT,
    Absent,
    Paper,
    PaperEntry,
    PaperPicture,
    PaperTable,
    PrintedSetting,
    Scale,
)

BUDGET = {"rounds": 20, "local_epochs": 1}
"""Section 4.3 calls 5 rounds a quarter of the budget; the code's local epoch is one."""
SCHEME = Absent("a drawing of the idea, nothing is measured")
NOWHERE = Place(of="none")
CLIENTS = (
    "medical sets, or organs of one, in place of five VQA sets, whose chosen rows are not published: "
    "`--data vqa-rad+slake`; the backbone is a CLIP unless --backbone names a ViLT, VAuLT or ALBEF"
)
_DAT = ("feddat",)
_4_1, _3_5 = "section 4.1", "section 3.5"
SETTINGS = (
    PrintedSetting(f"{FACT}data", "vizwiz+", "data", "five VQA sets, whose chosen rows are not published", _4_1),
    PrintedSetting(f"{FACT}backbone", "vilt", "backbone", "ViLT, VAuLT or ALBEF by row", _4_1),
    PrintedSetting("rounds", 20, "rounds", "20, of which 5 are a quarter", "section 4.3"),
    PrintedSetting("local_epochs", 1, "passes of a round", "1", "released code"),
    PrintedSetting("direction", "paper", "direction of distillation", "KL(student || teacher)", "Eq. 5", None, _DAT),
    PrintedSetting("loss", "ce", "loss on answers", "cross-entropy", "Eq. 6", None, _DAT),
    PrintedSetting("ramp_rounds", 5, "ramp of alpha and beta", "exponential, no constants", _3_5, None, _DAT),
    PrintedSetting("head_update", "both", "trained with the teacher", "all", "Algorithm 1, line 8", None, _DAT),
    PrintedSetting("local_adapter", "own", "beginning of A_c", "each client's own", _3_5, None, _DAT),
    PrintedSetting("", None, "rate, batch, optimiser", "searched; in an appendix", _4_1, "the options below"),
)
METHODS = {
    "clf-L": "frozen features",
    "LoRA": "FedAvg LoRA local head",
    "prompt": "FedAvg prompt local head",
    "bias": "FedAvg bias local head",
    "Adapter-L": "local (DT) local head",
    "Adapter": "FedAvg adapter local head",
    "FedDAT": "FedDAT",
    "full-L": "local full",
    "full*": "FedAvg full local head",
}
DIFFERS = {
    "prompt": "the prompts themselves are averaged, there a network that makes them",
    "clf-L": "a head that multiplies tanh units",
}
ARCHITECTURES = {"VAuLT": "vault-b32", "ALBEF": "albef-b16"}
"""The backbones whose rows are runs of their own."""
IN_ALL_ROWS = {"ALBEF": "answers of a list by a head, no decoder"}


def _by_backbone(figures: Mapping[str, str]) -> tuple[PrintedRow, ...]:
    """The rows of a table: for each backbone a line of means for each method, ALBEF without its first."""
    rows = []
    for backbone, text in figures.items():
        lines = text.strip().splitlines()
        for method, line in zip(list(METHODS)[-len(lines) :], lines, strict=True):
            differs = "; ".join(filter(None, (IN_ALL_ROWS.get(backbone), DIFFERS.get(method))))
            numbers, architecture = tuple(map(float, line.split())), ARCHITECTURES.get(backbone, "")
            rows.append(PrintedRow(f"{backbone}: {method}", numbers, METHODS[method], differs, architecture))
    return tuple(rows)


TABLE_1 = PrintedTable(
    "Table 1: image classification, one style of DomainNet for each client",
    {style: Place(number=number) for number, style in enumerate("CIPQRS")} | {"avg": Place()},
    (
        PrintedRow("clf-L", (72.43, 36.13, 86.35, 55.70, 74.07, 74.70, 66.56), "local classifier", ""),
        PrintedRow("Adapter-L", (76.05, 36.93, 88.03, 72.40, 66.53, 78.74, 69.78), "local (DT)", ""),
        PrintedRow("clf", (80.80, 44.61, 83.47, 60.10, 84.21, 71.69, 70.81), "FedAvg classifier", ""),
        PrintedRow("Adapter", (88.59, 50.95, 87.12, 76.00, 84.99, 74.08, 76.96), "FedAvg adapter", ""),
    ),
)
_SETS = ("VizWiz", "COCO", "Art", "GQA", "Abstract")
TABLE_2 = PrintedTable(
    "Table 2: Domain, a VQA set for each client; means of three seeds",
    {name: Place(number=number) for number, name in enumerate(_SETS)} | {"Average": Place()},
    _by_backbone(
        {
            "ViLT": """
            63.13 36.15 63.22 34.90 52.81 50.04
            60.47 43.28 62.98 36.57 52.04 51.07
            60.13 52.13 63.02 39.09 52.88 53.45
            61.83 49.41 69.38 40.43 60.36 56.28
            61.72 46.27 67.69 43.62 54.02 54.67
            61.39 52.39 68.72 43.72 59.43 57.13
            60.99 63.81 71.36 48.65 60.75 61.11
            55.52 72.97 73.16 44.41 58.78 60.97
            56.12 73.87 76.24 50.28 61.26 63.55
            """,
            "VAuLT": """
            61.83 32.42 64.52 35.08 48.48 48.46
            62.17 40.56 63.08 33.47 47.34 49.32
            62.93 46.52 64.26 35.33 48.91 51.59
            61.12 43.81 67.00 33.30 51.22 51.29
            62.33 47.72 67.50 33.75 54.09 53.07
            52.53 53.63 66.80 35.65 50.03 51.73
            62.19 54.83 67.86 40.06 54.48 55.88
            57.41 55.68 70.27 41.31 52.66 55.47
            45.79 64.64 67.89 41.93 49.58 53.97
            """,
            "ALBEF": """
            60.49 28.32 57.04 28.71 58.06 46.52
            63.13 32.50 63.45 32.08 59.45 50.12
            63.23 31.23 61.23 35.93 57.88 49.90
            61.72 56.32 65.21 40.96 59.51 56.74
            59.52 69.35 68.32 41.02 60.83 59.81
            61.52 76.36 71.04 49.22 63.65 64.36
            61.22 77.80 74.45 50.09 63.58 65.43
            51.91 78.38 75.65 55.91 70.47 66.46
            """,
        }
    ),
)
TABLE_3 = PrintedTable(
    "Table 3: averages on Function, Scene and Task; means of three seeds",
    {"Function": Place(cut="question-type"), "Scene": Place(cut="organ"), "Task": NOWHERE},
    _by_backbone(
        {
            "ViLT": """
            31.58 24.52 49.46
            32.04 28.47 47.82
            40.53 30.53 49.55
            43.81 33.65 50.71
            39.68 31.91 49.59
            48.37 31.07 51.44
            54.39 39.35 52.37
            56.81 38.00 50.64
            59.62 40.62 53.17
            """,
            "VAuLT": """
            27.72 21.22 39.63
            29.87 23.08 38.35
            36.32 25.63 38.75
            36.11 24.89 39.46
            37.22 28.57 40.42
            41.50 29.39 40.19
            44.54 34.31 41.28
            49.13 35.11 41.66
            46.38 36.72 42.44
            """,
        }
    ),
)
TABLE_4 = PrintedTable(
    "Table 4: parts of the teacher, and what is tested; ViLT, means of three seeds",
    {"Domain": Place(cut="organ"), "Function": Place(cut="question-type"), "Scene": NOWHERE},
    (
        PrintedRow("Adapter", (57.13, 48.37, 31.07), "FedAvg adapter local head", ""),
        PrintedRow("w/o A_s copy", (58.24, 50.62, 33.04), "FedDAT without frozen", ""),
        PrintedRow("w/o A_c", (57.87, 50.93, 32.45), "FedDAT without local", ""),
        PrintedRow("w/o MKD", (58.41, 52.82, 36.98), "FedDAT without MKD", ""),
        PrintedRow("FedDAT", (61.11, 54.39, 39.35), "FedDAT", ""),
        PrintedRow("inference A_c + A_s", (58.45, 50.42, 35.61), "FedDAT: both adapters tested", ""),
        PrintedRow("inference A_c", (55.87, 46.14, 32.84), "FedDAT: local adapter tested", ""),
    ),
)
FIG_5 = PrintedTable(
    "Fig. 5: accuracy by round",
    {"Average": Place()},
    (
        PrintedRow("Adapter", (None,), "FedAvg adapter local head", ""),
        PrintedRow("FedDAT", (None,), "FedDAT", ""),
    ),
    ("The paper draws its curves and prints none: `convergence.svg` has those of this run, on validation rows.",),
)
CLOVE = (
    "CLOVE and CLiMB are not published in the form that the paper cut: Function is a site for each type of questions "
    "(`--sites question-type`), Scene one for each organ (`--sites organ`), and Task has no figures here"
)

PAPER = Paper(
    "feddat",
    1,
    "FedDAT: An Approach for Foundation Model Finetuning in Multi-Modal Heterogeneous Federated Learning",
    (
        PaperEntry(
            "table1",
            "image classification, a style for each client",
            PaperTable(TABLE_1, BUDGET),
            "a CLIP with one fixed question in place of a ViT; the given folder's own sites and classes",
            "image-classes",
            data_root=True,
        ),
        PaperEntry(
            "table2", "PEFT methods, a VQA set for each client", PaperTable(TABLE_2, BUDGET), data="vqa-rad+slake"
        ),
        PaperEntry(
            "table3",
            "PEFT methods by function, scene and task",
            PaperTable(TABLE_3, BUDGET),
            CLOVE,
            sites="question-type",
        ),
        PaperEntry("table4", "ablations", PaperTable(TABLE_4, BUDGET), CLOVE, "vqa-rad+slake"),
        PaperEntry("fig1", "the training procedure", SCHEME),
        PaperEntry("fig2", "the dual-adapter teacher", SCHEME),
        PaperEntry("fig3", "mutual distillation", SCHEME),
        PaperEntry("fig4", "examples of the clients' rows", PaperPicture("samples"), CLIENTS, "vqa-rad+slake"),
        PaperEntry("fig5", "accuracy by round", PaperTable(FIG_5, BUDGET, curve=True), data="vqa-rad+slake"),
        PaperEntry(
            "fig6",
            "accuracy by number of clients",
            Scale(("FedAvg adapter local head", "FedDAT"), (5, 10, 15, 20, 25)),
            "drawn sites, each with rows of its own; equal rounds for all numbers, where the paper trains longer",
            "phantom",
        ),
    ),
    SETTINGS,
)
