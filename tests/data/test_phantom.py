"""The phantom set: the picture answers every question, and its words answer none."""

from collections import Counter
from statistics import mean

import pytest
import torch

from medfedvqa.data import Examples, SiteData, Split, load_site, organs, phantom, read
from medfedvqa.errors import DataError
from medfedvqa.evaluation.accuracy import majority_correct, question_prior_correct

ORGANS = ("chest", "abdomen", "head")
PARTS = ("train", "validate", "test")
PATIENTS = {"chest": (52, 8, 20), "abdomen": (47, 7, 18), "head": (42, 6, 16)}
KINDS = {
    words.format(anatomy=anatomy, organ=organ): kind
    for kind, question in phantom.QUESTIONS.items()
    for words in question.wordings
    for anatomy, organ in phantom.ENLARGED.items()
}
"""What each wording asks about."""


@pytest.fixture(scope="module")
def sites() -> dict[str, SiteData]:
    """The three sites; their pictures are drawn once for all tests."""
    return {organ: load_site("phantom", None, organ, Split()) for organ in ORGANS}


@pytest.fixture(params=ORGANS)
def site(sites: dict[str, SiteData], request: pytest.FixtureRequest) -> SiteData:
    return sites[request.param]


def parts(site: SiteData) -> tuple[Examples, Examples, Examples]:
    return site.train, site.validate, site.test


# Where, in -1..1 of the picture's side, an enlarged organ reaches and a normal one does not, and whether it is
# brighter there than what is behind it. No mass reaches these places.
REACH = {"chest": ((0.0, 0.6), True, 0.64), "abdomen": ((0.0, 0.74), False, 0.34), "head": ((0.04, 0.24), False, 0.36)}


def look(grey: torch.Tensor, anatomy: str) -> dict[str, str | None]:
    """Every kind of question answered from one picture, [128, 128], by thresholds alone."""
    bright = grey > 0.88
    rows, columns = bright.sum(1) > 1, bright.sum(0) > 1
    found: dict[str, str | None] = {"mass": "yes" if bright.sum() > 40 else "no"}
    if found["mass"] == "yes":
        where = torch.nonzero(columns).flatten()
        top, bottom = torch.nonzero(rows).flatten()[[0, -1]].tolist()
        left, right = where[[0, -1]].tolist()
        found["side"] = "left" if left + right < 127 else "right"
        found["on left"] = "yes" if found["side"] == "left" else "no"
        found["size"] = "large" if right - left > 32 else "small"
        found["tone"] = "dark" if (grey[top:bottom, left:right] < 0.15).float().mean() > 0.05 else "bright"
        found["count"] = "two" if rows.diff().sum() > 2 else "one"
    (x, y), brighter, threshold = REACH[anatomy]
    row, column = (round((place + 1) * 64) for place in (y, x))
    level = mean(float(grey[row - 1 : row + 2, middle - 1 : middle + 2].mean()) for middle in {column, 128 - column})
    found["enlarged"] = "yes" if (level > threshold) == brighter else "no"
    return found


def test_the_picture_answers_every_kind_of_question(site: SiteData) -> None:
    """Thresholds on the pixels answer at least 95 % of each kind right."""
    seen = [look(picture[0], site.organ) for picture in site.pictures.load(128)]
    right: dict[str, list[bool]] = {}
    for part in parts(site):
        for question, answer, picture in zip(part.questions, part.answers, part.pictures, strict=True):
            kind = KINDS[question]
            right.setdefault(kind, []).append(seen[picture][kind] == site.answers[answer])
    assert set(right) == set(phantom.SITES[site.organ].questions)
    assert {kind: mean(hits) for kind, hits in right.items() if mean(hits) < 0.95} == {}


def test_the_question_prior_is_right_exactly_half_of_the_time(site: SiteData) -> None:
    assert question_prior_correct(site.train, site.test) * 2 == len(site.test)


def test_the_majority_is_right_less_than_half_of_the_time(site: SiteData) -> None:
    assert majority_correct(site.train.answers, site.test.answers) * 2 < len(site.test)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("organ", ORGANS)
def test_the_question_prior_stays_below_60_percent_in_a_patient_split(organ: str, seed: int) -> None:
    site = load_site("phantom", None, organ, Split("patient", seed), seed)
    assert question_prior_correct(site.train, site.test) <= 0.6 * len(site.test)


