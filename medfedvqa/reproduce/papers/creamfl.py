"""Q. Yu et al., "Multimodal Federated Learning via Contrastive Representation Ensemble", ICLR 2023."""

from medfedvqa.benchmark.printed import Place, PrintedRow, PrintedTable
from medfedvqa.reproduce.entries import Absent, Entry, Paper, Table

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
        Entry(
            "retrieval",
            "Recall@K of the server's model on COCO",
            Absent("the server's model is not tested here yet; COCO and its captions have to be fetched"),
        ),
        Entry(
            "vqa",
            "accuracy of the server's model on VQA v2",
            Absent("the server's model has no answer head here yet; `creamfl sites` tests the sites' models"),
        ),
        Entry(
            "sites",
            "the sites' models",
            Table(SITES),
            "closed medical questions at all sites in place of classification and retrieval; 128 drawn public pairs",
        ),
    ),
)
