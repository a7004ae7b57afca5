"""What all tests share: the data folder, small backbones, and sites in memory and on disk."""

import os

# Before torch reads it: the suite keeps all cores busy with processes, and threads that wait for each other burn them.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import copy
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import tiers  # noqa: F401  (registers the profiles before pytest reads which one to take)
import torch
from open_clip.model import CLIP
from tiny_clip import TINY, write_random

from medfedvqa.data import Row, Split, VQAData, build_site
from medfedvqa.evaluation import draw_plots
from medfedvqa.federation import serve
from medfedvqa.federation.aggregation_attempt import load_identity
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import plan, run
from medfedvqa.federation.site_config import SiteConfig, load_site_config, site_yaml
from medfedvqa.models import (
    Backbone,
    BackboneShape,
    ClipBackbone,
    TowerShape,
    load_backbone,
    open_clip_models,
)
from medfedvqa.models.bundled import build
from medfedvqa.papers.networks import albef_files
from medfedvqa.papers.networks.albef_files import AlbefBackbone
from medfedvqa.papers.networks.vilt import VAULT_ARCHITECTURES, VILT_ARCHITECTURES, VaultBackbone, ViltBackbone
from medfedvqa.research.pretraining.train import write_weights
from medfedvqa.training import Site
from privacy import RepeatableRandomness

RANDOM = "medclip@random"
"""Name of a backbone of the bundled architecture with random weights, for jobs in processes of their own."""
VILT = "vilt-tiny@random"
VAULT = "vault-tiny@random"
ALBEF = "albef-tiny@random"

Sites = Callable[..., dict[str, SiteConfig]]

VISION = {"image_size": 32, "patch_size": 8, "width": 32, "head_width": 16, "layers": 3}
TEXT = {"context_length": 12, "vocab_size": 64, "width": 24, "heads": 2, "layers": 2}


def tokenize(texts: list[str]) -> torch.Tensor:
    """One token a letter: start 62, letters, end 63."""
    ids = torch.zeros(len(texts), TEXT["context_length"], dtype=torch.int64)
    for row, text in zip(ids, texts, strict=True):
        letters = [1 + ord(letter) % 60 for letter in text[: len(row) - 2]]
        row[: len(letters) + 2] = torch.tensor([62, *letters, 63])
    return ids


def build_clip(kind: type = CLIP, vision: dict | None = None, text: dict | None = None, **options) -> torch.nn.Module:
    """A tiny CLIP with random weights, none of them left at 0 or 1, float64 and frozen."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        clip = kind(embed_dim=20, vision_cfg={**VISION, **(vision or {})}, text_cfg={**TEXT, **(text or {})}, **options)
        for parameter in clip.parameters():
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    return clip.double().eval().requires_grad_(False)


@pytest.fixture(scope="session", autouse=True)
def _no_plots() -> Iterator[None]:
    """Runs in this process draw no plots, which takes longer than to train a small model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serve, "draw_plots", lambda *_: [])
        yield


@pytest.fixture
def plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of the plots of a run."""
    monkeypatch.setattr(serve, "draw_plots", draw_plots)


@pytest.fixture(scope="session")
def make_clip() -> Callable[..., torch.nn.Module]:
    return build_clip


def attention(width: int) -> tuple[tuple[str, int, int], ...]:
    """Where a block of this width makes queries and values."""
    return ("attn.in_proj_weight", 0, width), ("attn.in_proj_weight", 2 * width, 3 * width)


@pytest.fixture(scope="session")
def backbone() -> ClipBackbone:
    """The tiny CLIP as a backbone, float64."""
    return ClipBackbone(
        name="tiny",
        clip=build_clip(),
        tokenize=tokenize,
        mean=(0.4, 0.5, 0.6),
        std=(0.2, 0.3, 0.25),
        shape=BackboneShape(
            {
                "image": TowerShape(3, 32, 2, "visual.transformer.resblocks", attention(32)),
                "text": TowerShape(2, 24, 2, "transformer.resblocks", attention(24)),
            },
            embed=20,
            image_size=32,
            context=12,
            words=24,
            build=build_clip,
            aside=("logit_scale", "visual.proj", "text_projection"),
        ),
        seen=None,
        digest="",
    )


@pytest.fixture(scope="session")
def places_backbone(backbone: ClipBackbone) -> ClipBackbone:
    """The tiny CLIP with a picture tower that keeps place, 4 x 4 cells, float64."""
    vision = {"image_size": 64, "patch_size": 16, "width": 32, "head_width": 16, "layers": 2}
    configuration = {"embed_dim": 20, "vision_cfg": vision, "text_cfg": TEXT, "keeps_place": True}

    def build() -> torch.nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            clip = open_clip_models.build(configuration)
            for parameter in clip.parameters():
                parameter.data.add_(0.1 * torch.randn_like(parameter))
        return clip.double().eval().requires_grad_(False)

    towers = {"image": TowerShape(2, 32, 2, "visual.transformer.resblocks", attention(32))}
    shape = replace(backbone.shape, towers=towers | {"text": backbone.shape.towers["text"]}, image_size=64, build=build)
    return replace(backbone, clip=build(), shape=shape)


@pytest.fixture(scope="session")
def single(backbone: ClipBackbone) -> ClipBackbone:
    """The tiny CLIP in float32, as sites have it."""
    return replace(backbone, clip=copy.deepcopy(backbone.clip).float())


@pytest.fixture
def sharp_relu(monkeypatch: pytest.MonkeyPatch) -> None:
    """ReLU with its exact derivative in private steps, too, for tests that compare gradients with plain torch's."""
    monkeypatch.setattr("privacy.layer_rules.RAMP", 2.0**-120)


