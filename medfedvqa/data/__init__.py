"""Readers, organ partition, pictures and batches: a site's questions from files to tensors.

Names are imported at their first use: the tables of a data set are checked without torch.
"""

from typing import TYPE_CHECKING

from audits.lazy_imports import at_first_use, places

if TYPE_CHECKING:
    from medfedvqa.data.images import views
    from medfedvqa.data.pictures import Pictures, PictureViews, Source
    from medfedvqa.data.public_sets import PublicPairs, PublicQuestions, held_out_pairs, public_pairs
    from medfedvqa.data.readers import (
        READERS,
        is_built_in,
        is_registered,
        organs,
        read,
        reader_function,
        register_reader,
    )
    from medfedvqa.data.schema import (
        PARTS,
        Part,
        PartitionRows,
        Questions,
        Row,
        Split,
        VQAData,
        partition,
    )
    from medfedvqa.data.site_cuts import load_site
    from medfedvqa.data.site_data import Examples, SiteData, batches, build_site, numbered, united
    from medfedvqa.data.store_reader import check_reviewed
    from medfedvqa.public_answers import CLOSED_ANSWERS, ListName, bundled_list, fold, public_list, training_answers

__getattr__, __dir__ = at_first_use(__name__, __file__)
__all__ = sorted(places(__file__))
