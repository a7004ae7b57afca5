"""How a study divides rows: whole patients, the same for every system, and no row lost or doubled."""

import pytest
import torch

from medfedvqa.data import Examples, SiteData, Split, load_site
from medfedvqa.errors import ConfigError
from medfedvqa.research.benchmark.single_run import EVERY, Regime, fewer_rows, hospitals, newcomer


@pytest.fixture(scope="module")
def site() -> SiteData:
    return load_site("phantom", None, "site-001", Split())


def patients(rows: Examples) -> set[int]:
    return set(rows.patients.tolist())


def test_a_share_of_the_rows_is_of_whole_patients_and_grows(site: SiteData) -> None:
    """Each share holds all rows of its patients, the patients of smaller shares, and as many rows as it says."""
    most = int(torch.bincount(site.train.patients).max())
    before: set[int] = set()
    for share in (0.1, 0.25, 0.5, 1.0):
        fewer = fewer_rows(site, share)
        kept = patients(fewer.train)
        assert before <= kept and len(fewer.train) == sum(each in kept for each in site.train.patients.tolist())
        assert share * len(site.train) <= len(fewer.train) < share * len(site.train) + most
        assert fewer.test is site.test and fewer.validate is site.validate
        before = kept
    assert fewer.train.questions == site.train.questions


def test_a_newcomer_has_so_many_labelled_patients(site: SiteData) -> None:
    """Every fourth validates; the first are those of every larger number; none has no labelled row, all has all."""
    three, five, none = (newcomer(site, count) for count in (3, 5, 0))
    assert (len(patients(three.train)), len(three.validate)) == (3, 0) and patients(three.train) < patients(five.train)
    assert (len(patients(five.train)), len(patients(five.validate))) == (4, 1)
    assert five.trained_patients == {site.patients[each] for each in patients(five.train) | patients(five.validate)}
    assert len(none.train) == len(none.validate) == 0 and none.test is site.test
    assert newcomer(site, EVERY) is site


def test_others_train_before_a_hospital_joins(site: SiteData) -> None:
    """All but itself, and where its organ is new, all but its organ's."""
    regime = Regime(hospitals=2, joining=2)
    sites = dict.fromkeys(regime.sites(("site-001", "site-002")), site)
    assert [*regime.others("site-001-2", sites)] == ["site-001-1", "site-002-1", "site-002-2"]
    new = Regime(hospitals=2, joining=2, new_organ=True)
    assert [*new.others("site-001-2", sites)] == ["site-002-1", "site-002-2"]
    assert [*Regime(joining=2, new_organ=True).others("chest", {"chest": site, "head": site})] == ["head"]
    assert regime.name != new.name and "all labelled" in Regime(joining=EVERY).name


@pytest.mark.parametrize("count", [2, 3])
def test_hospitals_share_out_an_organs_patients(site: SiteData, count: int) -> None:
    """Each row of each part is at one hospital, with its own picture; hospitals are alike in size."""
    parts = hospitals(site, count)
    assert [each.organ for each in parts] == [f"site-001-{number}" for number in range(1, count + 1)]
    for number in range(3):
        rows = [each.parts[number] for each in parts]
        whole = site.parts[number]
        assert sum(map(len, rows)) == len(whole)
        assert sorted(q for each in rows for q in each.questions) == sorted(whole.questions)
    owners = [set().union(*map(patients, each.parts)) for each in parts]
    assert sum(map(len, owners)) == len(set().union(*owners))
    assert max(map(len, owners)) - min(map(len, owners)) <= 3
    first = parts[0]
    assert len(first.pictures) < len(site.pictures) and first.patients == site.patients
    row = site.test.patients.tolist().index(int(first.test.patients[0]))
    mine = first.pictures.chosen([int(first.test.pictures[0])])
    assert torch.equal(mine.load(16), site.pictures.chosen([int(site.test.pictures[row])]).load(16))
    assert first.trained_patients == {site.patients[each] for each in patients(first.train) | patients(first.validate)}


def test_exchanged_labels_are_the_first_hospitals_alone_and_those_it_had(site: SiteData) -> None:
    """The share of its rows may differ, the answers in all are the same; its test rows and the other keep theirs."""
    plain = Regime(hospitals=2).divided({"site-001": site})
    for share in (0.5, 1.0):
        regime = Regime(hospitals=2, mislabelled=share)
        wrong = regime.divided({"site-001": site})
        first, second = plain.values()
        changed, same = wrong.values()
        assert all(torch.equal(a.answers, b.answers) for a, b in zip(second.parts, same.parts, strict=True))
        assert torch.equal(changed.test.answers, first.test.answers)
        differ = int((changed.train.answers != first.train.answers).sum())
        assert 0.1 * len(first.train) < differ <= share * len(first.train)
        assert changed.train.answers.sort().values.tolist() == first.train.answers.sort().values.tolist()
        assert f"{100 * share:g} %" in regime.name


def test_an_unseen_site_lends_one_model_of_all_rows_its_test_rows_alone(site: SiteData) -> None:
    """What it would train on, or choose its best round by, is left out; a site that trains keeps all."""
    sites = {"site-001": site, "site-002": site}
    pooled = Regime(unseen=("site-002",)).pooled(sites)
    assert [len(part) for part in pooled["site-002"].parts] == [0, 0, len(site.test)]
    assert pooled["site-001"] is site and Regime().pooled(sites) == sites
    assert Regime(unseen=("site-002",)).divided(sites)["site-002"].train.questions == site.train.questions


def test_an_organ_with_too_few_patients_is_refused(site: SiteData) -> None:
    """A hospital without test rows would have no accuracy."""
    with pytest.raises(ConfigError, match="too few patients for 500 hospitals"):
        hospitals(site, 500)


def test_sites_and_names_of_regimes() -> None:
    """A plain benchmark is the regime of all rows."""
    assert Regime().name == "all rows" and Regime().sites(["a", "b"]) == ("a", "b")
    assert Regime(unseen=("a", "b")).name == "a and b unseen"
    assert Regime(0.25).name == "25 % of the rows"
    assert Regime(hospitals=2).sites(["a", "b"]) == ("a-1", "a-2", "b-1", "b-2")
