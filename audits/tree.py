"""Merkle trees over the leaf hashes of a log, with inclusion and consistency proofs.

Source: RFC 9162 (Certificate Transparency version 2.0), sections 2.1.1 to 2.1.4. A leaf is 32 bytes, an entry's
`leaf_hash`; a node is SHA-256 over a byte 1 and its two children; the root of an empty tree is SHA-256 of no bytes.
"""

import os
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path

from audits.bounded_files import open_plain

HASH_BYTES = 32
EMPTY_ROOT = sha256().digest()
_HOLE = bytes(HASH_BYTES)
"""The bytes of a hole in the file, which are no node's hash."""

Nodes = Callable[[int, int], bytes]
"""Maps level and index to the root over the `1 << level` leaves from `index << level` on."""


def node_hash(left: bytes, right: bytes) -> bytes:
    """The node above these two."""
    return sha256(b"\1" + left + right).digest()


class Frontier:
    """The right edge of a growing tree: one hash for each binary 1 of its size, enough to compute every later root."""

    def __init__(self, size: int = 0, edge: Iterable[bytes] = ()) -> None:
        """`edge`: the roots of the complete subtrees of a tree of that size, the largest first."""
        self.size = size
        self._edge = list(edge)

    @classmethod
    def of(cls, nodes: Nodes, size: int) -> "Frontier":
        """The frontier of a tree of that size, from its nodes."""
        levels = [level for level in reversed(range(size.bit_length())) if size >> level & 1]
        return cls(size, [nodes(level, (size >> level) - 1) for level in levels])

    def append(self, leaf: bytes, entry: bytes | None = None) -> list[bytes]:
        """Adds a leaf; returns the nodes that it completes, from the leaf upwards.

        `entry`: the hashed bytes, for subclasses that compare them; None if only the leaf is known.
        """
        complete, size = [leaf], self.size
        while size & 1:
            leaf = sha256(b"\1" + self._edge.pop() + leaf).digest()
            complete.append(leaf)
            size >>= 1
        self._edge.append(leaf)
        self.size += 1
        return complete

    def root(self) -> bytes:
        """The root over all leaves so far."""
        if not self._edge:
            return EMPTY_ROOT
        root = self._edge[-1]
        for node in self._edge[-2::-1]:
            root = sha256(b"\1" + node + root).digest()
        return root


def root_of(nodes: Nodes, size: int) -> bytes:
    """The root over the first `size` leaves."""
    return Frontier.of(nodes, size).root()


def inclusion_proof(nodes: Nodes, index: int, size: int) -> list[bytes]:
    """The proof that leaf `index` is one of the first `size`; section 2.1.3.1. Raises `ValueError` if it is not."""
    if not 0 <= index < size:
        raise ValueError("the tree has no such leaf")
    proof, begin, end = [], 0, size
    while end - begin > 1:
        middle = begin + _split(end - begin)
        if index < middle:
            proof.append(_over(nodes, middle, end))
            end = middle
        else:
            proof.append(_over(nodes, begin, middle))
            begin = middle
    return proof[::-1]


def consistency_proof(nodes: Nodes, old: int, new: int) -> list[bytes]:
    """The proof that the tree of `new` leaves begins with the tree of `old` leaves; section 2.1.4.1.

    It is empty for `old` = 0 and `old` = `new`. Raises `ValueError` for `old > new`.
    """
    if not 0 <= old <= new:
        raise ValueError("consistency can only be proven with a smaller tree")
    if old in (0, new):
        return []
    proof, begin, end, whole = [], 0, new, True
    while old < end:
        middle = begin + _split(end - begin)
        if old <= middle:
            proof.append(_over(nodes, middle, end))
            end = middle
        else:
            proof.append(_over(nodes, begin, middle))
            begin, whole = middle, False
    return ([] if whole else [_over(nodes, begin, end)]) + proof[::-1]


def includes(leaf: bytes, index: int, size: int, proof: Iterable[bytes], root: bytes) -> bool:
    """Whether the proof shows that the tree has `leaf` at `index`; section 2.1.3.2."""
    return inclusion_root(leaf, index, size, proof) == root


