"""Pre-training of the bundled backbone, on small sets that the tests draw."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from medfedvqa.data import bundled_list
from medfedvqa.errors import BackboneError, DataError
from medfedvqa.models import load_backbone, shape_of
from medfedvqa.models.bundled import CONTEXT, VOCABULARY, ShortVocabulary, build
from medfedvqa.research.pretraining.card import (
    picture_features,
    text_features,
    trained_backbone,
    write_card,
    write_components,
)
from medfedvqa.research.pretraining.corpus import (
    BENCHMARKS,
    OPEN_SETS,
    PairBatch,
    augment,
    draw,
    edge_histograms,
    is_for_probes,
    load,
    turned,
)
from medfedvqa.research.pretraining.train import (
    FrozenTexts,
    Learner,
    Recipe,
    classes_of,
    pick,
    stages_of,
    train,
    write_weights,
)

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

    whole = train(corpus, SMALL, tmp_path / "whole.checkpoint", None, None, quiet).state_dict()
    with pytest.raises(KeyboardInterrupt):
        train(corpus, SMALL, tmp_path / "cut.checkpoint", None, None, interrupt)
    resumed = train(corpus, SMALL, tmp_path / "cut.checkpoint", None, None, quiet).state_dict()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.slow
def test_trained_weights_load_as_a_backbone_and_tell_how_they_were_made(root: Path, tmp_path: Path) -> None:
    """The written file is a checkpoint of the bundled architecture, with its stages and a card beside it."""
    corpus, path = load(root, None), tmp_path / "small.safetensors"
    clip = train(corpus, SMALL, tmp_path / "small.checkpoint", None, None, quiet)
    stage = {"benchmark": "none", "steps": 4, "batch": 6, "learning_rate": 6e-4, "seed": 7, "seconds": 60.0}
    write_weights(clip, path, [stage])
    assert stages_of(path) == [stage]
    backbone = load_backbone("medclip2@small", {"medclip2@small": path})
    assert backbone.shape == shape_of("medclip2@other") and backbone.seen is None


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
    root: Path, data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The card names sets, licences, the share-alike set, stages, probes against chance and both benchmarks, here of
    one row in ten."""
    for name, read in BENCHMARKS.items():
        data = read(data_folder / name)
        few = replace(data, rows=data.rows[::10])
        monkeypatch.setitem(BENCHMARKS, name, lambda root, few=few: few)
    path = tmp_path / "card.safetensors"
    stage = {"benchmark": "none", "text": "medclip2-slake", "steps": 4, "batch": 6, "learning_rate": 6e-4, "seed": 7}
    write_weights(build(), path, [{**stage, "seconds": 60.0, "device": "a test"}])
    write_card(path, trained_backbone(path), load(root, None), data_folder)
    card = (tmp_path / "CARD-card.md").read_text()
    for expected in ("CC BY-SA 4.0", "Share-alike: mednist", "| organ |", "vqa-rad: closed questions", "4 steps"):
        assert expected in card


def test_components_are_the_directions_along_which_open_features_differ_most(root: Path, tmp_path: Path) -> None:
    """The mean, and orthonormal directions in the order of their variance, of the corpus' pictures, and of its texts
    with the bundled answers."""
    backbone, corpus = load_backbone("medclip2-vqarad"), load(root, None)
    made = load_file(write_components(backbone, corpus, tmp_path / "some.safetensors"))
    pictures = picture_features(backbone, corpus.pixels)
    assert torch.allclose(made["picture_mean"].float(), pictures.mean(dim=0), atol=1e-2)
    spread = ((pictures - pictures.mean(dim=0)) @ made["picture"].float().T).square().sum(dim=0)
    assert (spread[:-1] >= spread[1:] - 1e-2 * spread[0]).all()
    assert float(spread.sum()) == pytest.approx(float((pictures - pictures.mean(dim=0)).square().sum()), rel=0.02)
    texts = {text for p in corpus.pictures for text in (*p.captions, *(question for question, _ in p.questions))}
    questions = text_features(backbone, sorted(texts | set(bundled_list("closed"))))
    assert torch.allclose(made["question_mean"].float(), questions.mean(dim=0), atol=1e-2)
    assert made["question"].shape[0] <= 96 and made["question"].shape[1] == questions.shape[1]


