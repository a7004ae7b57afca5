"""A client of C2SP tlog-tiles, written from the specifications alone: nothing of the project is imported.

Sources: C2SP signed-note, tlog-checkpoint and tlog-tiles; RFC 6962, section 2.1.
"""

import base64
import http.client
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

FULL = 256


class Missing(Exception):
    """The server does not have a resource."""


@dataclass(frozen=True)
class Head:
    """What a signed checkpoint says."""

    origin: str
    size: int
    root: bytes


def opened(note: str, key: str) -> Head:
    """The checkpoint of a note that has a valid Ed25519 signature by the key. Raises `ValueError`."""
    name, key_id, coded = key.split("+", 2)
    raw = base64.b64decode(coded)
    assert raw[0] == 1 and sha256(name.encode() + b"\n" + raw).digest()[:4].hex() == key_id
    text, signatures = note.split("\n\n")
    text += "\n"
    for line in signatures.splitlines():
        dash, signer, signature = line.split(" ")
        signed = base64.b64decode(signature)
        if (dash, signer, signed[:4].hex()) == ("\u2014", name, key_id):
            Ed25519PublicKey.from_public_bytes(raw[1:]).verify(signed[4:], text.encode())
            origin, size, root, *_ = text.split("\n")
            return Head(origin, int(size), base64.b64decode(root))
    raise ValueError("no signature by the key")


@dataclass
class Client:
    """Reads a log over HTTP."""

    port: int
    key: str
    fetched: list[str] = field(default_factory=list)

    def get(self, path: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", f"/{path}")
            response = connection.getresponse()
            content = response.read()
            self.fetched.append(path)
            if response.status != 200:
                raise Missing(path)
            return content
        finally:
            connection.close()

    def head(self) -> Head:
        return opened(self.get("checkpoint").decode(), self.key)

    def resource(self, kind: str, index: int, level_size: int) -> tuple[bytes, int]:
        """A tile or bundle of a tree whose level has so many nodes, and its width."""
        digits = f"{index:03d}"
        digits = digits.zfill(-(-len(digits) // 3) * 3)
        groups = [digits[at : at + 3] for at in range(0, len(digits), 3)]
        name = "/".join([f"x{group}" for group in groups[:-1]] + groups[-1:])
        width = min(level_size - FULL * index, FULL)
        if width == FULL:
            return self.get(f"tile/{kind}/{name}"), width
        try:
            return self.get(f"tile/{kind}/{name}.p/{width}"), width
        except Missing:
            return self.get(f"tile/{kind}/{name}"), width

    def tree_hash(self, size: int, begin: int, end: int) -> bytes:
        """MTH(D[begin:end]) in a tree of that size; the range is one that a Merkle tree has."""
        count = end - begin
        if count & (count - 1):
            split = 1 << (count.bit_length() - 1)
            return parent(self.tree_hash(size, begin, begin + split), self.tree_hash(size, begin + split, end))
        height = count.bit_length() - 1
        level = height // 8
        first, across = begin >> 8 * level, 1 << height % 8
        tile, width = self.resource(str(level), first // FULL, size >> 8 * level)
        at = first % FULL
        assert at + across <= width and len(tile) >= 32 * width
        row = [tile[32 * number : 32 * number + 32] for number in range(at, at + across)]
        while len(row) > 1:
            row = [parent(left, right) for left, right in zip(row[::2], row[1::2], strict=True)]
        return row[0]

    def path(self, size: int, leaf: int, begin: int, end: int) -> list[bytes]:
        """RFC 6962, 2.1.1."""
        if end - begin == 1:
            return []
        split = begin + (1 << (end - begin - 1).bit_length() - 1)
        if leaf < split:
            return [*self.path(size, leaf, begin, split), self.tree_hash(size, split, end)]
        return [*self.path(size, leaf, split, end), self.tree_hash(size, begin, split)]

    def entries(self, size: int) -> Iterator[bytes]:
        for index in range(-(-size // FULL)):
            content, width = self.resource("entries", index, size)
            for _ in range(width):
                length = int.from_bytes(content[:2], "big")
                entry, content = content[2 : 2 + length], content[2 + length :]
                assert len(entry) == length
                yield entry


def parent(left: bytes, right: bytes) -> bytes:
    return sha256(b"\1" + left + right).digest()


def leaf_hash(entry: bytes) -> bytes:
    return sha256(b"\0" + entry).digest()


def root_by_path(leaf_hash: bytes, leaf: int, begin: int, end: int, path: list[bytes]) -> bytes:
    """The root that an audit path gives: the reverse of its definition."""
    if end - begin == 1:
        assert not path
        return leaf_hash
    split = begin + (1 << (end - begin - 1).bit_length() - 1)
    if leaf < split:
        return parent(root_by_path(leaf_hash, leaf, begin, split, path[:-1]), path[-1])
    return parent(path[-1], root_by_path(leaf_hash, leaf, split, end, path[:-1]))


def root_of_entries(hashes: list[bytes]) -> bytes:
    """MTH, RFC 6962, 2.1."""
    if len(hashes) == 1:
        return hashes[0]
    split = 1 << (len(hashes) - 1).bit_length() - 1
    return parent(root_of_entries(hashes[:split]), root_of_entries(hashes[split:]))
