"""Trains the network that says where text may stand in a picture, and measures its misses apart from the finder's.

`train` draws text in random places: words of eight alphabets in twelve typefaces and seven of strokes, none of which
`burned_in_text.py` draws with, and scribbles in place of handwriting; capitals of 3.5 to 18 pixels, 10 to 255 grey
levels, in all directions, with and without plates, grain and JPEG. The ground is 2,552 pictures of four open sets, and
in a second stage also every second picture of SLAKE, which the open sets are less sharp than. Cells beside letters, and
letters of more than 18 pixels, which the network sees reduced, do not count.

`misses` draws the films of `burned_in_text.py`. A line is missed if less than half of its pixels lie in cells that may
hold text or beside one. It also prints the share of films and pictures without drawn lines that is searched for
nothing.
"""

import argparse
import functools
import string
import time
import zipfile
from pathlib import Path

import cv2
import matplotlib
import numpy as np
import onnx
import torch
from burned_in_text import Array, drawn_film, picture_sets
from onnx import TensorProto, helper, numpy_helper
from PIL import Image, ImageDraw, ImageFont
from torch import nn

from medfedvqa.ingest.text_gate import CELL, TextGate, evened

SETS, OF_A_SET = ("kermany_cxr", "brain_tumor_mr", "iqoth_chest_ct", "mhh_covid_cxr"), 600
WIDE_FONTS = (
    "DejaVuSans-Oblique", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSerif-Bold", "DejaVuSerif-Italic",
    "DejaVuSans-BoldOblique",
)  # fmt: skip
FONTS = (*WIDE_FONTS, "STIXGeneralBol", "STIXGeneralItalic", "cmr10", "cmb10", "cmtt10", "cmti10")
STROKE_FONTS = range(1, 8)
ALPHABETS = (
    string.ascii_uppercase, string.ascii_letters, string.digits, string.digits + "-./:",
    string.ascii_letters + string.digits + " .,-^",
)  # fmt: skip
WIDE_ALPHABETS = (
    *ALPHABETS,
    "АБВГДЕЖЗИКЛМНОПРСТУФХЦЧШЩЫЭЮЯабвгдежзиклмнопрстуфхцчшщыэюя",
    "ΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡΣΤΥΦΧΨΩαβγδεζηθικλμνξοπρστυφχψω",
    "ÄÖÜäöüßéèêçñłśżęąığşİŁÓ" + string.ascii_letters,
    "ԱԲԳԴԵԶԷԸԹԺԻԼԽԾԿ",
)
PATCH, BATCH = 256, 16
STAGES = ((800, 6e-3, False), (1000, 4e-3, True))
"""Steps, highest rate, and whether pictures of SLAKE are ground, too."""
TEXT_WEIGHT = 3.0


def word(generator: np.random.Generator, alphabet: str) -> str:
    """Two to eighteen letters, and a space among more than six of them half of the time."""
    count = int(generator.integers(2, 19))
    letters = "".join(generator.choice(list(alphabet), count))
    if count > 6 and generator.random() < 0.5:
        letters = f"{letters[: count // 2]} {letters[count // 2 + 1 :]}"
    return letters.strip() or "AB"


def scribble(generator: np.random.Generator, height: float) -> Array:
    """A wandering stroke of this height, uint8."""
    fine, count = 4, 3 * int(generator.integers(3, 14))
    tall, step = max(2, height) * fine, fine * max(2, height) * generator.uniform(0.35, 0.7)
    x = np.cumsum(generator.uniform(0.2, 1.0, count)) * step / 2
    y = tall * (0.5 + 0.5 * np.where(np.arange(count) % 2, 1, -1) * generator.uniform(0.3, 1, count))
    times = np.linspace(0, count - 1, count * 6)
    smooth = [cv2.GaussianBlur(part.astype(np.float32)[:, None], (1, 3), 0)[:, 0] for part in (x, y)]
    points = np.stack([np.interp(times, np.arange(count), part) for part in smooth], axis=1) + 2 * fine
    mask = np.zeros((int(points[:, 1].max()) + 3 * fine, int(points[:, 0].max()) + 3 * fine), np.uint8)
    cv2.polylines(mask, [points.astype(np.int32)], False, 255, max(1, round(tall / 9)), cv2.LINE_AA)
    return cv2.resize(mask, None, fx=1 / fine, fy=1 / fine, interpolation=cv2.INTER_AREA)


