"""Measures the memory of one site with many pictures: all in memory, and bounded as `site.yml` bounds them.

The pictures are synthetic JPEG files; the backbone is one of open_clip's with random weights, whose prompts are trained
in all blocks, so that a hidden state of each picture is kept; one step is trained. Each way runs in a process of its
own, and both must train the same bits. Target: 10,000 pictures at 224 pixels in at most 2 GB, bounded.

    python benchmarks/pictures.py --pictures 10000 --ways bounded
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from medfedvqa.core import Site, create
from medfedvqa.data import Row, Split, VQAData, build_site
from medfedvqa.federation.site_config import DISK_MB, MEMORY_MB
from medfedvqa.models import ClipBackbone, PictureSpace
from medfedvqa.models.backbones import shape_of

MIB = 2**20
SIDE = 256
WAYS = ("all", "bounded")
ASKED = (("is there a mass?", "yes"), ("is there a mass?", "no"))


def write_pictures(count: int, folder: Path) -> None:
    """Writes `count` blurred noises of `SIDE` pixels as grey JPEG files."""
    generator = np.random.default_rng(0)
    for number in range(count):
        noise = Image.fromarray(generator.integers(0, 256, (16, 16), dtype=np.uint8))
        noise.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(folder / f"{number}.jpg")


def rows(count: int, folder: Path) -> list[Row]:
    """One question on each picture, of one patient each."""
    return [
        Row(number, "chest", "train", True, *ASKED[number % 2], f"patient-{number}", folder / f"{number}.jpg")
        for number in range(count)
    ]


def random_backbone(architecture: str) -> ClipBackbone:
    """A model of open_clip with random weights."""
    import open_clip

    torch.manual_seed(0)
    shape = shape_of(f"{architecture}@random")
    model = shape.build().float().eval().requires_grad_(False)
    middle = (0.5, 0.5, 0.5)
    return ClipBackbone("random", model, open_clip.get_tokenizer(architecture), middle, middle, shape, None, "")


def measure(arguments: argparse.Namespace, way: str, folder: Path) -> dict[str, object]:
    """Trains one step in this process; peak memory in MiB, seconds, and a digest of the trained values."""
    backbone = random_backbone(arguments.architecture)
    data = build_site(VQAData("synthetic", ("chest",), rows(arguments.pictures, folder)), "chest", Split(validation=0))
    bounds = (arguments.memory_mb * MIB, DISK_MB * MIB, folder) if way == "bounded" else ()
    space = PictureSpace(*bounds)
    site = Site("site", data, backbone, "cpu", 0, space=space)
    tuned = {
        "tuning": "prompt",
        "blocks": arguments.blocks or min(tower.layers for tower in backbone.shape.towers.values()),
    }
    method = create("local", {**tuned, "local_unit": "batches", "local_epochs": 1, "batch_rows": arguments.rows})
    before, began = peak(), time.perf_counter()
    # Without bounds a site holds all pixels while the frozen part sees them, as sites did before there were bounds.
    decoded = site.data.pictures.load(backbone.shape.image_size) if way == "all" else None
    method.trainer(site)
    del decoded
    frozen, resting = time.perf_counter() - began, peak()
    values = method.trained_alone(site, 1)["values"]
    digest = hashlib.sha256(b"".join(values[name].numpy().tobytes() for name in sorted(values))).hexdigest()
    return {
        "peak": peak(),
        "resting": resting,
        "before": before,
        "memory": space.memory_used / MIB,
        "disk": space.disk_used / MIB,
        "frozen_s": frozen,
        "step_s": time.perf_counter() - began - frozen,
        "digest": digest,
    }


def peak() -> float:
    """The most memory that this process ever had, MiB."""
    # Not `ru_maxrss`, which a process inherits from the one that starts it.
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=1000)
    parser.add_argument("--architecture", default="ViT-B-32", help="a name of open_clip")
    parser.add_argument("--blocks", type=int, default=None, help="blocks with prompts; all by default")
    parser.add_argument("--rows", type=int, default=32, help="rows of the step")
    parser.add_argument("--memory-mb", type=int, default=MEMORY_MB)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--out", type=Path, default=None, help="a JSON file for the figures")
    parser.add_argument("--here", nargs=2, default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.here:
        print(json.dumps(measure(arguments, arguments.here[0], Path(arguments.here[1]))))
        return
    figures = {}
    print("peak MiB with a step, before it, and before any picture; MiB kept in memory and on disk; seconds")
    print(
        f"{'way':8} {'step':>6} {'rest':>6} {'before':>6} {'memory':>6} {'disk':>6} {'frozen':>7} {'step':>6}  trained"
    )
    with tempfile.TemporaryDirectory() as folder:
        write_pictures(arguments.pictures, Path(folder))
        for way in arguments.ways:
            command = [sys.executable, __file__, *sys.argv[1:], "--here", way, folder]
            figures[way] = each = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            print(
                f"{way:8} {each['peak']:6.0f} {each['resting']:6.0f} {each['before']:6.0f} {each['memory']:6.0f} "
                f"{each['disk']:6.0f} {each['frozen_s']:7.1f} {each['step_s']:6.1f}  {each['digest'][:12]}"
            )
    if arguments.out:
        arguments.out.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    if len({each["digest"] for each in figures.values()}) > 1:
        sys.exit("the ways trained different values")


if __name__ == "__main__":
    main()
