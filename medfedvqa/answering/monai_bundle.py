"""A network of MONAI that a site kept of a job, as a MONAI bundle: configurations and weights, no code.

`monai.bundle.ConfigParser` builds the network from `configs/inference.json`; `configs/metadata.json` has the meaning of
each output.
"""

import json
from pathlib import Path
from typing import Any

import monai
import numpy
import torch
from monai.bundle.config_parser import ConfigParser

from medfedvqa.answering.answerer import Answerer
from medfedvqa.errors import ConfigError
from medfedvqa.models import HEAD, Values
from medfedvqa.models.picture_networks import MONAI_NETWORKS, NETWORK, PictureNetwork, last_layer, monai_arguments
from medfedvqa.version import code_version

WEIGHTS, CONFIG, METADATA, CARD = "models/model.pt", "configs/inference.json", "configs/metadata.json", "docs/README.md"
SCHEMA = "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1/meta_schema_20240725.json"
TOLERANCE = 1e-4
"""The largest difference of a logit between the bundle and the site."""


def check_bundled(model: object) -> PictureNetwork:
    """Returns a model that can become a bundle. Raises `ConfigError` for one over a table, or that MONAI lacks."""
    if not isinstance(model, PictureNetwork) or model.spec.name not in MONAI_NETWORKS or model.spec.features:
        raise ConfigError("only a MONAI network for pictures can be exported as a bundle: train one of those")
    if model.spec.name.startswith("ResNet"):
        raise ConfigError("MONAI's ResNets cannot be built with group normalisation: train a DenseNet for a bundle")
    return model


def write_bundle(folder: Path, answerer: Answerer, card: str) -> None:
    """Writes the bundle and compares it with the model. Raises `ConfigError` if their answers differ."""
    answering, model = answerer.answering, check_bundled(answerer.answering.model)
    for part in ("configs", "models", "docs"):
        (folder / part).mkdir()
    torch.save(_weights(model, answering.values), folder / WEIGHTS)
    (folder / CONFIG).write_text(_json(_inference(model)), encoding="utf-8")
    outputs = model.spec.findings or answering.answers
    (folder / METADATA).write_text(_json(_metadata(model, outputs)), encoding="utf-8")
    (folder / CARD).write_text(card, encoding="utf-8")
    _compare(folder, model, answering.values)


def _weights(model: PictureNetwork, values: Values) -> dict[str, torch.Tensor]:
    """The values under the names in MONAI's network."""
    _, place = last_layer(model.spec.name, model.spec.build(model.answers), model.spec.outputs(model.answers))
    return {
        name.removeprefix(NETWORK) if name.startswith(NETWORK) else name.replace(f"{HEAD}answers", place): value.cpu()
        for name, value in values.items()
    }


def _inference(model: PictureNetwork) -> dict[str, Any]:
    spec = model.spec
    given = monai_arguments(spec.name, dict(spec.arguments), spec.channels, spec.outputs(model.answers))
    # As `medfedvqa.data.images.square` prepares a grey picture.
    transforms = [
        {"_target_": "LoadImage", "reader": "PILReader", "reverse_indexing": False, "ensure_channel_first": True},
        {"_target_": "Resize", "spatial_size": spec.pixels, "size_mode": "longest", "mode": "area"},
        {"_target_": "SpatialPad", "spatial_size": [spec.pixels, spec.pixels]},
        {"_target_": "ScaleIntensityRange", "a_min": 0, "a_max": 255, "b_min": -1, "b_max": 1},
    ]
    return {
        "imports": ["$import torch"],
        "bundle_root": ".",
        "network_def": {"_target_": spec.name, **given},
        "weights": f"$torch.load(@bundle_root + '/{WEIGHTS}', weights_only=True)",
        "loaded": "$@network_def.load_state_dict(@weights)",
        "preprocessing": {"_target_": "Compose", "transforms": transforms},
        "inferer": {"_target_": "SimpleInferer"},
        "postprocessing": {
            "_target_": "Activations",
            **({"sigmoid": True} if spec.findings else {"softmax": True}),
        },
    }


def _metadata(model: PictureNetwork, outputs: tuple[str, ...]) -> dict[str, Any]:
    spec = model.spec
    image = {
        "type": "image",
        "format": "magnitude",
        "num_channels": spec.channels,
        "spatial_shape": [spec.pixels, spec.pixels],
        "dtype": "float32",
        "value_range": [-1, 1],
        "is_patch_data": False,
        "channel_def": {"0": "grey"} if spec.channels == 1 else {"0": "red", "1": "green", "2": "blue"},
    }
    scores = {
        "type": "probabilities",
        "format": "multilabel" if spec.findings else "classification",
        "num_channels": len(outputs),
        "dtype": "float32",
        "value_range": [0, 1],
        "is_patch_data": False,
        "spatial_shape": [],
        "channel_def": {str(number): name for number, name in enumerate(outputs)},
    }
    return {
        "schema": SCHEMA,
        "version": code_version(),
        "changelog": {code_version(): "exported"},
        "monai_version": monai.__version__,
        "pytorch_version": torch.__version__,
        "numpy_version": numpy.__version__,
        "required_packages_version": {},
        "name": spec.name,
        "task": "Classification of pictures, trained by several hospitals together",
        "description": "See docs/README.md: what the model is for, what it was tested on, and what its privacy covers.",
        "authors": "the site that exported it",
        "copyright": "see docs/README.md",
        "network_data_format": {"inputs": {"image": image}, "outputs": {"pred": scores}},
    }


@torch.no_grad()
def _compare(folder: Path, model: PictureNetwork, values: Values) -> None:
    parser = ConfigParser()
    parser.read_config(str(folder / CONFIG))
    parser["bundle_root"] = str(folder)
    network, side = parser.get_parsed_content("network_def"), model.spec.pixels
    parser.get_parsed_content("loaded")
    pixels = torch.rand(2, model.spec.channels, side, side, generator=torch.Generator().manual_seed(0)) * 2 - 1
    outputs = model.outputs(values, model.penultimate(values, pixels.to(model.device)))
    if not torch.allclose(network.eval()(pixels), outputs.cpu(), atol=TOLERANCE):
        raise ConfigError("the bundle's answers differ from the model's: this network is not exported")


def _json(content: object) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