@functools.cache
def typeface(name: str, tenths: int) -> ImageFont.FreeTypeFont:
    """The typeface whose capitals have this height, in tenths of a pixel."""
    path = str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{name}.ttf")
    return ImageFont.truetype(path, 20 * tenths / -ImageFont.truetype(path, 200).getbbox("H", anchor="ls")[1])


def written(generator: np.random.Generator, height: float) -> Array:
    """The coverage of the pixels of a line of capitals of this height, turned, float32 in 0..1."""
    kind = generator.random()
    if kind < 0.12:
        mask = scribble(generator, height)
    elif kind < 0.3:
        text = word(generator, ALPHABETS[int(generator.integers(len(ALPHABETS)))])
        font, thickness = int(generator.choice(STROKE_FONTS)), max(1, round(height / 10))
        (width, rows), below = cv2.getTextSize(text, font, height / 21, thickness)
        mask = np.zeros((rows + below + 6, width + 6), np.uint8)
        cv2.putText(mask, text, (3, rows + 3), font, height / 21, 255, thickness, cv2.LINE_AA)
    else:
        name = str(generator.choice(FONTS))
        alphabets = WIDE_ALPHABETS if name in WIDE_FONTS else ALPHABETS
        text = word(generator, alphabets[int(generator.integers(len(alphabets)))])
        face = typeface(name, round(10 * height))
        left, top, right, bottom = face.getbbox(text, anchor="ls")
        canvas = Image.new("L", (int(right - left) + 6, int(bottom - top) + 6))
        ImageDraw.Draw(canvas).text((3 - left, 3 - top), text, font=face, fill=255, anchor="ls")
        mask = np.asarray(canvas)
    slight = generator.uniform(-15, 15)
    turn = float(generator.choice([0, 0, 0, 90, 270, 180, slight, slight, generator.uniform(0, 360)]))
    return np.asarray(Image.fromarray(mask).rotate(turn, Image.Resampling.BICUBIC, True), np.float32) / 255


def ground(generator: np.random.Generator, pictures: list[Array], sharp: list[Array], side: int) -> Array:
    """A square of a picture, enlarged or reduced, float32."""
    is_sharp = bool(sharp) and generator.random() < 0.5
    pool, factors = (sharp, (0.5, 0.7, 1, 1, 1, 1.5, 2, 3)) if is_sharp else (pictures, (1, 1, 1.5, 2, 3, 4))
    picture, factor = pool[int(generator.integers(len(pool)))], float(generator.choice(factors))
    how = cv2.INTER_CUBIC if factor > 1 else cv2.INTER_AREA
    picture = cv2.resize(picture, None, fx=factor, fy=factor, interpolation=how)
    missing = [max(0, side - length) for length in picture.shape]
    if any(missing):
        border = int(generator.choice([cv2.BORDER_REFLECT, cv2.BORDER_CONSTANT]))
        picture = cv2.copyMakeBorder(picture, 0, missing[0], 0, missing[1], border)
    top, left = (int(generator.integers(length - side + 1)) for length in picture.shape)
    square = picture[top : top + side, left : left + side].astype(np.float32)
    return 255 - square if generator.random() < 0.3 else square


