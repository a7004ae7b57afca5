"""Bad input: one sentence that says what to do, the row by its index, and nothing of its content."""

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from medfedvqa.data import Split, load_site, organs, read
from medfedvqa.errors import ConfigError, DataError

ALL_TRAIN = Split(validation=0.0)
Publish = Callable[..., Path]
RawRow = Callable[..., dict[str, object]]


def refused(root: Path, message: str, load_pictures: bool = False) -> None:
    """Loading the chest fails with exactly this message, and shows no exception behind it."""
    with pytest.raises(DataError) as caught:
        site = load_site("vqa-rad", root, "chest", ALL_TRAIN)
        if load_pictures:
            site.pictures.load(32)
    assert str(caught.value) == message
    assert caught.value.__cause__ is None and (caught.value.__suppress_context__ or caught.value.__context__ is None)


def two_rows(raw_row: RawRow) -> list[dict[str, object]]:
    return [raw_row(), raw_row(answer="no", image_name="SECRET-2.jpg")]


@pytest.mark.parametrize("root", [None, Path("/no/SECRET/folder")])
@pytest.mark.parametrize("reader", ["vqa-rad", "slake"])
def test_a_missing_data_root_is_named_by_its_option(reader: str, root: Path | None) -> None:
    with pytest.raises(DataError, match="--data-root") as caught:
        organs(reader, root)
    assert "SECRET" not in str(caught.value)


def test_an_unknown_data_set_lists_the_known_ones() -> None:
    with pytest.raises(
        ConfigError, match="vqa-rad, slake, path-vqa, vqa-med, coco-vqa, parquet, captions, table, store"
    ):
        read("imagenet", None)


def test_a_missing_file_is_named_without_its_folder(tmp_path: Path) -> None:
    refused(tmp_path, "'VQA_RAD Dataset Public.json' is missing: point --data-root at the published folder")


@pytest.mark.parametrize("content", [b'[{"question": "SECRET', b"\xff\xfe SECRET"])
def test_a_file_that_is_no_json(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "VQA_RAD Dataset Public.json").write_bytes(content)
    refused(tmp_path, "'VQA_RAD Dataset Public.json' is not valid JSON: download it again")


def test_a_file_that_is_no_list(publish: Publish) -> None:
    root = publish({"rows": []})
    refused(root, "'VQA_RAD Dataset Public.json' holds no list of rows: download it again")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_organ": "FOOT"}, "row 1: unknown organ; VQA-RAD has CHEST, ABD, HEAD"),
        ({"image_organ": None}, "row 1: the organ is missing or empty"),
        ({"question": ""}, "row 1: the question is missing or empty"),
        ({"answer": "  "}, "row 1: the answer is missing or empty"),
        ({"answer": True}, "row 1: the answer is missing or empty"),
        ({"answer": ["SECRET"]}, "row 1: the answer is missing or empty"),
        ({"image_case_url": None}, "row 1: the case is missing or empty"),
        ({"image_name": None}, "row 1: the image name is missing or empty"),
        ({"answer_type": "SECRET"}, "row 1: the answer type is neither CLOSED nor OPEN"),
        (
            {"phrase_type": "SECRET"},
            "row 1: unknown phrase type; VQA-RAD has freeform, para, test_freeform, test_para",
        ),
    ],
)
def test_a_malformed_row_is_named_by_its_index(
    publish: Publish, raw_row: RawRow, change: dict[str, object], message: str
) -> None:
    refused(publish([raw_row(), raw_row(**change)]), message)


@pytest.mark.parametrize("row", ["SECRET", None, 7, ["SECRET"]])
def test_a_row_that_is_no_object(publish: Publish, row: object) -> None:
    refused(publish([row]), "row 0: the organ is missing or empty")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"location": "SECRET"}, "row 1: unknown organ; SLAKE has Lung, Abdomen, Brain, "),
        ({"location": "Chest_SECRET"}, "row 1: unknown organ; SLAKE has Lung, Abdomen, Brain, "),
        ({"q_lang": ""}, "row 1: the language is missing or empty"),
        ({"q_lang": "SECRET"}, "row 1: unknown language; SLAKE has en and zh"),
        ({"answer": ""}, "row 1: the answer is missing or empty"),
        ({"answer_type": "OPEN", "answer": None}, "row 1: the answer is missing or empty"),
        ({"img_name": None}, "row 1: the image name is missing or empty"),
    ],
)
def test_a_malformed_row_of_slake(publish_slake: Callable[..., Path], change: dict[str, object], message: str) -> None:
    sound = {"location": "Lung", "answer_type": "CLOSED", "question": "SECRET?", "answer": "SECRET", "q_lang": "en"}
    sound["img_name"] = "SECRET/source.jpg"
    with pytest.raises(DataError) as caught:
        read("slake", publish_slake({"train": [sound], "test": [{**sound, **change}]}))
    assert str(caught.value).startswith(message)
    assert "SECRET" not in str(caught.value)


