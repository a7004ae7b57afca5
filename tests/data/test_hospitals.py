"""Several hospitals of one organ."""

from pathlib import Path

import pytest

import medfedvqa as mv
from medfedvqa.data import Split, load_site
from medfedvqa.data.site_cuts import Hospital, named, names
from medfedvqa.errors import ConfigError


@pytest.mark.parametrize("count", [2, 3])
def test_the_patients_of_an_organ_are_dealt_out_whole_and_all_of_them(count: int) -> None:
    """Each patient, and so each row, is at one hospital; and each hospital trains, validates and tests."""
    whole = load_site("phantom", None, "chest", Split(), 0)
    parts = [load_site("phantom", None, site, Split(), 0) for site in names(["chest"], count)]
    owners = [{part.patients[number] for rows in part.parts for number in rows.patients.tolist()} for part in parts]
    assert sum(map(len, owners)) == len(set.union(*owners)) == len(whole.patients)
    for place, rows in enumerate(whole.parts):
        dealt = [part.parts[place] for part in parts]
        assert sorted(question for each in dealt for question in each.questions) == sorted(rows.questions)
        assert all(map(len, dealt))
    assert {part.organ for part in parts} == set(names(["chest"], count))
    assert {part.answers for part in parts} == {whole.answers}


def test_a_hospital_has_a_name_that_says_which_it_is() -> None:
    """And a name that says something else is that of an organ."""
    assert named("lung-2of3") == Hospital("lung", 2, 3) and named("lung-2of3").name == "lung-2of3"
    assert [named(name) for name in ("lung", "lung-3of2", "lung-0of2", "-1of2")] == [None] * 4
    assert names(["lung"], 1) == ("lung",)


def test_the_library_trains_at_the_hospitals_of_each_organ(tmp_path: Path) -> None:
    """`hospitals` of a data set is the number of sites of each organ, in its counts and in a run."""
    data = mv.load("phantom", hospitals=2)
    assert len(data.sites) == 2 * len(data.organs) and data.counts().keys() == {*data.sites}
    job = mv.Job("local", rounds=1, local_epochs=1, tuning="classifier", hidden=8)
    assert mv.run(job, data, out=tmp_path / "run").sites.keys() == {*data.sites}


def test_more_hospitals_than_an_organ_has_patients_are_refused() -> None:
    """With the organ's name and what to do; and no number of hospitals is below 1."""
    with pytest.raises(ConfigError, match="'chest' has too few patients for 99 hospitals: choose fewer"):
        load_site("phantom", None, "chest-1of99", Split(), 0)
    with pytest.raises(ConfigError, match="a cut must have 1 to 99 sites"):
        mv.load("phantom", hospitals=0)
