"""Pre-training of the bundled backbone, on small sets that the tests draw."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from medfedvqa.errors import BackboneError, DataError
from medfedvqa.models import load_backbone, shape_of
from medfedvqa.models.bundled import CONTEXT, VOCABULARY, ShortVocabulary
from medfedvqa.pretraining.card import write_card
from medfedvqa.pretraining.corpus import BENCHMARKS, OPEN_SETS, is_for_probes, load
from medfedvqa.pretraining.pair_batches import augment
from medfedvqa.pretraining.train import Recipe, pick, stages_of, train, write_weights

LABELS = {
    "kermany_cxr": ("chest", "X-ray", "frontal", "normal"),
    "brain_tumor_mr": ("brain", "MRI", "axial", "glioma"),
    "iqoth_chest_ct": ("chest", "CT", "axial", "lung cancer"),
    "mhh_covid_cxr": ("chest", "X-ray", "frontal", "COVID-19"),
    "mednist": ("abdomen", "CT", "axial", None),
}
SMALL = Recipe(steps=4, batch=6, warmup=1, checkpoint_every=2)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder whose open sets hold five drawn pictures each."""
    folder = tmp_path_factory.mktemp("data") / "open"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name, (organ, modality, plane, finding) in LABELS.items():
        with zipfile.ZipFile(folder / f"{name}.zip", "w") as archive:
            lines = []
            for number in range(5):
                path = folder / "picture.jpg"
                Image.fromarray(rng.integers(0, 255, (40, 60), dtype=np.uint8)).save(path)
                archive.write(path, f"{number}.jpg")
                labels = {"organ": organ, "modality": modality, "plane": plane, "finding": finding}
                lines.append(json.dumps({"file": f"{number}.jpg", "caption": f"{modality} of the {organ}", **labels}))
            archive.writestr("captions.jsonl", "\n".join(lines))
    return folder.parent


def quiet(step: int, steps: int, loss: float) -> None:
    """No progress."""


@pytest.mark.slow
def test_an_interrupted_training_resumes_to_the_same_bits(root: Path, tmp_path: Path) -> None:
    """Stopped after a checkpoint and started again, training ends with the weights of an uninterrupted one."""
    corpus = load(root, None)

    def interrupt(step: int, steps: int, loss: float) -> None:
        if step == 3:
            raise KeyboardInterrupt

    whole = train(corpus, SMALL, tmp_path / "whole.checkpoint", None, quiet).state_dict()
    with pytest.raises(KeyboardInterrupt):
        train(corpus, SMALL, tmp_path / "cut.checkpoint", None, interrupt)
    resumed = train(corpus, SMALL, tmp_path / "cut.checkpoint", None, quiet).state_dict()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.slow
def test_trained_weights_load_as_a_backbone_and_tell_how_they_were_made(root: Path, tmp_path: Path) -> None:
    """The written file is a checkpoint of the bundled architecture, with its stages and a card beside it."""
    corpus, path = load(root, None), tmp_path / "small.safetensors"
    clip = train(corpus, SMALL, tmp_path / "small.checkpoint", None, quiet)
    stage = {"benchmark": "none", "steps": 4, "batch": 6, "learning_rate": 6e-4, "seed": 7, "seconds": 60.0}
    write_weights(clip, path, [stage])
    assert stages_of(path) == [stage]
    backbone = load_backbone("medclip@small", {"medclip@small": path})
    assert backbone.shape == shape_of("medclip-slake") and backbone.seen is None


def test_pictures_kept_for_the_probes_are_never_drawn(root: Path) -> None:
    """No batch holds a picture on which the model card's probes are scored."""
    corpus = load(root, None)
    batches = pick(corpus, SMALL, torch.Generator().manual_seed(0))
    drawn = {index for _ in range(50) for index in next(batches)}
    expected = {index for index in range(len(corpus.pictures)) if not is_for_probes(index)}
    assert drawn == expected and len(expected) < len(corpus.pictures)


def test_the_share_alike_set_can_be_left_out(root: Path) -> None:
    """Without it, no picture of it is in the corpus."""
    sources = {picture.source for picture in load(root, None, share_alike=False).pictures}
    assert sources == set(OPEN_SETS) - {"mednist"}


def test_a_missing_set_is_named(tmp_path: Path) -> None:
    """A data folder without an open set: an error with its file's name."""
    with pytest.raises(DataError, match="kermany_cxr.zip"):
        load(tmp_path, None)


def test_a_file_that_pretraining_did_not_write_is_no_start(tmp_path: Path) -> None:
    """`--start` with another file is refused."""
    (tmp_path / "other").write_bytes(b"nothing")
    with pytest.raises(BackboneError, match="pretrain"):
        stages_of(tmp_path / "other")


def test_augmentation_never_mirrors() -> None:
    """A bright left half stays left in every one of many augmented copies: laterality is meaning."""
    half = torch.zeros(1, 160, 160, dtype=torch.uint8)
    half[:, :, :80] = 200
    images = augment(half.repeat(200, 1, 1), torch.Generator().manual_seed(0))
    left, right = images[..., :40].mean(dim=(1, 2, 3)), images[..., -40:].mean(dim=(1, 2, 3))
    assert images.shape == (200, 3, 128, 128) and bool((left > right).all())


def test_the_short_vocabulary_reads_any_text() -> None:
    """Unknown words fall apart into known tokens; ids stay inside the table; the end has the highest id."""
    texts = ["is there a pneumothorax?", "Ödem 🫁 in segment VIII", "x" * 500, ""]
    ids = ShortVocabulary()(texts)
    assert ids.shape == (4, CONTEXT) and int(ids.max()) == VOCABULARY - 1 and int(ids.min()) >= 0
    assert (ids.argmax(dim=1) == (ids != 0).sum(dim=1) - 1).all()
    assert not torch.equal(ids[0], ShortVocabulary()(["is there a pneumonia?"])[0])


@pytest.mark.slow
def test_the_model_card_says_what_was_seen_and_how_it_was_made(
    root: Path, data_folder: Path, random_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The card names sets, licences, the share-alike set, stages, probes against chance and both benchmarks, here of
    one row in ten."""
    for name, read in BENCHMARKS.items():
        data = read(data_folder / name)
        few = replace(data, rows=data.rows[::10])
        monkeypatch.setitem(BENCHMARKS, name, lambda root, few=few: few)
    path = tmp_path / "card.safetensors"
    clip = load_backbone("medclip@random", {"medclip@random": random_backbone}).clip
    stage = {"benchmark": "none", "steps": 4, "batch": 6, "learning_rate": 6e-4, "patch_dropout": 0.5}
    write_weights(clip, path, [{**stage, "full_view": 0.85, "seed": 7, "seconds": 60.0, "device": "a test"}])
    write_card(path, clip, load(root, None), data_folder)
    card = (tmp_path / "CARD-card.md").read_text()
    for expected in ("CC BY-SA 4.0", "Share-alike: mednist", "| organ |", "vqa-rad: closed questions", "4 steps"):
        assert expected in card