ASKED = (("is it bright", "yes"), ("is it dark", "no"), ("which side", "left"), ("what is this", "something odd"))
PARTS = ("train", "train", "train", "validate", "test", "test")


def drawn(row: Row, size: int) -> torch.Tensor:
    """The picture that a row names by its seed."""
    return torch.rand(1, size, size, generator=torch.Generator().manual_seed(int(row.image.name)))


def small_site(backbone: Backbone, name: str, questions: int = 3, seed: int = 0) -> Site:
    """A site with three training patients, of whom the first has twice as many rows."""
    number = sum(map(ord, name))
    rows = [
        Row(index, "chest", part, True, question, answer, f"{name}{patient}", Path(str(1000 * number + patient)))
        for index, (patient, part) in enumerate(enumerate(PARTS))
        for question, answer in (ASKED[:questions] * 2)[: questions * (2 if patient == 0 else 1)]
    ]
    data = build_site(VQAData("small", ("chest",), rows, drawn, publishes_validation=True), "chest", Split())
    return Site(name, data, backbone, "cpu", seed, RepeatableRandomness(number))


@pytest.fixture
def site(single: Backbone) -> Callable[..., Site]:
    """Makes a small site of this name, on the tiny CLIP or another backbone."""

    def make(name: str = "here", backbone: Backbone = single, **options: int) -> Site:
        return small_site(backbone, name, **options)

    return make


TINY_VILT = {
    "vocab_size": 64, "type_vocab_size": 2, "modality_type_vocab_size": 2, "max_position_embeddings": 12,
    "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24,
    "hidden_act": "gelu", "layer_norm_eps": 1e-12, "image_size": 32, "patch_size": 8, "num_channels": 3,
    "qkv_bias": True,
}  # fmt: skip
WORDS = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "is",
    "it",
    "what",
    "which",
    "side",
    "mass",
    "##es",
    "a",
    "there",
)


TINY_BERT = {
    "vocab_size": 64, "type_vocab_size": 2, "max_position_embeddings": 20, "hidden_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 24, "hidden_act": "gelu", "layer_norm_eps": 1e-12,
}  # fmt: skip


def save_random(model: torch.nn.Module, folder: Path) -> None:
    """Moves a model of transformers away from where it begins, and saves it as its library does."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        for parameter in model.parameters():
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)


@pytest.fixture(scope="session")
def vilt_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A small ViLT as transformers saves it; while tests run, `vilt-tiny` is an architecture by name."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("vilt")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        model = transformers.ViltModel(transformers.ViltConfig(**TINY_VILT))
        for parameter in model.parameters():
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(VILT_ARCHITECTURES, "vilt-tiny", TINY_VILT)
        yield folder


@pytest.fixture(scope="session")
def vilt(vilt_folder: Path) -> ViltBackbone:
    """The small ViLT as a backbone, float32."""
    return load_backbone(VILT, {VILT: vilt_folder})


@pytest.fixture(scope="session")
def vault_folder(vilt_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The small ViLT and, in a folder of its own, a small BERT with a head; `vault-tiny` is an architecture by name."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("vault") / "both"
    shutil.copytree(vilt_folder, folder)
    (folder / "vocab.txt").unlink()
    save_random(transformers.BertForMaskedLM(transformers.BertConfig(**TINY_BERT)), folder / "bert")
    (folder / "bert" / "vocab.txt").write_text("\n".join(WORDS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(VAULT_ARCHITECTURES, "vault-tiny", {"vilt": TINY_VILT, "bert": TINY_BERT})
        yield folder


@pytest.fixture(scope="session")
def vault(vault_folder: Path) -> VaultBackbone:
    """The small VAuLT as a backbone, float32."""
    return load_backbone(VAULT, {VAULT: vault_folder})


TINY_ALBEF = {
    "vision": {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2},
    "bert": {**TINY_BERT, "num_hidden_layers": 3},
    "fused_from": 1,
    "context": 12,
}


@pytest.fixture(scope="session")
def albef_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A small ALBEF as its authors save it after pre-training; `albef-tiny` is an architecture by name."""
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("albef")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(albef_files.ARCHITECTURES, "albef-tiny", TINY_ALBEF)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(4)
            network = albef_files.albef_shape("albef-tiny").build()
            for parameter in network.parameters():
                parameter.data.add_(0.1 * torch.randn_like(parameter))
        own = network.state_dict()
        weights = {key.replace("text_encoder.", "text_encoder.bert."): value for key, value in own.items()}
        weights |= {key.replace("encoder.", "encoder_m.", 1): value + 1 for key, value in weights.items()}
        weights |= {"temp": torch.ones([]), "itm_head.weight": torch.ones(2, 16), "image_queue": torch.ones(4, 8)}
        weights |= {"text_encoder.cls.predictions.bias": torch.ones(64)}
        weights |= {"text_encoder.bert.embeddings.position_ids": torch.arange(20)[None]}
        torch.save({"model": weights, "epoch": 3}, folder / "ALBEF.pth")
        (folder / "vocab.txt").write_text("\n".join(WORDS))
        yield folder


