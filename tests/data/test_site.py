"""From rows to tensors."""

from pathlib import Path

import pytest
import torch

from medfedvqa.data import CLOSED_ANSWERS, Row, Split, VQAData, build_site, load_site, united
from medfedvqa.errors import DataError

FACTS = [  # split, answer, patient, image
    ("train", "Yes", "a", "1"),
    ("train", "no", "a", "1"),
    ("train", " LEFT  side", "b", "2"),
    ("test", "yes", "a", "1"),
    ("test", "Left side?", "c", "3"),
    ("test", "unheard of", "c", "4"),
]


def site_of(
    facts: list[tuple[str, str, str, str]], load: object = None, answers: tuple[str, ...] | None = None
) -> object:
    rows = [
        Row(index, "chest", split, True, f"Question {index}?", answer, patient, Path(image))
        for index, (split, answer, patient, image) in enumerate(facts)
    ]
    data = VQAData("made", ("chest",), rows, load) if load else VQAData("made", ("chest",), rows)
    return build_site(data, "chest", Split(validation=0.0), answers)


def test_answers_are_folded_sorted_and_come_from_train_alone() -> None:
    site = site_of(FACTS)
    assert site.answers == ("left side", "no", "yes")
    assert site.train.answers.tolist() == [2, 1, 0]


def test_an_answer_unknown_to_train_is_minus_one() -> None:
    assert site_of(FACTS).test.answers.tolist() == [2, 0, -1]


def test_a_declared_list_is_the_answer_space_whatever_the_rows_say() -> None:
    """In its own order; rows are folded to find their answer, and those outside get -1 in train too."""
    site = site_of(FACTS, answers=("unheard of", "yes", "left side"))
    assert site.public_answers and site.answers == ("unheard of", "yes", "left side")
    assert site.train.answers.tolist() == [1, -1, 2] and site.test.answers.tolist() == [1, 2, 0]
    assert site.train.answered.questions == ("Question 0?", "Question 2?")
    assert site.trained_patients == {"a", "b"}


def test_a_list_made_of_rows_is_not_public() -> None:
    """Nothing that is drawn from patients may pass for declared."""
    assert not site_of(FACTS).public_answers and not load_site("phantom", None, "chest", Split()).public_answers


@pytest.mark.parametrize("answers", [("yes",), ("yes", "yes"), ("Yes", "no"), ()])
def test_a_bad_declared_list_is_refused(answers: tuple[str, ...]) -> None:
    """The same rule as for the list of a job, as an error of the site's data that quotes no answer."""
    with pytest.raises(DataError, match="at least two answers, each once"):
        site_of(FACTS, answers=answers)


def test_a_declared_list_that_fits_no_train_row_makes_a_site_without_answered_rows() -> None:
    """Whether any patient has one of the answers is not for an error to tell: see `Method.check_rows`."""
    assert not len(site_of(FACTS, answers=("benign", "malignant")).train.answered)


def test_a_declared_list_reaches_a_loaded_site() -> None:
    """By `load_site`, with the bundled list."""
    site = load_site("phantom", None, "chest", Split(), 0, CLOSED_ANSWERS)
    plain = load_site("phantom", None, "chest", Split(), 0)
    assert site.answers == CLOSED_ANSWERS and site.public_answers
    for part, same in zip(site.parts, plain.parts, strict=True):
        assert [site.answers[a] for a in part.answers] == [plain.answers[a] for a in same.answers]


def test_united_sites_have_a_public_list_only_if_each_has_one() -> None:
    """In the order of the declared lists, the same list if all declare the same; else sorted and not public."""
    declared = [load_site("phantom", None, name, Split(), 0, CLOSED_ANSWERS) for name in ("site-001", "site-002")]
    union = united(declared)
    assert union.public_answers and union.answers == CLOSED_ANSWERS
    mixed = united([declared[0], load_site("phantom", None, "site-002", Split(), 0)])
    assert not mixed.public_answers and mixed.answers == tuple(sorted(CLOSED_ANSWERS))


