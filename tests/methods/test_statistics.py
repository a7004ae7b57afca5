"""Counts of patients before training: groups, sensitivity, budget, sums on shares, and what is refused."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_clip import TINY

import medfedvqa as mv
from audits import Event, read
from medfedvqa.core import create
from medfedvqa.data import Row, Split, VQAData, build_site
from medfedvqa.errors import ConfigError, FederationError
from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.serve import serve_job
from medfedvqa.methods.statistics import patients_by
from medfedvqa.training import Site
from privacy import DPSettings, Laplace, RepeatableRandomness, SettingsError, released_counts
from privacy.mechanisms.base import UNITS


class Silent(Laplace):
    """Adds no noise, so that a test sees what the noise is added to."""

    def noisy(self, counts, randomness):
        return tuple(counts)


def rows_of(yes: int, no: int, both: int = 0) -> Iterator[Row]:
    """Patients with one row of either answer, and some with one of each; one of a test part, which never counts."""
    answers = [["yes"]] * yes + [["no"]] * no + [["yes", "no"]] * both + [["yes"]]
    facts = [(patient, answer) for patient, own in enumerate(answers) for answer in own]
    for index, (patient, answer) in enumerate(facts):
        split = "test" if patient == len(answers) - 1 else "train"
        yield Row(index, "lung", split, True, "is it?", answer, f"p{patient}", Path(f"{patient}.png"), modality="CT")


def counts(method, yes: int, no: int, both: int = 0, seed: int = 0) -> dict[str, dict[str, float]]:
    data = VQAData("made", ("lung",), list(rows_of(yes, no, both)), publishes_validation=True)
    site = Site("lung", build_site(data, "lung", Split(), ("no", "yes")), None, "cpu", 0, RepeatableRandomness(seed))
    tensors = method.count(site, {}, {}, 1)[1]
    return {table: dict(zip(names, tensors[table].tolist(), strict=True)) for table, names in method.tables.items()}


def test_a_group_of_nine_is_zero_and_one_of_ten_is_ten():
    method = create("statistics", {"by": ["answer", "modality", "organ"]})
    tables = counts(method, yes=9, no=10)
    assert tables["answer"]["yes"] == 0 and tables["answer"]["no"] == 10
    assert tables["modality"]["ct"] == 10 and tables["organ"]["lung"] == 10, "19 patients: sums do not show the nine"


def test_a_patient_counts_once_in_a_category_and_test_patients_never():
    tables = counts(create("statistics", {"by": ["answer"]}), yes=10, no=0, both=10)
    assert tables["answer"]["yes"] == 20 and tables["answer"]["no"] == 10


PATIENTS = st.lists(st.lists(st.floats(0, 5), min_size=4, max_size=4), min_size=1, max_size=12)


@given(PATIENTS)
def test_one_patient_moves_all_counts_together_by_at_most_one(shares):
    """In the L1 norm and in whole numbers, whatever the shares are: they are scaled down if they sum to more."""
    table = torch.tensor(shares, dtype=torch.float64)
    with_all, without = (released_counts(part, Silent(1.0), RepeatableRandomness(0)) for part in (table, table[:-1]))
    moved = [a - b for a, b in zip(with_all, without, strict=True)]
    assert sum(map(abs, moved)) <= UNITS and min(moved) >= 0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=30))
def test_a_patient_is_one_whole_over_its_rows(rows):
    patients, places = (torch.tensor(column) for column in zip(*rows, strict=True))
    table = patients_by(patients, places, 4)
    assert len(table) == len(patients.unique()) and torch.allclose(table.sum(1), torch.ones(len(table)).double())


@pytest.mark.parametrize("parts", [(0.5, 0.5), (0.2, 0.3, 0.5), (0.7, 0.1, 0.1, 0.1)])
@pytest.mark.parametrize("scale", [0.5, 1.0, 4.0])
def test_a_patient_in_parts_costs_at_most_as_much_as_one_count_that_moves_by_one(parts, scale):
    """Delta at several epsilons, by convolution of the losses of all counts, against the mechanism that is charged."""
    step, width = 1e-3, int(8 / scale / 1e-3) + 1
    losses = (np.arange(2 * width + 1) - width) * step
    whole = np.zeros_like(losses)
    whole[width] = 1.0
    for part in parts:
        cdf = Laplace(scale / part).loss(-np.inf, np.inf).cdf(losses)
        whole = np.convolve(whole, np.diff(cdf, prepend=0.0), mode="full")[width:-width]
    single = np.diff(Laplace(scale).loss(-np.inf, np.inf).cdf(losses), prepend=0.0)
    for epsilon in (0.0, 0.1, 0.5, 0.9):
        gained = np.clip(1 - np.exp(epsilon / scale - losses), 0, None)
        assert (whole * gained).sum() <= (single * gained).sum() + 4 * step


def test_a_release_that_no_noise_was_made_for_is_refused():
    with pytest.raises(SettingsError, match="include them in the job's cost"):
        released_counts(torch.ones(3, 2) / 2, None, RepeatableRandomness(0))


def test_private_counts_are_near_the_true_ones_and_noisy():
    method = create("statistics", {"by": ["answer"]}, DPSettings(epsilon=1.0))
    tables = [counts(method, yes=300, no=100, seed=seed)["answer"] for seed in range(8)]
    assert np.mean([table["yes"] for table in tables]) == pytest.approx(300, abs=12)
    assert len({table["yes"] for table in tables}) == 8 and not float(tables[0]["yes"]).is_integer()


def ran(tmp_path: Path, **settings) -> dict:
    job = mv.Job("statistics", by=["organ", "answer_type"], **settings)
    mv.run(job, mv.load("phantom"), out=tmp_path / "run")
    return json.loads((tmp_path / "run" / "results.json").read_text())


def test_a_job_counts_in_clear_and_only_counts_leave(tmp_path, plots):
    results = ran(tmp_path)
    statistics = results["statistics"]
    assert set(statistics) == {"chest", "abdomen", "head"} and statistics["head"]["organ"]["head"] >= 10
    assert statistics["head"]["organ"]["chest"] == 0
    log = read(tmp_path / "run" / "sites" / "head" / "audit")
    released = {tensor.name for entry in log if entry.event is Event.RELEASE for tensor in entry.tensors}
    assert released == {"organ", "answer_type"}
    assert "organ: head" in (tmp_path / "run" / "table.md").read_text()
    assert (tmp_path / "run" / "plots" / "statistics.png").stat().st_size > 5000


def test_on_shares_the_server_learns_the_sums_over_all_sites_alone(tmp_path):
    clear = ran(tmp_path / "clear")["statistics"]
    shares = ran(tmp_path / "shares", secagg="masks")["statistics"]
    assert list(shares) == ["all sites"]
    for table, categories in shares["all sites"].items():
        for name, number in categories.items():
            assert number == pytest.approx(sum(site[table][name] for site in clear.values()), abs=1e-6)


def test_a_private_job_is_charged_what_it_asked_for(tmp_path):
    results = ran(tmp_path, dp={"epsilon": 0.5})
    spent = results["rounds"][0]["epsilon"].values()
    assert [after for _, after in spent] == pytest.approx([0.5] * 3, abs=0.01)
    log = read(tmp_path / "run" / "sites" / "head" / "audit")
    charged = [entry.dp_event for entry in log if entry.dp_event]
    assert len(charged) == 1 and charged[0]


@pytest.mark.parametrize("by", [["question"], ["answer", "patient"]])
def test_free_text_is_refused(by):
    with pytest.raises(ConfigError, match="free text"):
        create("statistics", {"by": by})


def test_a_site_with_larger_groups_than_the_job_s_refuses_it(tmp_path, sites):
    facts = {"method": "statistics", "options": {"by": ["organ"]}, "data": "phantom", "backbone": TINY}
    for least, refused in ((10, False), (11, True)):
        configs = sites("chest", "abdomen", methods=["statistics"], min_count=least)
        job = JobSpec.from_dict(facts)
        with closing(LocalEngine(configs, job, "job")) as engine:
            if refused:
                with pytest.raises(FederationError, match="stopped the job"):
                    serve_job(job, tuple(configs), engine.call, tmp_path / f"out-{least}", "local")
            else:
                serve_job(job, tuple(configs), engine.call, tmp_path / f"out-{least}", "local")
