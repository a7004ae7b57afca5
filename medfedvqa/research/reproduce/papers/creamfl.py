"""Q. Yu et al., "Multimodal Federated Learning via Contrastive Representation Ensemble", ICLR 2023."""

from medfedvqa.research.benchmark.printed import Place, PrintedRow, PrintedTable
from medfedvqa.research.reproduce.entries import Paper, PaperEntry, PaperTable

SERVERS = ("CreamFL", "CreamFL: server alone", "FedMD", "FedET", "FedGEMS")
ABLATIONS = (
    "CreamFL",
    "CreamFL: server alone",
    "CreamFL: mean",
    "CreamFL: GCA",
    "CreamFL: mean + inter",
    "CreamFL: mean + intra",
    "CreamFL: mean + inter + intra",
    "CreamFL: GCA + inter",
    "CreamFL: GCA + intra",
)
NO_FIGURES = ("The project has notes of this paper, without its tables: there are no figures to set beside.",)
IN_PLACE = (
    "public phantom pictures and closed questions in place of COCO and VQA v2, in the table of the server's own model; "
    "medical questions at all sites in place of classification and retrieval"
)


FEDGKT = PrintedRow("FedGKT", (None,), "", "not built: each site would send features and labels of its rows")
"""C. He, M. Annavaram and S. Avestimehr, "Group Knowledge Transfer", NeurIPS 2020: a baseline of the paper."""


def _at_sites(title: str, labels: tuple[str, ...], *others: PrintedRow) -> PrintedTable:
    rows = (*(PrintedRow(name, (None,), name, "") for name in labels), *others)
    return PrintedTable(title, {"Average": Place()}, rows, NO_FIGURES)


SITES = PrintedTable(
    "What the sites' own models answer",
    {"Average": Place()},
    (
        PrintedRow("alone", (None,), "local (DT)", ""),
        PrintedRow("FedAvg", (None,), "FedAvg adapter local head", ""),
        PrintedRow("CreamFL", (None,), "CreamFL", "all sites multimodal"),
    ),
    ("No table of the paper: it tests its server's model.",),
)

PAPER = Paper(
    "creamfl",
    4,
    "Multimodal Federated Learning via Contrastive Representation Ensemble",
    (
        PaperEntry(
            "global",
            "the server's model: Recall@K and VQA",
            PaperTable(_at_sites("Beside it the sites' models", SERVERS, FEDGKT)),
            IN_PLACE,
        ),
        PaperEntry(
            "ablation",
            "aggregation and both contrasts",
            PaperTable(_at_sites("Beside the server's the sites' models", ABLATIONS)),
            IN_PLACE,
        ),
        PaperEntry(
            "sites",
            "the sites' models",
            PaperTable(SITES),
            "closed medical questions at all sites in place of classification and retrieval; 128 drawn public pairs",
        ),
    ),
)