def test_each_wording_has_its_two_answers_equally_often_in_each_part(site: SiteData) -> None:
    for part in parts(site):
        counts = Counter(zip(part.questions, part.answers.tolist(), strict=True))
        for question in set(part.questions):
            times = [count for (asked, _), count in counts.items() if asked == question]
            assert len(times) == 2 and times[0] == times[1]


def test_no_question_is_asked_twice_of_a_picture(site: SiteData) -> None:
    for part in parts(site):
        asked = list(zip(part.questions, part.pictures.tolist(), strict=True))
        assert len(set(asked)) == len(asked)


def test_sizes(site: SiteData) -> None:
    """60 to 80 patients a site with two or three pictures each, and about four questions a picture."""
    assert tuple(len(part.patients.unique()) for part in parts(site)) == PATIENTS[site.organ]
    pictures: dict[int, set[int]] = {}
    for part in parts(site):
        for patient, picture in zip(part.patients.tolist(), part.pictures.tolist(), strict=True):
            pictures.setdefault(patient, set()).add(picture)
    assert {len(held) for held in pictures.values()} <= {1, 2, 3}
    assert 2 < len(site.pictures) / len(pictures) < 3
    assert 3 < sum(map(len, parts(site))) / len(site.pictures) < 5
    assert len(site.test) >= 150


def test_parts_share_no_patient_and_no_picture(site: SiteData) -> None:
    for key in ("patients", "pictures"):
        train, validate, test = (set(getattr(part, key).tolist()) for part in parts(site))
        assert not train & validate and not train & test and not validate & test


def test_sites_differ_in_answers_questions_and_findings(sites: dict[str, SiteData]) -> None:
    assert len({site.answers for site in sites.values()}) == 3
    mixes = [Counter(KINDS[question] for question in site.train.questions) for site in sites.values()]
    assert len({frozenset(mix.items()) for mix in mixes}) == 3
    assert all({"mass", "enlarged"} <= set(mix) for mix in mixes)
    dark = {}
    for organ, site in sites.items():
        tones = [look(picture[0], organ).get("tone") for picture in site.pictures.load(128)]
        dark[organ] = tones.count("dark") / (tones.count("dark") + tones.count("bright"))
    assert dark["chest"] < 0.25 < dark["abdomen"] < 0.6 < dark["head"]


def test_a_site_is_the_same_alone_and_among_others() -> None:
    alone, among = read("phantom", None, "head"), read("phantom", None)
    others = [row for row in among.rows if row.organ == "head"]
    assert [(row.question, row.answer, row.patient) for row in alone.rows] == [
        (row.question, row.answer, row.patient) for row in others
    ]
    assert torch.equal(alone.load(alone.rows[0], 128), among.load(others[0], 128))


def test_the_seed_draws_the_set() -> None:
    first, again, other = (read("phantom", None, "chest", seed) for seed in (1, 1, 2))
    assert list(first.rows) == list(again.rows) != list(other.rows)
    drawn = [torch.stack([data.load(row, 32) for row in data.rows[:20]]) for data in (first, again, other)]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_pictures_come_in_any_size_in_0_to_1() -> None:
    data = read("phantom", None, "abdomen")
    for size in (32, 128, 224):
        picture = data.load(data.rows[0], size)
        assert picture.shape == (1, size, size) and picture.dtype == torch.float32
        assert picture.min() >= 0 and picture.max() <= 1


def test_the_default_sites_are_the_three_organs() -> None:
    assert organs("phantom", None) == phantom.organs(3) == ORGANS
    assert phantom.organs(2) == ORGANS[:2]


def test_a_hundred_simulated_sites_are_small_and_all_can_train() -> None:
    """At most 36 pictures each (2.4 MB at 128 pixels), rows in every part, no two sites alike."""
    sites = [load_site("phantom", None, name, Split()) for name in phantom.organs(100)]
    assert len({site.organ for site in sites}) == 100
    for site in sites:
        assert len(site.pictures) <= 36 and min(map(len, parts(site))) > 0 and len(site.answers) >= 2
        assert question_prior_correct(site.train, site.test) <= 0.6 * len(site.test)
    assert len({site.train.questions for site in sites}) == 100


@pytest.mark.parametrize("name", ["site-1", "site-", "site-001x", "foot", "Chest", ""])
def test_an_unknown_organ_is_refused(name: str) -> None:
    with pytest.raises(DataError, match="unknown organ; phantom has chest, abdomen, head, or site-001"):
        phantom.read((name,))
