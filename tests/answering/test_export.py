"""An exported folder: it answers as the site does, without this project; who may write it; what stands in it."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from answering.conftest import QUESTIONS
from PIL import Image
from safetensors.torch import load_file

from audits import Event, SitePolicy, read
from medfedvqa.answering.answerer import Answerer
from medfedvqa.answering.export import CARD, WEIGHTS, byte_pairs, check_allowed, coverage_of, export
from medfedvqa.answering.kept_run import KeptRun, load_kept
from medfedvqa.answering.standalone import ExportedModel, grey_picture
from medfedvqa.core.kept_model import KEPT
from medfedvqa.errors import ConfigError
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import plan, run
from medfedvqa.models.bundled import ShortVocabulary

FRESH = """
import json, runpy, sys
from pathlib import Path
for name in ("medfedvqa", "audits", "privacy", "open_clip", "monai", "transformers", "timm", "ftfy", "regex"):
    sys.modules[name] = None
folder, picture, *questions = sys.argv[1:]
program = runpy.run_path(str(Path(folder) / "answer.py"))
import torch
from PIL import Image
model = program["ExportedModel"](Path(folder))
grey = torch.tensor(list(Image.open(picture).tobytes()), dtype=torch.uint8).view(61, 90)
print(json.dumps([model.probabilities(grey, question).tolist() for question in questions]))
"""
"""Answers in a process in which this project and its libraries for models cannot be imported."""


@pytest.fixture(scope="module")
def exported(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one site's model."""
    kept = load_kept(finished, "chest")
    with Answerer(kept) as answerer:
        return export(kept, answerer, tmp_path_factory.mktemp("exports") / "model")


def at_site(finished: Path, picture: Path) -> list[list[float]]:
    """The site's own probabilities of all answers to each question."""
    with Answerer(load_kept(finished, "chest")) as answerer:
        replies = [answerer.ask(picture.read_bytes(), question, 10_000).answers for question in QUESTIONS]
        return [[dict(reply)[answer] for answer in answerer.answering.answers] for reply in replies]


@pytest.mark.slow
def test_a_fresh_process_without_the_project_answers_as_the_site_does(
    exported: Path, finished: Path, picture: Path
) -> None:
    """With torch and safetensors alone, to 1e-5; its command prints the answers and the warning."""
    fresh = [sys.executable, "-I", "-c", FRESH, str(exported), str(picture), *QUESTIONS]
    environment = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
    done = subprocess.run(fresh, capture_output=True, text=True, env=environment, cwd="/", timeout=600)
    assert done.returncode == 0, done.stderr
    assert np.allclose(json.loads(done.stdout), at_site(finished, picture), atol=1e-5, rtol=0)
    command = [sys.executable, "-I", str(exported / "answer.py"), str(picture), QUESTIONS[0]]
    shown = subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/", timeout=600)
    assert shown.stdout.count("%  ") == 5 and "not a medical device" in shown.stdout


def test_the_folder_answers_as_the_site_does(exported: Path, finished: Path, picture: Path) -> None:
    """The same program in this process, for several questions about a picture that is neither square nor small."""
    model = ExportedModel(exported)
    grey = torch.from_numpy(np.array(Image.open(picture)))
    found = [model.probabilities(grey, question).tolist() for question in QUESTIONS]
    assert np.allclose(found, at_site(finished, picture), atol=1e-5, rtol=0)


def test_a_head_of_principal_components_answers_as_at_the_site(tmp_path: Path, picture: Path) -> None:
    """The components of the bundled backbone are constants of the program."""
    options = {"rounds": 1, "schedule": "stepwise", "tuning": "classifier", "answers": "closed"}
    options |= {"fusion": "components", "question_input": "tower", "batch_rows": 8}
    job = {"method": "fedavg", "options": options, "data": "phantom", "backbone": "medclip2-slake"}
    run(plan(JobSpec.from_dict(job), None, tmp_path / "run", ("chest", "head"), 1, {}), "local", lambda event: None)
    kept = load_kept(tmp_path / "run", "chest")
    with Answerer(kept) as answerer:
        model = ExportedModel(export(kept, answerer, tmp_path / "model"))
    grey = torch.from_numpy(np.array(Image.open(picture)))
    found = [model.probabilities(grey, question).tolist() for question in QUESTIONS]
    assert np.allclose(found, at_site(tmp_path / "run", picture), atol=1e-5, rtol=0)


def test_the_weights_are_those_of_the_site_and_the_program_has_none(exported: Path, finished: Path) -> None:
    """The prompts and the head of the site's state, bit for bit; the program is small."""
    weights, state = load_file(exported / WEIGHTS), load_kept(finished, "chest").state
    tuned = {name.removeprefix("tuned."): w for name, w in weights.items() if name.startswith("tuned.")}
    assert tuned.keys() == state["values"].keys()
    assert all(torch.equal(value, tuned[name]) for name, value in state["values"].items())
    shared = {name.removeprefix("shared."): w for name, w in weights.items() if name.startswith("shared.")}
    assert shared and all(torch.equal(value, shared[name]) for name, value in state["tested"].items())
    assert (exported / "program.pt2").stat().st_size < 600_000


