"""The answer space that a site declares in `site.yml`."""

from pathlib import Path

import pytest
import yaml
from in_process import Job, Sites

from medfedvqa.data import CLOSED_ANSWERS
from medfedvqa.errors import ConfigError
from medfedvqa.federation.site_config import SiteConfig, load_site_config, site_yaml
from medfedvqa.federation.site_runtime import SiteRuntime


def loaded(folder: Path, **facts: object) -> SiteConfig:
    """The configuration of a site whose `site.yml` says this."""
    path = folder / "site.yml"
    path.write_text(site_yaml(reader="phantom", organ="chest", methods=["prompt_pfl"], **facts), encoding="utf-8")
    return load_site_config(path, "chest")


def test_a_site_that_declares_nothing_has_no_list(tmp_path: Path) -> None:
    """The template writes null; a file of an older version lacks the key and loads alike."""
    assert loaded(tmp_path).data.answers is None
    raw = yaml.safe_load((tmp_path / "site.yml").read_text())
    del raw["data"]["answers"]
    (tmp_path / "site.yml").write_text(yaml.safe_dump(raw))
    assert load_site_config(tmp_path / "site.yml", "chest").data.answers is None


def test_closed_stands_for_the_bundled_list(tmp_path: Path) -> None:
    """A hospital need not copy 48 answers."""
    assert loaded(tmp_path, answers="closed").data.answers == CLOSED_ANSWERS


def test_a_list_is_taken_as_it_is_written(tmp_path: Path) -> None:
    """In its order, and with the words that YAML would read as something else in quotes."""
    assert loaded(tmp_path, answers=["yes", "no", "left side"]).data.answers == ("yes", "no", "left side")
    assert "answers: ['yes', 'no', left side]" in (tmp_path / "site.yml").read_text()


@pytest.mark.parametrize(
    "answers",
    ["open", ["SECRET"], ["secret", "secret"], ["Secret", "no"], [True, False], [1, 2], {"secret": 1}, 7, []],
)
def test_a_malformed_list_stops_the_site_and_is_not_quoted(tmp_path: Path, answers: object) -> None:
    """One sentence that names the key; bare yes and no, which YAML reads as true and false, are refused too."""
    with pytest.raises(ConfigError, match=r"data\.answers") as error:
        loaded(tmp_path, answers=answers)
    assert "secret" not in str(error.value).lower()


def test_bare_yes_and_no_are_told_to_be_quoted(tmp_path: Path) -> None:
    """The mistake that everybody makes first gets the advice that mends it."""
    with pytest.raises(ConfigError, match="yes, no and numbers need quotes"):
        loaded(tmp_path, answers=[True, False])


def test_a_declared_list_is_the_answer_space_of_a_running_site(sites: Sites, quick_job: Job) -> None:
    """From `site.yml` to the site's data; another site, which declares none, keeps the answers of its rows."""
    site = SiteRuntime(sites("chest", answers="closed")["chest"], quick_job(), "job").site.data
    assert site.public_answers and site.answers == CLOSED_ANSWERS
    plain = SiteRuntime(sites("head")["head"], quick_job(), "job").site.data
    assert not plain.public_answers and plain.answers != CLOSED_ANSWERS


def test_a_site_trains_on_the_rows_that_its_list_answers(sites: Sites, quick_job: Job) -> None:
    """Rows outside are left out of training, as they are with a shared head, and do not stop it."""
    runtime = SiteRuntime(sites("chest", answers=["yes", "no"])["chest"], quick_job(), "job")
    answers = runtime.site.data.train.answers
    assert answers.min() == -1 and answers.max() == 1
    assert set(runtime.handle("start", 1, {})) >= {"prompt.image", "prompt.text"}
