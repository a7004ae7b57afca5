"""Pictures with captions, such as the first sentence of a report: pairs for retrieval, without questions.

`captions.csv` in the root has the columns `picture` (a path below the root), `patient`, `site`, `caption`, and if need
be `split`. A row's question and its answer both are the caption, so equal captions have the same answer.
"""

from dataclasses import replace
from pathlib import Path

from medfedvqa.bounds import MOST_CHARACTERS
from medfedvqa.data.image_classes import COLUMNS, labelled_rows, picture_path, read_lines
from medfedvqa.data.schema import Row, VQAData
from medfedvqa.errors import DataError

TABLE = "captions.csv"


def read(root: Path) -> VQAData:
    """All pairs, in the table's order. Raises `DataError`, which gives a line's number and quotes nothing of it."""
    columns, lines = read_lines(root / TABLE)
    if not {*COLUMNS, "caption"} <= {*columns}:
        raise DataError(f"'{TABLE}' must have the columns {', '.join(COLUMNS)} and caption")
    rows: list[Row] = []
    for number, line in enumerate(lines, 2):
        where, caption = f"line {number} of '{TABLE}'", line["caption"].strip()
        if not 0 < len(caption) <= MOST_CHARACTERS:
            raise DataError(f"{where}: a caption must have 1 to {MOST_CHARACTERS} characters")
        image = root / picture_path(line, where)
        labelled = labelled_rows({**line, "label": caption}, ("label",), where, len(rows), image, caption)
        rows += (replace(row, captioned=True) for row in labelled)
    if not rows:
        raise DataError(f"'{TABLE}' has no pair")
    sites = tuple(dict.fromkeys(row.organ for row in rows))
    return VQAData("captions", sites, rows, publishes_validation=any(row.split == "validate" for row in rows))