def inclusion_root(leaf: bytes, index: int, size: int, proof: Iterable[bytes]) -> bytes | None:
    """The root that the proof gives for `leaf` at `index`; None if the proof does not have the right length."""
    if not 0 <= index < size:
        return None
    at, last, current = index, size - 1, leaf
    for node in proof:
        if not last:
            return None
        if at & 1 or at == last:
            current = node_hash(node, current)
            at, last = _past_left(at, last)
        else:
            current = node_hash(current, node)
        at, last = at >> 1, last >> 1
    return None if last else current


def consistent(old: int, new: int, old_root: bytes, new_root: bytes, proof: Iterable[bytes]) -> bool:
    """Whether the proof shows that the newer tree begins with the leaves of the older; section 2.1.4.2."""
    path = list(proof)
    if old == 0 or old == new:
        return not path and old_root == (EMPTY_ROOT if old == 0 else new_root)
    if not 0 < old < new or not path:
        return False
    if old & (old - 1) == 0:
        path.insert(0, old_root)
    at, last = old - 1, new - 1
    while at & 1:
        at, last = at >> 1, last >> 1
    first = second = path[0]
    for node in path[1:]:
        if not last:
            return False
        if at & 1 or at == last:
            first, second = node_hash(node, first), node_hash(node, second)
            at, last = _past_left(at, last)
        else:
            second = node_hash(second, node)
        at, last = at >> 1, last >> 1
    return not last and (first, second) == (old_root, new_root)


class TreeFile:
    """All nodes of a log's tree in a file, 64 bytes a leaf, in the order in which they become complete.

    The file holds only hashes, which a complete log gives again. So nothing is synced before `sync`, and whoever opens
    the file compares a root with a signed one.
    """

    def __init__(self, path: Path, write: bool = True) -> None:
        """Raises `OSError`; with `write=False` also if it is not a plain file."""
        if write:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        else:
            with open_plain(path, 0) as file:
                self._file = os.dup(file.fileno())

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)

    def node(self, level: int, index: int) -> bytes:
        """The hash of a node, as `Nodes` describes it. Raises `ValueError` if the file does not hold it."""
        last = (index + 1 << level) - 1
        digest = os.pread(self._file, HASH_BYTES, HASH_BYTES * (nodes_before(last) + level))
        if len(digest) != HASH_BYTES or digest == _HOLE:
            raise ValueError("the tree's file ends before this node, or has a hole there")
        return digest

    def holds(self, size: int, root: bytes) -> bool:
        """Whether the first `size` leaves in the file have this root."""
        try:
            return root_of(self.node, size) == root
        except ValueError:
            return False

    def extend(self, size: int, leaves: Iterable[bytes]) -> int:
        """Writes leaves after the first `size`, over any that follow; returns the new number of leaves."""
        frontier = Frontier.of(self.node, size)
        at, block = HASH_BYTES * nodes_before(size), bytearray()
        for leaf in leaves:
            block += b"".join(frontier.append(leaf))
            if len(block) > 1 << 20:
                at, block = self._write_block(at, block), bytearray()
        self._write_block(at, block)
        return frontier.size

    def sync(self) -> None:
        """Writes the file to disk."""
        os.fsync(self._file)

    def _write_block(self, at: int, block: bytearray) -> int:
        rest = memoryview(block)
        while rest:
            count = os.pwrite(self._file, rest, at)
            at, rest = at + count, rest[count:]
        return at


def nodes_before(leaf: int) -> int:
    """The number of complete nodes before this leaf is added."""
    return 2 * leaf - leaf.bit_count()


def _split(count: int) -> int:
    """The largest power of two below `count`, which is at least 2."""
    return 1 << (count - 1).bit_length() - 1


def _over(nodes: Nodes, begin: int, end: int) -> bytes:
    """The root of the subtree over leaves `begin` to `end` - 1."""
    count = end - begin
    if count & (count - 1) == 0:
        level = count.bit_length() - 1
        return nodes(level, begin >> level)
    middle = begin + _split(count)
    return node_hash(_over(nodes, begin, middle), _over(nodes, middle, end))


def _past_left(at: int, last: int) -> tuple[int, int]:
    """Moves up to the first node that is a right child, or the first of its level."""
    while at and not at & 1:
        at, last = at >> 1, last >> 1
    return at, last
