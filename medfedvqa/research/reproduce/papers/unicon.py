"""Y. Sun and H. Ochiai, "UniCon: Unidirectional Split Learning with Contrastive Loss for VQA", 2023."""

from medfedvqa.research.benchmark.printed import Place, PrintedRow, PrintedTable
from medfedvqa.research.reproduce.entries import (
    FACT,
    Absent,
    Paper,
    PaperEntry,
    PaperPicture,
    PaperTable,
    PrintedSetting,
    Program,
    Trunks,
)

BUDGET = {"rounds": 20, "local_epochs": 1, "decay": 0.2, "decay_after": (10, 15), "decay_every": 10}
"""Section 4.2's epochs, each a round here, and its decays; centralised training has only the first decay."""
SMALL = "-O trunk_width=128 makes trunks small enough for a processor"
DIFFERS = (
    "medical questions at organs in place of VQA v2 at two clients, a frozen grid in place of a detector's regions and "
    "the backbone's words in place of GloVe's unless --backbone and --backbone-file give them; each site's answers. "
    f"{SMALL}"
)
_4_2, _U = "section 4.2", ("unicon",)
SETTINGS = (
    PrintedSetting(f"{FACT}data", "coco-vqa", "data", "VQA v2", "section 4.1"),
    PrintedSetting(f"{FACT}backbone", "regions", "pictures", "a detector's regions", "section 4.1"),
    PrintedSetting(f"{FACT}questions", "all", "questions", "all", "section 4.1"),
    PrintedSetting(f"{FACT}cut", "halves:2", "sites by", "two halves at random", "section 4.4"),
    PrintedSetting("batch_rows", 128, "rows of a batch", "128", _4_2),
    PrintedSetting("rounds", 20, "passes, each a round", "20", _4_2),
    PrintedSetting("optimizer", "adam", "optimiser", "Adam", _4_2),
    PrintedSetting("learning_rate", 1e-4, "rate", "1e-4", _4_2),
    PrintedSetting("decay", 0.2, "factor on the rate", "0.2", _4_2),
    PrintedSetting("decay_after", (10, 15), "passes before decays", "10 and 15", _4_2),
    PrintedSetting("norm", "batch", "normalisation of v_NHA", "batch", _4_2, None, _U),
    PrintedSetting("variant", "paper", "loss", "dot products, own key left out, a sum", "Eq. 1", None, _U),
    PrintedSetting("mask_duplicates", False, "rows of one answer are not negatives", "they are", "Eq. 1", None, _U),
    PrintedSetting("temperature", 0.07, "temperature", "0.07", _4_2, None, _U),
    PrintedSetting("width", 512, "width of the networks", "512", _4_2, None, _U),
    PrintedSetting("space", 256, "width of the shared space", "256", _4_2, None, _U),
    PrintedSetting("words", 8, "words of an answer", "8", _4_2, None, _U),
    PrintedSetting(f"{FACT}warmup", 10000, "steps of warm-up", "10,000 of 693,400", _4_2),
    PrintedSetting("", None, "words", "GloVe", _4_2, "the backbone's, unless --backbone-file gives them"),
)
SCHEME = Absent("a drawing of the idea, nothing is measured")
ALGORITHM_2 = PrintedTable(
    "Algorithm 2 beside UniCon, on one trunk",
    {"Average": Place()},
    (
        PrintedRow("split learning", (None,), "split learning mcan-small", ""),
        PrintedRow("UniCon", (None,), "UniCon mcan-small", ""),
        PrintedRow("centralised", (None,), "centralised mcan-small", ""),
    ),
    ("The paper describes Algorithm 2 and prints no figures of it.",),
)

PAPER = Paper(
    "unicon",
    3,
    "UniCon: Unidirectional Split Learning with Contrastive Loss for Visual Question Answering",
    (
        PaperEntry(
            "table1",
            "what earlier work shares",
            Absent("a list of properties, nothing is measured; docs/methods/matrix.md has that of the methods here"),
        ),
        PaperEntry("table2", "seven trunks, supervised", Trunks(("centralised",), BUDGET), SMALL, questions="all"),
        PaperEntry(
            "table3",
            "seven trunks by contrast and by UniCon",
            Trunks(("centralised contrastive", "UniCon"), BUDGET),
            SMALL,
            questions="all",
        ),
        PaperEntry("fig1", "the parts of the model", SCHEME),
        PaperEntry("fig2", "conventional split learning and UniCon", SCHEME),
        PaperEntry(
            "fig3",
            "similarity of rows and answers before and after",
            PaperPicture("similarity", "UniCon", BUDGET),
            f"{DIFFERS}; cosines; the first test rows of each site",
        ),
        PaperEntry(
            "fig4",
            "the networks of the server and of answers",
            Absent("a drawing of layers; docs/methods/unicon.md has their numbers of values"),
        ),
        PaperEntry(
            "fig5",
            "examples of questions",
            PaperPicture("samples", "UniCon", BUDGET),
            f"{DIFFERS}; whether each is answered right, in place of the answer",
        ),
        PaperEntry(
            "fig6",
            "accuracy under a Trojan",
            Program("trojan", ("OUT",)),
            "the phantom set; both a white patch and one that inverts the frozen tower, which every site has, "
            "where the paper inverts a trained model; success at each site",
            "phantom",
        ),
        PaperEntry(
            "fig7",
            "maps of attention",
            PaperPicture("attention", "SAN", BUDGET),
            f"{DIFFERS}; the network that the paper's Fig. 7 follows (its reference 40) in place of its trunks",
        ),
        PaperEntry(
            "a2",
            "seconds of a step by part (Appendix A.2)",
            Absent("the paper counts with symbols; docs/methods/unicon.md has seconds that were measured here"),
        ),
        PaperEntry("algorithm2", "conventional split learning (Appendix A.3)", PaperTable(ALGORITHM_2, BUDGET), SMALL),
    ),
    SETTINGS,
)