def test_an_unknown_organ_lists_the_known_ones(publish: Publish, raw_row: RawRow) -> None:
    with pytest.raises(DataError, match="unknown organ; vqa-rad has chest, abdomen, head"):
        load_site("vqa-rad", publish(two_rows(raw_row)), "foot", ALL_TRAIN)


def test_an_organ_without_closed_rows(publish: Publish, raw_row: RawRow) -> None:
    rows = [*two_rows(raw_row), raw_row(image_organ="HEAD", answer_type="OPEN", image_name="SECRET-3.jpg")]
    with pytest.raises(DataError, match="the organ 'head' has no closed questions"):
        load_site("vqa-rad", publish(rows), "head", ALL_TRAIN)


def test_a_site_without_train_rows(publish: Publish, raw_row: RawRow) -> None:
    root = publish([raw_row(phrase_type="test_para"), raw_row(phrase_type="test_freeform", answer="no")])
    refused(root, "the organ 'chest' has no train rows under this split: choose other fractions")


def test_an_answer_space_of_one(publish: Publish, raw_row: RawRow) -> None:
    """'SECRET yes' and 'secret  YES' fold to one answer; the test rows' answers do not count."""
    root = publish([raw_row(), raw_row(answer="secret  YES"), raw_row(answer="no", phrase_type="test_para")])
    refused(root, "all train rows have the same answer, so there is nothing to learn: check the split")


def test_a_missing_image(publish: Publish, raw_row: RawRow) -> None:
    """All that are missing are counted when a site loads its data, before anything is trained."""
    rows = [*two_rows(raw_row), raw_row(image_name="SECRET-3.jpg"), raw_row(image_name="SECRET-3.jpg")]
    words = "row 1: its picture is missing or empty (2 in all): `medfedvqa data check` names all"
    refused(publish(rows), words)


def test_a_truncated_jpeg(publish: Publish, raw_row: RawRow) -> None:
    root = publish(two_rows(raw_row), images=("SECRET-1.jpg", "SECRET-2.jpg"))
    file = root / "VQA_RAD Image Folder" / "SECRET-2.jpg"
    file.write_bytes(file.read_bytes()[:-400])
    refused(root, "row 1: its image cannot be decoded", load_pictures=True)


@pytest.mark.parametrize("kept", [0.3, 0.99])
def test_a_truncated_png(publish: Publish, raw_row: RawRow, kept: float) -> None:
    """Cut in its pixels or at its very end: no part of it is trained on."""
    root = publish(two_rows(raw_row))
    file = root / "VQA_RAD Image Folder" / "SECRET-2.jpg"
    Image.effect_noise((64, 64), 50).save(file, format="png")
    file.write_bytes(file.read_bytes()[: int(kept * file.stat().st_size)])
    refused(root, "row 1: its image cannot be decoded", load_pictures=True)


@pytest.mark.parametrize("content", [b"SECRET text that is no image\n", b"\x89PNG\r\n\x1a\n\x00\x00"])
def test_a_file_that_is_no_image(publish: Publish, raw_row: RawRow, content: bytes) -> None:
    root = publish(two_rows(raw_row))
    (root / "VQA_RAD Image Folder" / "SECRET-2.jpg").write_bytes(content)
    refused(root, "row 1: its image cannot be decoded", load_pictures=True)


@pytest.mark.parametrize("side", [10_000, 20_000])
def test_a_decompression_bomb_is_not_decoded(publish: Publish, raw_row: RawRow, side: int) -> None:
    """Both above Pillow's limit, where it only warns, and above twice that, where it raises."""
    root = publish(two_rows(raw_row))
    (root / "VQA_RAD Image Folder" / "SECRET-2.jpg").write_bytes(_white_png(side))
    with pytest.warns(Image.DecompressionBombWarning) if side < 13_000 else pytest.raises(Image.DecompressionBombError):
        Image.open(root / "VQA_RAD Image Folder" / "SECRET-2.jpg").close()
    message = "row 1: its image has too many pixels to be a radiograph; resize it"
    refused(root, message, load_pictures=True)


def test_reprs_show_no_content(publish: Publish, raw_row: RawRow) -> None:
    root = publish(two_rows(raw_row), images=("SECRET-1.jpg", "SECRET-2.jpg"))
    data = read("vqa-rad", root)
    site = load_site("vqa-rad", root, "chest", ALL_TRAIN)
    shown = repr((data, data.rows, site, site.train, site.pictures)).lower()
    assert "secret" not in shown and "tensor" not in shown


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "random"},
        {"fractions": (0.5, 0.5, 0.5)},
        {"fractions": (1.2, -0.1, -0.1)},
        {"fractions": (0.5, 0.5)},
        {"validation": 1.0},
        {"validation": -0.1},
    ],
)
def test_an_impossible_split_is_refused_before_any_data_is_read(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="the split"):
        Split(**options)


def _white_png(side: int) -> bytes:
    """A valid PNG of side x side one-bit pixels in a few kilobytes."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    deflate = zlib.compressobj()
    line = b"\x00" + b"\xff" * (side // 8)
    pixels = b"".join(deflate.compress(line) for _ in range(side)) + deflate.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
