"""Folders as hospitals copy them from the hub, at tiny sizes: configuration, weights and tokenizer files."""

import json
from pathlib import Path
from typing import Any

import torch
from open_clip.tokenizer import bytes_to_unicode
from safetensors.torch import save_file
from tokenizers import BertWordPieceTokenizer, Tokenizer, models, normalizers, pre_tokenizers
from torch import nn

from medfedvqa.models.open_clip_models import build

PUBMED = "microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract"
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789?"
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
CONTEXT = 40


def randomised(model: nn.Module) -> nn.Module:
    """Weights away from where they begin."""
    draw = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        parameter.data.add_(0.05 * torch.randn(parameter.shape, generator=draw))
    return model


def saved(model: nn.Module, path: Path) -> None:
    save_file({name: tensor.clone().contiguous() for name, tensor in model.state_dict().items()}, path)


def write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def biomedclip(folder: Path) -> Path:
    """BiomedCLIP's layout: open_clip_config.json, a timm ViT, PubMedBERT and its word pieces."""
    folder.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    text = {"hf_model_name": PUBMED, "hf_tokenizer_name": PUBMED, "hf_proj_type": "mlp", "context_length": CONTEXT}
    text |= {"hf_pooler_type": "cls_last_hidden_state_pooler"}
    vision = {"timm_model_name": "vit_base_patch16_224", "timm_model_pretrained": False, "timm_pool": ""}
    vision |= {"timm_proj": "linear", "image_size": 224}
    described = {"embed_dim": 24, "vision_cfg": vision, "text_cfg": text}
    normal = {"mean": [0.48, 0.45, 0.4], "std": [0.27, 0.26, 0.27]}
    write(folder / "open_clip_config.json", {"model_cfg": described, "preprocess_cfg": normal})
    small = {"model_type": "bert", **SIZES, "vocab_size": len(words), "max_position_embeddings": CONTEXT}
    write(folder / "config.json", small)
    (folder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    write(folder / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", "do_lower_case": True})
    BertWordPieceTokenizer(str(folder / "vocab.txt")).save(str(folder / "tokenizer.json"))
    (folder / "README.md").write_text("---\nlicense: mit\n---\n", encoding="utf-8")
    made = {**described, "text_cfg": {**text, "hf_config": small}}
    saved(randomised(build(made)), folder / "open_clip_model.safetensors")
    return folder


def transformers_model(kind: str, words: int, **tokens: int) -> Any:
    """A `CLIPModel` or `SiglipModel`."""
    from transformers import AutoConfig, AutoModel

    text = {**SIZES, "vocab_size": words, "max_position_embeddings": CONTEXT, "projection_size": 32, **tokens}
    vision = {**SIZES, "image_size": 32, "patch_size": 16}
    model = AutoModel.from_config(AutoConfig.for_model(kind, text_config=text, vision_config=vision, projection_dim=24))
    return randomised(model).eval()


def pubmedclip(folder: Path) -> Path:
    """PubMedCLIP's and PLIP's layout: a `CLIPModel` with vocab.json, merges.txt and preprocessor_config.json."""
    letters = list(bytes_to_unicode().values())
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    start, end = len(words) - 2, len(words) - 1
    transformers_model("clip", len(words), bos_token_id=start, eos_token_id=end, pad_token_id=end).save_pretrained(
        folder
    )
    write(folder / "vocab.json", {word: number for number, word in enumerate(words)})
    (folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    special = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    write(
        folder / "tokenizer_config.json", {"tokenizer_class": "CLIPTokenizer", "unk_token": "<|endoftext|>", **special}
    )
    write(folder / "preprocessor_config.json", {"image_mean": [0.48, 0.45, 0.4], "image_std": [0.27, 0.26, 0.27]})
    return folder


def siglip(folder: Path) -> Path:
    """SigLIP 2's layout: a `SiglipModel` with tokenizer.json."""
    pieces = [("<pad>", 0.0), ("<eos>", 0.0), ("<unk>", 0.0), ("▁", -2.0), *((letter, -3.0) for letter in LETTERS)]
    transformers_model("siglip", len(pieces), pad_token_id=0, eos_token_id=1).save_pretrained(folder)
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Metaspace()
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    write(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **special})
    return folder


LAYOUTS = {
    "hf-hub:microsoft/BiomedCLIP@mine": biomedclip,
    "local-dir:pubmedclip@mine": pubmedclip,
    "local-dir:siglip@mine": siglip,
}
"""What makes a folder, by the name under which a site has it."""
