"""Accuracies with intervals, results, tables and plots."""

from typing import TYPE_CHECKING

from audits.lazy_imports import at_first_use, places

if TYPE_CHECKING:
    from medfedvqa.evaluation.accuracy import FIRST, Proportion, ServerScore, percent
    from medfedvqa.evaluation.accuracy_table import write_table
    from medfedvqa.evaluation.history import (
        History,
        RoundRecord,
        RunFacts,
        Score,
        Transcript,
        load_transcript,
        save_transcript,
    )
    from medfedvqa.evaluation.results import add_contribution, add_scores, results_schema, write_results
    from medfedvqa.evaluation.run_plots import draw_plots

__getattr__, __dir__ = at_first_use(__name__, __file__)
__all__ = sorted(places(__file__))
