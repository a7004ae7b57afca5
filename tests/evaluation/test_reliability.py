"""Whether weights by reliability differ from equal ones by more than the chance of the validation rows."""

from dataclasses import replace

import numpy as np
import pytest

from medfedvqa.evaluation import History, RoundRecord, write_results
from medfedvqa.evaluation.history import tested_weights
from medfedvqa.evaluation.run_plots import reliability_figure

SITES = ("a", "b", "c", "d")


def run(accuracies: list[list[float]], sites: tuple[str, ...] = SITES, similarity: float = 1.0) -> History:
    """Rounds with these accuracies, [rounds][sites], and the weights that follow from equal similarities."""
    records = []
    for number, row in enumerate(accuracies, 1):
        weights = np.tile(np.array(row, np.float64) * similarity, (len(row), 1)) * (1 - np.eye(len(row)))
        table = {"prompt.image": (weights / weights.sum(axis=1, keepdims=True)).tolist()}
        released = {site: float(np.float32(share)) for site, share in zip(sites, row, strict=True)}
        records.append(RoundRecord(number, 1.0, {}, {}, {}, released, table))
    return History(sites, records)


def drawn(chance: np.random.Generator, true: list[float], rows: int) -> History:
    """Five rounds on one draw of validation rows, of which a round gets one more right or wrong."""
    right = chance.binomial(rows, true)
    return run([np.clip((right + chance.integers(-1, 2, len(true))) / rows, 1 / rows, 1).tolist() for _ in range(5)])


def test_chance_alone_is_called_a_difference_in_at_most_one_of_twenty_runs_and_a_real_one_is_found() -> None:
    """Four sites with the same true accuracy, 300 draws of 100 rows: at most 5 %. One at 0.95 beside 0.6: most."""
    chance = np.random.default_rng(0)
    equal = [tested_weights(drawn(chance, [0.8] * 4, 100)).different > 0 for _ in range(300)]
    apart = [tested_weights(drawn(chance, [0.95, 0.6, 0.6, 0.6], 100)).different > 0 for _ in range(100)]
    assert np.mean(equal) <= 0.05 and np.mean(apart) >= 0.8


def test_the_variance_is_that_of_the_weights_over_draws_of_validation_rows() -> None:
    """The smallest difference that counts lies near 2.9 standard deviations of weights that are drawn 4,000 times."""
    chance = np.random.default_rng(1)
    shares = chance.binomial(200, 0.7, (4000, 4)) / 200
    deviation = (shares[:, 1] / shares[:, 1:].sum(axis=1)).std()
    # Another round with a share of 199 rows would change the number of rows: shares of 200 are all that is released.
    edges = [
        (right / 200 / (right / 200 + 1.4) - 1 / 3) / deviation
        for right in range(141, 200)
        if tested_weights(run([[0.7, right / 200, 0.7, 0.7], [0.7, 0.705, 0.705, 0.705], [0.705] * 4])) is not None
        and tested_weights(run([[0.705] * 4, [0.705, 141 / 200, 0.705, 0.705], [0.7, right / 200, 0.7, 0.7]])).different
    ]
    assert 2.3 <= edges[0] <= 3.5


def test_results_and_the_plot_say_the_verdict(facts, history, scores, tmp_path) -> None:
    """The same words in `notes` and above the heat map; of two sites, and of noisy accuracies, nothing is said."""
    sites = history.sites
    records = run([[0.9, 0.5, 0.52], [0.92, 0.51, 0.49]], sites).rounds
    ended = replace(
        history, rounds=[replace(new, round=old.round) for new, old in zip(records, history.rounds, strict=False)]
    )
    verdict = tested_weights(ended).verdict
    assert verdict == "4 of 6 weights differ from 0.50 by more than chance"
    results = write_results(tmp_path, facts, ended, scores)
    assert [note for note in results["notes"] if note.startswith("Reliability: ") and verdict in note]
    assert verdict in reliability_figure(ended).axes[0].get_title()
    assert tested_weights(run([[0.7, 0.9]], ("a", "b"))) is None
    assert tested_weights(run([[0.7123456, 0.81234567, 0.6, 0.5], [0.61233, 0.91239, 0.6, 0.5]])) is None
    private = [replace(record, epsilon={site: [0.0, 1.0] for site in sites}) for record in records]
    assert tested_weights(replace(ended, rounds=private)) is None


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_an_accuracy_of_none_or_all_is_uncertain_too(share: float) -> None:
    """Five rows, all right or all wrong, are no evidence against equal weights."""
    rest = [0.6, 0.6, 0.6]
    assert tested_weights(run([[0.4, *rest], [share, *rest]])).different == 0
