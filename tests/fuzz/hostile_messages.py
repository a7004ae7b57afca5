"""Messages as an attacker would write them: valid ones in which bytes, or parts of the structure, are changed.

All of it follows from a seed. `MARKER` stands in whatever text a change brings, so that an echo of it is found.
"""

import copy
import io
import json
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import numpy as np
from nvflare.apis.shareable import ReservedHeaderKey
from nvflare.fuel.utils.fobs import lobs
from nvflare.fuel.utils.fobs.builtin_decomposers import BUILTIN_DECOMPOSERS, BUILTIN_TYPES

from medfedvqa.federation.flare.messages import AUDIT_BYTES, REASON, ROUND, TENSORS

MARKER = "MRN-4711-SMITH"
TYPE, DATA, DECOMPOSER = "__fobs_type__", "__fobs_data__", "__fobs_dc__"
_NAMES = (MARKER, "prompt.x", ROUND, TENSORS, AUDIT_BYTES, REASON, ReservedHeaderKey.HEADERS, "__rc__", TYPE, DATA, "")
_CLASSES = (
    *("os.system", "posix.system", "subprocess.Popen", "builtins.eval", "pickle.loads", "pathlib.Path"),
    *(
        "numpy.matrix",
        "torch.Tensor",
        "medfedvqa.federation.site_runtime.SiteRuntime",
        f"{MARKER}.{MARKER}",
        "",
        "numpy",
    ),
    *sorted(BUILTIN_TYPES),
)
_DTYPES = (
    *("|O", "<U14", "|S14", "<M8[s]", "<c16", "|V8", "[('x', '<f4')]", ">f4", ">i8", "<f2", "|b1", "|u1", "<f16"),
    *("<f4", "<i8", f"|{MARKER}", "V2147483647", "('<f4', (1000, 1000))"),
)
_SHAPES = (
    *("(2, 2, 4)", "()", "(16,)", "(0,)", "(-1,)", "(99999999999, 99999)", "(1,) * 40", "(True,)", "(2.0,)"),
    *(f"'{MARKER}'", "(1000000000000000000000000000000,)", "[2, 2, 4]", "None", "(" * 300, "(1, " * 33 + ")" * 33),
)


def mutated(payload: bytes, seed: int) -> bytes:
    """The payload of a message, changed in one to four places; FLARE's decoder meets the result as it is."""
    rng = random.Random(seed)
    sections = list(parsed(payload))
    if rng.random() < 0.75:
        tree = msgpack.unpackb(sections[0][3], strict_map_key=False)
        for _ in range(rng.randint(1, 4)):
            tree = changed(tree, rng)
        with_room = msgpack.Packer(default=lambda found: MARKER, unicode_errors="surrogatepass")
        try:
            sections[0] = (*sections[0][:3], with_room.pack(tree))
        except (ValueError, OverflowError, RecursionError):
            pass  # msgpack itself cannot hold it; the bytes below are changed instead
        else:
            return assembled(sections)
    if rng.random() < 0.5:
        return _bytes_changed(assembled(sections), rng)
    return _sections_changed(sections, rng)