def small_batch(root: Path, orientations: list[int]) -> tuple[Learner, PairBatch]:
    """A learner with the weights of a seed, and one picture of each open set, turned so."""
    corpus = load(root, None)
    torch.manual_seed(0)
    learner = Learner(classes_of(corpus)).eval()
    batch = draw(corpus, list(range(1, 25, 5)), {"yes", "no"}, torch.Generator().manual_seed(1))
    return learner, replace(batch, orientations=torch.tensor(orientations))


def test_every_part_of_the_picture_tower_learns_and_the_text_tower_never_does(root: Path) -> None:
    """Each of the picture tower's weights and both projections have a gradient; the text tower has none."""
    learner, batch = small_batch(root, [0, 0, 0, 0, 3])
    torch.autograd.backward(learner.loss(batch, FrozenTexts(learner.clip)))
    without = {name for name, p in learner.clip.named_parameters() if p.grad is None or not p.grad.any()}
    text = ("transformer.", "token_embedding.", "positional_embedding", "ln_final.")
    assert without and all(name.startswith(text) for name in without)
    assert {name for name, _ in learner.clip.named_parameters() if name.startswith(text)} == without


def test_without_words_only_the_picture_tower_learns(root: Path) -> None:
    """No text tower: captions and questions are no tasks, and CLIP's projections stay as they are."""
    learner, batch = small_batch(root, [0, 0, 0, 0, 3])
    torch.autograd.backward(learner.loss(batch, None))
    learned = {name for name, p in learner.clip.named_parameters() if p.grad is not None and p.grad.any()}
    assert learned == {n for n, _ in learner.clip.named_parameters() if n.startswith("visual.")} - {"visual.proj"}


def test_a_turned_picture_teaches_its_orientation_alone(root: Path) -> None:
    """With all pictures turned, no head but that of orientation has a gradient."""
    learner, batch = small_batch(root, [1, 2, 3, 4, 5])
    torch.autograd.backward(learner.loss(batch, FrozenTexts(learner.clip)))
    heads = {name.split(".")[0] for name, p in learner.named_parameters() if p.grad is not None and p.grad.any()}
    assert heads == {"clip", "orientation"}


def test_the_text_tower_is_taken_over_and_kept(root: Path, random_backbone: Path, tmp_path: Path) -> None:
    """After training with `--text` the text tower is that of the given weights, bit by bit; the rest is not."""
    recipe = Recipe(steps=1, batch=6, warmup=1)
    trained = train(load(root, None), recipe, tmp_path / "x.checkpoint", None, random_backbone, quiet).state_dict()
    given = load_file(random_backbone)
    names = [name for name in given if not name.startswith("visual.")]
    changed = {name for name in names if not torch.equal(trained[name], given[name].float())}
    assert changed == {"text_projection", "logit_scale"}


def test_other_files_have_no_text_tower(root: Path, tmp_path: Path) -> None:
    """`--text` with a file that is no weights, or lacks the tower, is refused."""
    corpus = load(root, None)
    (tmp_path / "other").write_bytes(b"nothing")
    save_file({"logit_scale": torch.zeros(())}, tmp_path / "bare")
    for name in ("other", "bare"):
        with pytest.raises(BackboneError, match="text tower"):
            train(corpus, SMALL, tmp_path / "x.checkpoint", None, tmp_path / name, quiet)


def test_a_turn_is_the_turn_that_it_is_called() -> None:
    """Orientation 1 is a quarter turn, 4 a mirror image, 0 nothing; eight different pictures come of one."""
    image = torch.arange(16.0).view(1, 1, 4, 4).repeat(8, 1, 1, 1)
    found = turned(image, torch.arange(8))
    assert torch.equal(found[0], image[0]) and torch.equal(found[4, 0], image[0, 0].flip(1))
    assert torch.equal(found[1, 0], torch.rot90(image[0, 0], 1)) and torch.equal(found[2, 0], image[0, 0].flip((0, 1)))
    assert len({tuple(each.flatten().tolist()) for each in found}) == 8


def test_edges_have_the_direction_of_the_gradient() -> None:
    """A ramp to the right fills the first bin, a ramp downwards the middle one, and a flat cell none."""
    ramp = torch.linspace(0, 1, 16).expand(1, 1, 16, 16)
    across, down, flat = (
        edge_histograms(g, 2)[0, 0, 0] for g in (ramp, ramp.transpose(2, 3), torch.ones(1, 1, 16, 16))
    )
    assert across.argmax() == 0 and down.argmax() == 4 and not flat.any()
    assert torch.allclose(across.norm(), torch.ones(()), atol=1e-2)