def test_pictures_and_patients_are_numbered_alike_in_all_parts() -> None:
    site = site_of(FACTS)
    assert site.train.pictures.tolist() == [0, 0, 1] and site.test.pictures.tolist() == [0, 2, 3]
    assert site.train.patients.tolist() == [0, 0, 1] and site.test.patients.tolist() == [0, 2, 2]
    assert len(site.pictures) == 4 and (len(site.train), len(site.validate), len(site.test)) == (3, 0, 3)


def test_empty_parts_have_empty_integer_tensors() -> None:
    validate = site_of(FACTS).validate
    assert len(validate) == 0 and validate.answers.dtype == validate.pictures.dtype == torch.int64


def test_each_picture_is_drawn_once_and_only_when_asked_for() -> None:
    asked: list[tuple[Path, int]] = []

    def load(row: Row, size: int) -> torch.Tensor:
        asked.append((row.image, size))
        return torch.full((1, size, size), float(row.image.name))

    pictures = site_of(FACTS, load).pictures
    assert asked == []
    first = pictures.load(4)
    assert first[:, 0, 0, 0].tolist() == [1, 2, 3, 4] and first.shape == (4, 1, 4, 4)
    assert asked == [(Path(name), 4) for name in "1234"]


def test_questions_stay_as_published() -> None:
    assert site_of(FACTS).train.questions == ("Question 0?", "Question 1?", "Question 2?")


@pytest.mark.parametrize("part", ["train", "validate", "test"])
def test_tensors_have_a_row_for_each_question(part: str) -> None:
    examples = getattr(site_of(FACTS), part)
    assert len(examples.questions) == len(examples.answers) == len(examples.pictures) == len(examples.patients)


@pytest.mark.parametrize("nobody", ["", "  "])
def test_a_row_without_a_patient_is_refused_by_its_index(nobody: str) -> None:
    """Nobody could be protected by it: the unit of privacy is the patient."""
    with pytest.raises(DataError, match="row 7 names no patient"):
        Row(7, "chest", "train", True, "SECRET?", "SECRET", nobody, Path("SECRET.jpg"))


def test_the_cohort_is_everybody_whose_rows_a_model_is_trained_or_chosen_by() -> None:
    """Test patients are asked, and tell nothing."""
    assert site_of(FACTS).trained_patients == {"a", "b"}


def test_united_sites_keep_their_rows_patients_pictures_and_answers() -> None:
    """Row by row the same question, answer and pixels; no patient or picture of two sites is taken for one."""
    sites = [load_site("phantom", None, name, Split(), 0) for name in ("site-001", "site-002")]
    union = united(sites)
    assert len(union.pictures) == sum(len(site.pictures) for site in sites)
    pixels, own = union.pictures.load(16), [site.pictures.load(16) for site in sites]
    for number, part in enumerate(union.parts):
        first = 0
        for site, theirs in zip(sites, own, strict=True):
            rows = site.parts[number]
            mine = part.chosen(torch.arange(first, first + len(rows)))
            first += len(rows)
            assert mine.questions == rows.questions
            assert [union.answers[a] for a in mine.answers] == [site.answers[a] for a in rows.answers]
            assert torch.equal(pixels[mine.pictures], theirs[rows.pictures])
    patients = set(union.train.patients[: len(sites[0].train)].tolist())
    assert not patients & set(union.train.patients[len(sites[0].train) :].tolist())
    for keys in ("patients", "trained_patients"):
        named = [f"{site.organ}/{key}" for site in sites for key in getattr(site, keys)]
        assert sorted(getattr(union, keys)) == sorted(named) and len(set(named)) == len(named)
    numbers = torch.cat([part.patients for part in union.parts]).unique()
    assert numbers.tolist() == list(range(len(union.patients)))


def test_a_single_row_takes_its_own_picture_with_it() -> None:
    site = load_site("phantom", None, "site-001", Split(), 0)
    one = site.only("train", 3)
    assert (len(one.train), len(one.validate), len(one.test), len(one.pictures)) == (0, 0, 1, 1)
    assert one.test.questions[0] == site.train.questions[3]
    assert torch.equal(one.pictures.load(16)[0], site.pictures.load(16)[site.train.pictures[3]])
    with pytest.raises(DataError, match="numbered from 0"):
        site.only("test", len(site.test))