def parsed(payload: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Marker, object type, size and content of each section."""
    stream = io.BytesIO(payload)
    while header := stream.read(lobs.HEADER_LEN):
        marker, dot, size = lobs.HEADER_STRUCT.unpack(header)
        yield marker, dot, size, stream.read(size)


def assembled(sections: list[tuple[int, int, int, bytes]]) -> bytes:
    """The inverse, with true sizes."""
    return b"".join(lobs.HEADER_STRUCT.pack(marker, dot, len(data)) + data for marker, dot, _, data in sections)


def changed(tree: Any, rng: random.Random) -> Any:
    """A copy in which one node is replaced, removed, doubled, renamed, or another class."""
    tree = copy.deepcopy(tree)
    parent, key = rng.choice([(None, None), *_places(tree)])
    if parent is None:
        return rng.choice([value(rng), tree, {**tree, rng.choice(_NAMES): value(rng)} if type(tree) is dict else []])
    rng.choice(_CHANGES)(parent, key, rng)
    return tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    for key in tree if type(tree) is dict else range(len(tree)) if type(tree) is list else ():
        yield tree, key
        yield from _places(tree[key])


def _replace(parent: Any, key: Any, rng: random.Random) -> None:
    parent[key] = array_bytes(rng) if isinstance(parent[key], bytes) and rng.random() < 0.7 else value(rng)


def _remove(parent: Any, key: Any, rng: random.Random) -> None:
    del parent[key]


def _rename(parent: Any, key: Any, rng: random.Random) -> None:
    if type(parent) is dict:
        parent[rng.choice(_NAMES)] = parent.pop(key)


def _add(parent: Any, key: Any, rng: random.Random) -> None:
    if type(parent) is dict:
        parent.update({rng.choice(_NAMES): value(rng), **({MARKER + str(n): n for n in range(rng.choice([0, 99]))})})
    else:
        parent.extend([value(rng)] * rng.choice([1, 20]))


def _another_class(parent: Any, key: Any, rng: random.Random) -> None:
    if type(parent[key]) is dict and TYPE in parent[key]:
        parent[key][rng.choice([TYPE, DECOMPOSER, DATA])] = rng.choice([*_CLASSES, *sorted(BUILTIN_DECOMPOSERS), 7])
    else:
        parent[key] = of_class(rng, parent[key])


_CHANGES: tuple[Callable[[Any, Any, random.Random], None], ...] = (_replace, _replace, _remove, _rename, _add)
_CHANGES += (_another_class,)


def of_class(rng: random.Random, data: Any) -> dict[str, Any]:
    """An object of some class, by some decomposer."""
    found = {TYPE: rng.choice([*_CLASSES, MARKER, 7, None]), DATA: data}
    if rng.random() < 0.8:
        names = [*sorted(BUILTIN_DECOMPOSERS), f"{MARKER}.Decomposer", "os.system", 7]
        found[DECOMPOSER] = rng.choice(names)
    return found


def value(rng: random.Random) -> Any:
    """Something that does not belong where it is put."""
    deep: Any = MARKER
    for _ in range(rng.choice([1, 50, 400])):
        deep = [deep] if rng.random() < 0.5 else {MARKER: deep}
    plain = (None, True, -1, 0, 2**63 - 1, -(2**63), 2**64 - 1, 1e308, float("nan"), float("inf"), 10**7, 3)
    texts = (MARKER, MARKER * 1000, "", "\x00", "train", MARKER.encode(), MARKER.encode() * 1000)
    made = (deep, {}, [], {MARKER: MARKER}, [MARKER] * 1000, array_bytes(rng), of_class(rng, MARKER), of_class(rng, {}))
    reference = of_class(rng, {"data": {"datum_id": MARKER, "unwrap": True}})
    reference[TYPE] = "nvflare.fuel.utils.fobs.datum.DatumRef"
    return rng.choice([*plain, *texts, *made, reference])


def array_bytes(rng: random.Random) -> bytes:
    """What claims to be an array as `numpy.save` writes it."""
    dtype, shape = rng.choice(_DTYPES), rng.choice(_SHAPES)
    if not dtype.startswith(("[", "(")):
        dtype = f"'{dtype}'"
    header = f"{{'descr': {dtype}, 'fortran_order': {rng.choice(['False', 'True', '7'])}, 'shape': {shape}, }}"
    header = rng.choice([header, header, header, header[:20], MARKER, "__import__('os').getpid()"])
    length = rng.choice([len(header), len(header), len(header), 0, 65535])
    version = rng.choice([b"\x01\x00", b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\xff\xff"])
    start = rng.choice([b"\x93NUMPY", b"\x93NUMPY", b"\x93NUMPY", b"PK\x03\x04", b"\x80\x04", b""])
    data = rng.choice([bytes(64), MARKER.encode(), b"", np.full(16, np.nan, np.float32).tobytes()])
    return start + version + struct.pack("<H", length) + header.encode() + data


def _bytes_changed(payload: bytes, rng: random.Random) -> bytes:
    found = bytearray(payload)
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(max(len(found), 1))
        end = at + rng.choice([1, 1, 4, 64])
        found[at:end] = rng.choice([rng.randbytes(end - at), b"", MARKER.encode(), b"\xff" * (end - at), found[:at]])
    return bytes(found[: rng.choice([len(found), len(found), rng.randrange(len(found) + 1)])][:1_000_000])


def _sections_changed(sections: list[tuple[int, int, int, bytes]], rng: random.Random) -> bytes:
    marker, dot, size, data = rng.choice(sections)
    extra = struct.pack(
        ">BBQ", rng.choice([100, 101, 102, 103, 0, 255]), rng.choice([0, 0, 1, 2, 3, 255]),
        rng.choice([16 + len(MARKER), 16, 0, 15, 2**63, 2**64 - 1, size]),
    )  # fmt: skip
    body = rng.randbytes(16) + rng.choice([MARKER.encode(), b'{"fqcn": "site", "ref_id": "x"}', b""])
    return rng.choice([assembled(sections) + extra + body, extra + data, extra + body + assembled(sections)])


def changed_json(text: bytes, seed: int) -> bytes:
    """The audit bytes beside a message, changed as JSON or as bytes."""
    rng = random.Random(seed)
    if rng.random() < 0.3:
        return _bytes_changed(text, rng)
    tree = changed(json.loads(text), rng)
    return json.dumps(tree, default=lambda found: MARKER, separators=(",", ":")).encode(errors="replace")
