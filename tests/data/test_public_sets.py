"""A public set of one's own: read whole or refused, known by its digest, and learned from in place of the drawn one."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from public_folder import digest_of, write
from typer.testing import CliRunner

from medfedvqa.bounds import PUBLIC_FOLDER
from medfedvqa.cli import app
from medfedvqa.data import held_out_pairs, public_pairs
from medfedvqa.errors import ConfigError, DataError
from medfedvqa.federation.site_config import load_site_config

SMALL = "--rounds 1 --local-epochs 1 --threads 1 -O local_unit=batches -O public_pairs=6"
TESTED = "-O test_pairs=2 -O server_epochs=1"

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Writes a public set of eight pictures; see `public_folder.write`."""
    return lambda name="pairs", questions=True, seed=0, **lines: write(tmp_path / name, 8, questions, seed, **lines)


def test_pairs_and_questions_are_those_of_the_folder(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is learned and what is tested are apart, each with its own questions; pictures are fitted and grey."""
    folder = make()
    monkeypatch.setenv(PUBLIC_FOLDER, str(folder))
    learned = public_pairs(6, digest_of(folder))
    tested = held_out_pairs(2, digest_of(folder), 6)
    assert learned.captions[5] == "a film, the 5th" and tested.captions == ("a film, the 6th", "a film, the 7th")
    assert learned.questions.pictures == (0, 1, 2, 3, 4, 5) and tested.questions.pictures == (0, 1)
    assert tested.questions.answers == ("no", "yes")
    pictures = learned.pictures(32)
    assert pictures.shape == (6, 1, 32, 32) and 0 <= pictures.min() < pictures.max() <= 1
    assert not torch.equal(pictures[:2], tested.pictures(32))
    with pytest.raises(ConfigError, match="has 8 pictures, of which the job needs 9"):
        held_out_pairs(3, digest_of(folder), 6)


def test_whatever_changes_in_the_folder_makes_another_set(make: Make) -> None:
    """A pixel, a caption, a question, the order of lines: all parties have the same one or do not train."""
    folder = make()
    before = digest_of(folder)
    assert digest_of(make("again")) == before != digest_of(make("other", seed=1))
    for name, old, new in (
        ("pairs.csv", "the 3th", "the 4th"),
        ("questions.csv", "Is there a mass?,yes", "Is there a mass?,no"),
    ):
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace(old, new, 1))
        assert digest_of(folder) != before
        (folder / name).write_text(text)
    head, *lines = (folder / "pairs.csv").read_text().splitlines()
    (folder / "pairs.csv").write_text("\n".join([head, *lines[::-1]]))
    assert digest_of(folder) != before


def test_a_party_without_the_jobs_set_refuses(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder named, or another one."""
    digest = digest_of(make())
    monkeypatch.delenv(PUBLIC_FOLDER, raising=False)
    with pytest.raises(ConfigError, match="a public set that this machine lacks"):
        public_pairs(4, digest)
    monkeypatch.setenv(PUBLIC_FOLDER, str(make("other", seed=1)))
    with pytest.raises(ConfigError, match="is not the job's"):
        public_pairs(4, digest)


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ({"pair": "pictures/0.png,again"}, "names a picture twice"),
        ({"pair": "pictures/9.png,absent"}, "line 10: the folder lacks this picture"),
        ({"pair": "../pairs/pictures/0.png,above"}, "line 10: the folder lacks this picture"),
        ({"pair": "pictures/9.png"}, "pairs.csv, line 10: this line needs picture, caption"),
        ({"pair": f"pictures/9.png,{'long ' * 500}"}, "pairs.csv, line 10: this line needs"),
        ({"question": "pictures/9.png,Is there a mass?,yes"}, "asks about a picture"),
        (
            {"question": "pictures/0.png,Is there a mass?,"},
            "questions.csv, line 10: this line needs picture, question, answer",
        ),
    ],
)
def test_a_folder_with_a_fault_is_refused_by_the_line(lines: dict[str, str], sentence: str, make: Make) -> None:
    """Before anything is trained."""
    with pytest.raises(DataError, match=sentence):
        digest_of(make(**lines))


def test_a_folder_without_captions_is_refused(make: Make) -> None:
    """Questions alone are no public set."""
    folder = make()
    (folder / "pairs.csv").unlink()
    with pytest.raises(DataError, match="has no pairs.csv: give it one with the columns picture, caption"):
        digest_of(folder)


def test_a_site_names_its_folder_in_its_file(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative to `site.yml`, as other places are; the vault, whose environment is empty, knows it by this alone."""
    from medfedvqa.federation.site_config import site_yaml

    digest = digest_of(make())
    monkeypatch.delenv(PUBLIC_FOLDER, raising=False)
    (tmp_path / "site.yml").write_text(
        site_yaml(reader="phantom", organ="chest", methods=["fedmd"], public_set="pairs")
    )
    load_site_config(tmp_path / "site.yml", "chest")
    assert len(public_pairs(4, digest)) == 4
    monkeypatch.setenv(PUBLIC_FOLDER, "")


@pytest.mark.parametrize(
    ("method", "questions"),
    [
        ("creamfl", True),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (("creamfl", False), ("fedmd", True))),
    ],
)
def test_a_run_learns_from_the_folder(
    method: str, questions: bool, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`medfedvqa data check` says what to type; what travels is about the folder's pictures or questions, and another
    folder gives other values. CreamFL needs captions alone."""
    sent = []
    for seed in (0, 1):
        folder, out = make(f"pairs-{seed}", questions, seed), tmp_path / f"run-{seed}"
        monkeypatch.setenv(PUBLIC_FOLDER, str(folder))
        checked = CliRunner().invoke(app, ["data", "check", str(folder)])
        assert checked.exit_code == 0 and f"-O public={digest_of(folder)}" in checked.output
        options = f"{SMALL} {TESTED}" if method == "creamfl" else SMALL
        typed = ["run", method, "--data", "phantom", *options.split(), "-O", f"public={digest_of(folder)}"]
        done = CliRunner().invoke(app, [*typed, "--out", str(out)])
        assert done.exit_code == 0, done.output
        entries = [json.loads(line) for line in (out / "sites/chest/audit/log.jsonl").read_text().splitlines()]
        tensors = [tensor for entry in entries for tensor in entry.get("tensors", ()) if tensor["shape"][:1] == [6]]
        assert tensors
        sent.append({tensor["sha256"] for tensor in tensors})
    assert not sent[0] & sent[1]