@pytest.fixture(scope="session")
def albef(albef_folder: Path) -> AlbefBackbone:
    """The small ALBEF as a backbone, float32."""
    return load_backbone(ALBEF, {ALBEF: albef_folder})


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder with the published data sets; tests that need it are skipped without it."""
    folder = Path(os.environ.get("MEDFEDVQA_DATA") or Path(__file__).parents[1] / ".." / "shared" / "data")
    if not (folder / "vqa-rad").is_dir():
        pytest.skip("the data folder is absent: set MEDFEDVQA_DATA")
    return folder.resolve()


@pytest.fixture(scope="session")
def random_backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the bundled architecture with random weights."""
    path = tmp_path_factory.mktemp("backbone") / "random.safetensors"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        write_weights(build("medclip"), path, [])
    return path


@pytest.fixture(scope="session")
def tiny_backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the very small CLIP with random weights."""
    path = tmp_path_factory.mktemp("backbone") / "tiny.safetensors"
    write_random(path)
    return path


@pytest.fixture(scope="session")
def sites_in(random_backbone: Path, tiny_backbone: Path) -> Sites:
    """As `sites`, below a folder that is given first."""

    random = {RANDOM: str(random_backbone), TINY: str(tiny_backbone)}

    def make(place: Path, *names: str, **changes: object) -> dict[str, SiteConfig]:
        configs = {}
        for name in names or ("chest", "abdomen", "head"):
            folder = place / name
            folder.mkdir(parents=True, exist_ok=True)
            facts = {"reader": "phantom", "organ": name, "methods": ["prompt_pfl"], "backbones": random, **changes}
            (folder / "site.yml").write_text(site_yaml(**facts))
            configs[name] = load_site_config(folder / "site.yml", name)
        return configs

    return make


@pytest.fixture
def sites(tmp_path: Path, sites_in: Sites) -> Sites:
    """Writes `site.yml` files for phantom sites and loads them; keywords change what the files say."""
    return partial(sites_in, tmp_path / "sites")


@pytest.fixture
def quick_job() -> Callable[..., JobSpec]:
    """A job that trains in a second per site and round; keywords are options of prompt_pfl."""

    def make(**options: object) -> JobSpec:
        small = {"rounds": 2, "local_epochs": 2, "local_unit": "batches", "batch_rows": 16, "blocks": 2, "hidden": 16}
        settings = {**small, "local_baseline": False, **options}
        return JobSpec.from_dict({"method": "prompt_pfl", "options": settings, "data": "phantom", "backbone": TINY})

    return make


@pytest.fixture
def introduced(sites: Sites) -> Sites:
    """As `sites`, where each site pins the fingerprints of the others."""

    def make(*names: str, **changes: object) -> dict[str, SiteConfig]:
        configs = sites(*names, **changes)
        pins = {name: load_identity(config).fingerprint for name, config in configs.items()}
        return {name: config.model_copy(update={"peers": pins}) for name, config in configs.items()}

    return make


@pytest.fixture(scope="session")
def private_run(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Path:
    """The folder of a finished job of three phantom sites, under differential privacy and on shares."""
    out = tmp_path_factory.mktemp("runs") / "study-1"
    options = {"rounds": 2, "local_epochs": 1, "local_unit": "batches", "batch_rows": 16, "blocks": 2, "hidden": 16}
    options |= {"local_baseline": False, "answers": "closed"}
    job = {"method": "prompt_pfl", "options": options, "data": "phantom"}
    private = {"dp": {"noise": 1.5, "count_noise": 10.0}, "secagg": True, "backbone": TINY}
    launch = plan(JobSpec.from_dict(job | private), None, out, (), 1, {TINY: tiny_backbone})
    run(launch, "local", lambda event: None)
    return out
