"""Cuts of a set into sites other than by organ: patients whole, no site empty, and named in results."""

from collections import Counter
from pathlib import Path

import pytest
import torch

import medfedvqa as mv
from medfedvqa.data import Row, Split, VQAData, load_site, read, register_reader
from medfedvqa.data.site_cuts import Cut, sites_of
from medfedvqa.errors import ConfigError
from medfedvqa.library.training_job import check_site_names

CUTS = ["question-type", "halves:4", "dirichlet:0.5:4", "quantity:1:3", "halves:2"]


def small_set(kinds: tuple[str, ...] = ("a", "b")) -> VQAData:
    """Two organs, 40 patients with a row of each kind in one part."""
    rows = [
        Row(2 * p + k, ("lung", "liver")[p % 2], "train" if p % 4 else "test", True, f"q{p}{kind}",
            "yes" if p % 3 else "no", f"patient {p}", Path(f"{p}.png"), kind, ("CT", "X-Ray")[p % 2])
        for p in range(40) for k, kind in enumerate(kinds)
    ]  # fmt: skip
    return VQAData("small", ("liver", "lung"), rows, lambda row, size: torch.zeros(1, size, size))


@pytest.mark.parametrize("text", CUTS)
def test_a_patient_is_at_one_site_and_each_site_trains_and_tests(text: str) -> None:
    """On the drawn set, by the names that a run gives its sites; at random, no row is lost."""
    cut = Cut.of(text)
    sites = sites_of(cut, "phantom", None)
    data = [load_site("phantom", None, site, Split(), 0) for site in sites]
    patients = [{each.patients[int(n)] for part in each.parts for n in part.patients} for each in data]
    assert sum(map(len, patients)) == len(set.union(*patients))
    assert all(len(each.train) and len(each.test) for each in data) and [each.organ for each in data] == list(sites)
    assert all(Cut.of_site(site) is not None for site in sites)
    rows, every = sum(len(part) for each in data for part in each.parts), read("phantom", None)
    if cut.kind == "question-type":
        types = {row.question: row.question_type for row in every.rows}
        for site, each in zip(sites, data, strict=True):
            assert {types[question] for part in each.parts for question in part.questions} == {
                site.removeprefix("type-").replace("-", " ")
            }
    else:
        assert rows == len(every.rows)


def test_modality_is_that_of_the_rows() -> None:
    """And a set whose rows name none is refused with what to do."""
    data = small_set()
    cut = Cut.of("modality").divided(data, Split())
    assert cut.organs == ("modality-ct", "modality-x-ray")
    assert Counter(row.organ for row in cut.rows) == {"modality-ct": 40, "modality-x-ray": 40}
    with pytest.raises(ConfigError, match="no row of phantom names its modality: cut the set in another way"):
        mv.load("phantom", sites="modality").sites  # noqa: B018


def test_a_small_alpha_makes_sites_unlike_and_a_large_one_alike() -> None:
    """Dirichlet by organ and by quantity, each against 100 times its concentration."""
    data = small_set()

    def spread(text: str, key: str) -> float:
        total = 0.0
        for seed in range(12):
            rows = Cut.of(text).divided(data, Split(seed=seed)).rows
            organs = {row.patient: row.organ for row in data.rows}
            sizes = Counter(row.organ for row in rows)
            lungs = Counter(row.organ for row in rows if organs[row.patient] == "lung")
            shares = [lungs[site] / sizes[site] if key == "organ" else sizes[site] / len(rows) for site in sizes]
            total += max(shares) - min(shares)
        return total / 12

    assert spread("dirichlet:0.3:2", "organ") > 2 * spread("dirichlet:100:2", "organ")
    assert spread("quantity:0.3:2", "size") > 2 * spread("quantity:100:2", "size")
    assert spread("quantity:0.3:2", "organ") < spread("dirichlet:0.3:2", "organ")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("dirichlet:0.01:40", "leaves a site without training or test rows in 100 draws: ask for fewer sites"),
        ("quantity:0.01:40", "leaves a site without training or test rows in 100 draws: ask for fewer sites"),
        ("halves:41", "leaves a site without training or test rows: ask for fewer sites"),
        ("dirichlet", "is not a cut of data into sites: write one of organ, hospital:N"),
        ("dirichlet:0", "is not a cut of data into sites"),
        ("dirichlet:.", "is not a cut of data into sites"),
        ("halves:0", "a cut must have 1 to 99 sites"),
        ("halves", "is not a cut"),
        ("organ:2", "is not a cut"),
    ],
)
def test_a_cut_that_cannot_be_is_refused_in_a_sentence(text: str, sentence: str) -> None:
    """One that leaves a site empty, and one that is none."""
    with pytest.raises(ConfigError, match=sentence):
        Cut.of(text).divided(small_set(), Split())


def test_a_kind_without_test_rows_is_refused_by_name() -> None:
    """The others run when they are named alone."""
    rows = [*small_set(("a",)).rows, *(Row(99, "lung", "train", True, "q", "no", "x", Path("x.png"), "rare"),)]
    data = VQAData("rare-set", ("liver", "lung"), rows, lambda row, size: torch.zeros(1, size, size))
    register_reader("rare-set", lambda root: data)
    with pytest.raises(ConfigError, match="'question-type' leaves 'type-rare' without training or test rows"):
        load_site("rare-set", Path(), "type-rare", Split())
    assert len(load_site("rare-set", Path(), "type-a", Split()).train)
    with pytest.raises(ConfigError, match="unknown site 'type-colour'|no site 'type-colour'"):
        check_site_names("rare-set", Path(), ("type-colour",))


@pytest.mark.slow
def test_a_run_names_its_cut_and_both_options_are_one_too_many(tmp_path: Path) -> None:
    """Results have a site for each of the cut, under names that say it."""
    data = mv.load("phantom", sites="dirichlet:0.5:2")
    job = mv.Job("local", rounds=1, local_epochs=1, tuning="classifier", hidden=8)
    results = mv.run(job, data, out=tmp_path / "run")
    assert results.sites.keys() == {"dirichlet-0p5-1of2", "dirichlet-0p5-2of2"}
    with pytest.raises(ConfigError, match="write sites as 'hospital:2'"):
        mv.load("phantom", hospitals=2, sites="modality")