def example(generator: np.random.Generator, pictures: list[Array], sharp: list[Array]) -> tuple[Array, Array, Array]:
    """A picture, uint8 [PATCH, PATCH]; which cells hold letters, and how much they count, float32 [cells, cells]."""
    reduced = 2 if generator.random() < 0.5 else 1
    side, noise = PATCH * reduced, float(generator.choice([0, 0, 2, 4, 8]))
    picture = ground(generator, pictures, sharp, side)
    picture = (picture + generator.normal(size=picture.shape) * noise).clip(0, 255)
    letters, large, weight = np.zeros((side, side), bool), np.zeros((side, side), bool), np.ones((side, side))
    for _ in range(int(generator.choice([0, 1, 2, 3, 4]))):
        is_large = generator.random() < 0.08
        cover = written(generator, reduced * _between(generator, *((18, 60) if is_large else (3.5, 18))))
        height, width = cover.shape
        top = int(generator.integers(-height // 2, side - height // 2))
        left = int(generator.integers(-width // 2, side - width // 2))
        place = np.s_[max(0, top) : top + height, max(0, left) : left + width]
        part = picture[place]
        if not part.size or letters[place].any():
            continue
        cover = cover[max(0, -top) :, max(0, -left) :][: part.shape[0], : part.shape[1]]
        contrast = _between(generator, 10, 255)
        if generator.random() < 0.45:
            part[:] = generator.uniform(0, 255)
        mean, bright = part.mean(), generator.random() < 0.5
        is_up = (bright and mean + contrast <= 255) or mean - contrast < 0
        shade = min(255, mean + contrast) if is_up else max(0, mean - contrast)
        part[:] = part * (1 - cover) + shade * cover
        if is_large:
            large[place] = True
        else:
            letters[place] |= cover > 0.3
            weight[place] = min(1, abs(shade - mean) / (10 + 2 * noise))
    if reduced == 2:
        picture = cv2.resize(picture, (PATCH, PATCH), interpolation=cv2.INTER_AREA)
    picture = picture.clip(0, 255).astype(np.uint8)
    if generator.random() < 0.3:
        quality = [cv2.IMWRITE_JPEG_QUALITY, int(generator.integers(60, 96))]
        picture = cv2.imdecode(cv2.imencode(".jpg", picture, quality)[1], cv2.IMREAD_GRAYSCALE)
    cells = [array.reshape(PATCH // CELL, CELL * reduced, -1, CELL * reduced) for array in (letters, large, weight)]
    held, doubtful, weights = cells[0].any((1, 3)), cells[1].any((1, 3)), cells[2].min((1, 3))
    beside = cv2.dilate(held.astype(np.uint8), np.ones((3, 3))) > 0
    counted = np.where(held, weights, np.where(beside | doubtful, 0, 1))
    return picture, held.astype(np.float32), counted.astype(np.float32)


def _between(generator: np.random.Generator, low: float, high: float) -> float:
    """A number whose logarithm is uniform."""
    return float(np.exp(generator.uniform(np.log(low), np.log(high))))


def network() -> nn.Sequential:
    """8,045 weights: two convolutions, and four that are separable, of which the last two look wider."""

    def separable(inner: int, outer: int, reach: int = 1, stride: int = 1) -> list[nn.Module]:
        return [nn.Conv2d(inner, inner, 3, stride, reach, reach, inner), nn.Conv2d(inner, outer, 1), nn.ReLU()]

    return nn.Sequential(
        nn.Conv2d(2, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU(), *separable(24, 32, stride=2),
        *separable(32, 32), *separable(32, 32, 2), *separable(32, 32, 3), nn.Conv2d(32, 1, 1),
    )  # fmt: skip


def train(data: Path, out: Path, shorter: int) -> None:
    """Train, and write the network. `shorter`: by how much fewer steps are taken."""
    torch.manual_seed(0)
    pictures, sharp = _open_pictures(data), [cv2.imread(str(path), 0) for path in picture_sets(data)["SLAKE"][::2]]
    model = network()
    for stage, (steps, rate, is_sharp) in enumerate(STAGES, 1):
        generator, count = np.random.default_rng(stage), max(1, steps // shorter)
        optimiser = torch.optim.AdamW(model.parameters(), rate, weight_decay=1e-4)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=count)
        for step in range(1, count + 1):
            drawn = [example(generator, pictures, sharp if is_sharp else []) for _ in range(BATCH)]
            inputs = torch.from_numpy(np.stack([evened(picture) for picture, *_ in drawn]))
            held, weight = (
                torch.from_numpy(np.stack(arrays))[:, None] for arrays in list(zip(*drawn, strict=True))[1:]
            )
            loss = nn.functional.binary_cross_entropy_with_logits(
                model(inputs), held, weight, reduction="sum", pos_weight=torch.tensor(TEXT_WEIGHT)
            )
            optimiser.zero_grad()
            (loss / weight.sum()).backward()
            optimiser.step()
            schedule.step()
            if step % 50 == 0 or step == count:
                print(f"stage {stage}, step {step}: loss {(loss / weight.sum()).item():.4f}", flush=True)
    write(model, out)


def _open_pictures(data: Path) -> list[Array]:
    pictures = []
    for name in SETS:
        with zipfile.ZipFile(data / "open" / f"{name}.zip") as archive:
            names = sorted(entry for entry in archive.namelist() if entry.endswith(".jpg"))
            chosen = names[:: max(1, len(names) // OF_A_SET)]
            pictures += [cv2.imdecode(np.frombuffer(archive.read(entry), np.uint8), 0) for entry in chosen]
    return pictures


def write(model: nn.Sequential, out: Path) -> None:
    """Write the network with a final sigmoid as ONNX."""
    nodes, weights, value = list[onnx.NodeProto](), list[onnx.TensorProto](), "picture"
    for number, layer in enumerate(model):
        result = f"layer{number}"
        if isinstance(layer, nn.Conv2d):
            names = f"weight{number}", f"bias{number}"
            tensors = layer.weight, layer.bias
            weights += [numpy_helper.from_array(t.detach().numpy(), n) for t, n in zip(tensors, names, strict=True)]
            shape = {"strides": layer.stride, "dilations": layer.dilation, "pads": [*layer.padding, *layer.padding]}
            nodes.append(helper.make_node("Conv", [value, *names], [result], group=layer.groups, **shape))
        else:
            nodes.append(helper.make_node("Relu", [value], [result]))
        value = result
    nodes.append(helper.make_node("Sigmoid", [value], ["values"]))
    ends = (("picture", ["n", 2, "h", "w"]), ("values", ["n", 1, "rows", "columns"]))
    inputs, outputs = ([helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)] for name, shape in ends)
    graph = helper.make_graph(nodes, "text_gate", inputs, outputs, weights)
    model_proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model_proto)
    onnx.save(model_proto, str(out))


def misses(data: Path, films: int, seed: int) -> None:
    """Print the gate's misses, and what it lets the finder search."""
    sets = picture_sets(data)
    paths = [path for part in sets.values() for path in part]
    gate = TextGate()
    missed, searched = list[tuple[int, float, bool]](), list[float]()
    seconds, pixels = 0.0, 0

    def searched_cells(picture: Array) -> Array:
        return cv2.dilate(np.minimum(gate(picture), 1), np.ones((3, 3), np.uint8))

    for number in range(films):
        plain, picture, lines, _ = drawn_film(number, paths, seed)
        started = time.process_time()
        cells = searched_cells(picture)
        seconds, pixels = seconds + time.process_time() - started, pixels + picture.size
        searched.append(float(searched_cells(plain).mean()))
        for line, reached, mask in lines:
            y, x = np.nonzero(mask)
            missed.append((line.height, reached, bool(cells[y // CELL, x // CELL].mean() < 0.5)))
    for title, part in {
        "8 pixels and 30 levels or more": [line for line in missed if line[0] >= 8 and line[1] >= 30],
        "8 pixels, fainter": [line for line in missed if line[0] >= 8 and line[1] < 30],
        "6 pixels": [line for line in missed if line[0] == 6],
        "4 pixels": [line for line in missed if line[0] == 4],
    }.items():
        print(f"{title}: {sum(line[2] for line in part)} of {len(part)} missed")
    print(f"of films without lines {np.mean(searched):.1%} is searched")
    print(f"{1e6 * seconds / pixels:.3f} processor seconds for a million pixels")
    for title, part in sets.items():
        shares = [searched_cells(cv2.imread(str(path), 0)).mean() for path in part[1::16]]
        print(f"{title} as it is, {len(shares)} pictures: {np.mean(shares):.1%} is searched")


def main() -> None:
    """Train or measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "misses"))
    parser.add_argument("data", type=Path, help="the data folder, with vqa-rad, slake and, to train, open")
    parser.add_argument("--out", type=Path, default=Path("text_gate.onnx"), help="where the network is written")
    parser.add_argument("--shorter", type=int, default=1, help="divide the steps of training by this")
    parser.add_argument("--films", type=int, default=182, help="films to draw")
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    cv2.setNumThreads(1)
    if arguments.what == "train":
        train(arguments.data, arguments.out, arguments.shorter)
    else:
        misses(arguments.data, arguments.films, arguments.seed)


if __name__ == "__main__":
    main()