def test_tokens_are_those_of_the_bundled_tokenizer_too(exported: Path, tmp_path: Path) -> None:
    """A vocabulary that is cut to its first merges, long texts, digits and punctuation; other text is refused."""
    tokenize = ShortVocabulary()
    pairs = byte_pairs(tokenize)
    folder = shutil.copytree(exported, tmp_path / "copy")
    config = json.loads((folder / "config.json").read_text())
    config["tokenizer"] = {"start": pairs.start, "end": pairs.end, "context": pairs.context}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "merges.txt").write_text("".join(f"{left} {right}\n" for left, right in pairs.merges))
    model = ExportedModel(folder)
    texts = [
        *QUESTIONS,
        "pneumoperitoneum's hyperattenuation (T2/FLAIR), 3.5cm?! don't & won't",
        "mass " * 90,
        "aaaa",
        "?",
    ]
    for text in texts:
        assert torch.equal(model.tokens(text), tokenize([text])), text
    for text in ("M\u00fcller", "&lt;", "<end_of_text>", "tab\x07"):
        with pytest.raises(ValueError, match="plain ASCII"):
            model.tokens(text)


def test_the_program_refuses_pictures_that_it_would_not_read_as_in_training(tmp_path: Path) -> None:
    """16 bits, transparency, and colour where the backbone saw it; grey levels are read as they are."""
    path, grey = tmp_path / "film.png", np.arange(30, dtype=np.uint8).reshape(5, 6)
    Image.fromarray(grey).save(path)
    assert torch.equal(grey_picture(path, True), torch.from_numpy(grey))
    Image.fromarray(np.stack([grey, grey, 255 - grey], axis=2)).save(path)
    assert grey_picture(path, False).shape == grey.shape
    with pytest.raises(ValueError, match="trained on colour pictures"):
        grey_picture(path, True)
    for levels in (grey.astype(np.uint16) * 900, np.stack([grey] * 4, axis=2)):
        Image.fromarray(levels).save(path)
        with pytest.raises(ValueError, match="8 bits a channel and without transparency"):
            grey_picture(path, False)


def test_an_export_is_in_the_log_with_the_digest_of_its_weights(exported: Path, finished: Path) -> None:
    """Whoever has the folder finds its entry; the card and the configuration name the same digest."""
    digest = hashlib.sha256((exported / WEIGHTS).read_bytes()).hexdigest()
    entries = [entry for entry in read(finished / "sites" / "chest" / "audit") if entry.event is Event.EXPORTED]
    assert [entry.export and entry.export["weights"] for entry in entries] == [digest]
    config = json.loads((exported / "config.json").read_text())
    assert config["sha256"][WEIGHTS] == digest and digest in (exported / CARD).read_text()
    for name, wanted in config["sha256"].items():
        assert hashlib.sha256((exported / name).read_bytes()).hexdigest() == wanted


def test_the_card_has_its_fields_and_no_identifier(exported: Path, finished: Path) -> None:
    """Front matter, accuracy as released, the six principles, no epsilon where there is none; no path, no site."""
    card = (exported / CARD).read_text()
    assert card.startswith("---\nlibrary_name: pytorch\n") and "{" not in card
    site = json.loads((finished / "results.json").read_text())["sites"]["chest"]
    assert f"{site['correct']} of {site['n']} test rows" in card
    for word in ("Fairness", "Universality", "Traceability", "Usability", "Robustness", "Explainability"):
        assert f"| {word} |" in card
    assert "without differential privacy: no epsilon" in card
    assert str(finished) not in card and "chest" not in card


def with_policy(kept: KeptRun, **changes: Any) -> KeptRun:
    return replace(kept, config=kept.config.model_copy(update={"policy": replace(kept.config.policy, **changes)}))


def test_a_site_says_whether_models_may_leave_and_is_asked_first(finished: Path) -> None:
    """Forbidden by default; forbidden where the policy demands an epsilon that the model lacks; or where the list of
    answers is made of the site's rows."""
    kept = load_kept(finished, "chest")
    check_allowed(kept)
    assert SitePolicy.from_mapping({"methods": [], "kinds": []}).allow_export is False
    with pytest.raises(ConfigError, match="allow_export"):
        check_allowed(with_policy(kept, allow_export=False))
    with pytest.raises(ConfigError, match="no epsilon covers"):
        check_allowed(with_policy(kept, require_dp=True))
    options = {name: value for name, value in kept.job.options.items() if name != "answers"}
    with pytest.raises(ConfigError, match="own rows"):
        check_allowed(replace(kept, job=kept.job.model_copy(update={"options": options})))


def test_a_refused_export_leaves_neither_folder_nor_entry(medfedvqa: Any, finished: Path, tmp_path: Path) -> None:
    """A site whose file does not allow it; and a folder that holds something."""
    site = finished / "sites" / "head" / "site.yml"
    text, before = site.read_text(), len(list(read(finished / "sites" / "head" / "audit")))
    arguments = ("export", "--run", str(finished), "--site", "head", "--out")
    site.write_text(text.replace("allow_export: true", "allow_export: false"))
    try:
        done = medfedvqa(*arguments, str(tmp_path / "model"))
    finally:
        site.write_text(text)
    assert done.returncode == 1 and "allow_export" in done.stderr and not list(tmp_path.iterdir())
    (tmp_path / "mine").write_text("mine")
    full = medfedvqa(*arguments, str(tmp_path))
    assert full.returncode == 1 and "already holds" in full.stderr
    assert len(list(read(finished / "sites" / "head" / "audit"))) == before


def test_the_card_states_the_job_s_epsilon_where_it_covers_the_weights(private_run: Path) -> None:
    """As the site's log charged it; not for a model that the site trained further without noise."""
    kept = load_kept(private_run, "chest")
    charged = [entry.dp_event for entry in read(kept.config.audit) if entry.dp_event]
    coverage = coverage_of(kept)
    assert coverage.covered and f"epsilon {charged[-1]['job_epsilon'][1]:.3g} (nats)" in coverage.sentence
    assert not coverage_of(replace(kept, state={**kept.state, KEPT: {}})).covered
