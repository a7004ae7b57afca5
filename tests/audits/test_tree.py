"""Merkle trees: roots, proofs and their file, against the recursive definition and the published vectors."""

import hashlib
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_logs import defined_root

from audits.tree import (
    EMPTY_ROOT,
    Frontier,
    TreeFile,
    consistency_proof,
    consistent,
    includes,
    inclusion_proof,
    nodes_before,
    root_of,
)

INPUTS = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
"""The data of the test vectors that Certificate Transparency's implementations share, in hex."""
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
"""Their roots, by number of leaves."""

LEAVES = [hashlib.sha256(b"\0" + bytes.fromhex(text)).digest() for text in INPUTS]
SIZES = st.integers(0, 130)


def defined_path(index: int, leaves: list[bytes]) -> list[bytes]:
    """Section 2.1.3.1."""
    if len(leaves) == 1:
        return []
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    if index < k:
        return [*defined_path(index, leaves[:k]), defined_root(leaves[k:])]
    return [*defined_path(index - k, leaves[k:]), defined_root(leaves[:k])]


def defined_subproof(old: int, leaves: list[bytes], whole: bool) -> list[bytes]:
    """Section 2.1.4.1."""
    if old == len(leaves):
        return [] if whole else [defined_root(leaves)]
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    if old <= k:
        return [*defined_subproof(old, leaves[:k], whole), defined_root(leaves[k:])]
    return [*defined_subproof(old - k, leaves[k:], False), defined_root(leaves[:k])]


def many(count: int, salt: bytes = b"") -> list[bytes]:
    return [hashlib.sha256(salt + bytes([0, number & 255, number >> 8])).digest() for number in range(count)]


ALL = many(300)


def nodes_of(leaves: list[bytes]):
    """Nodes by level and index, by the definition."""
    return lambda level, index: defined_root(leaves[index << level : (index + 1) << level])


def test_roots_are_those_of_the_published_vectors() -> None:
    """Trees of none to eight leaves; the empty one is SHA-256 of nothing."""
    frontier = Frontier()
    for size, root in enumerate(ROOTS):
        assert frontier.root().hex() == defined_root(LEAVES[:size]).hex() == root
        if size < len(LEAVES):
            frontier.append(LEAVES[size])
    assert EMPTY_ROOT.hex() == ROOTS[0]


@given(SIZES)
def test_the_incremental_root_is_the_defined_one(size: int) -> None:
    """With as many hashes kept as the size has binary ones."""
    frontier = Frontier()
    for leaf in ALL[:size]:
        frontier.append(leaf)
    assert frontier.root() == defined_root(ALL[:size]) == root_of(nodes_of(ALL), size)
    assert len(frontier._edge) == size.bit_count()


@given(st.integers(1, 130), st.data())
def test_inclusion_proofs_are_the_defined_ones_and_hold_for_nothing_else(size: int, data: st.DataObject) -> None:
    """Another leaf, place, size, root or a changed proof is not shown."""
    index = data.draw(st.integers(0, size - 1))
    proof, root = inclusion_proof(nodes_of(ALL), index, size), defined_root(ALL[:size])
    assert proof == defined_path(index, ALL[:size]) and includes(ALL[index], index, size, proof, root)
    other = data.draw(st.integers(0, 300).filter(lambda place: place != index))
    assert not includes(ALL[index], other, size, proof, root)
    assert not includes(bytes(32), index, size, proof, root) and not includes(ALL[index], index, size, proof, bytes(32))
    assert not includes(ALL[index], index, size, [*proof, root], root)
    for place in range(len(proof)):
        changed = [*proof[:place], bytes(32), *proof[place + 1 :]]
        assert not includes(ALL[index], index, size, changed, root)
        assert not includes(ALL[index], index, size, proof[:place] + proof[place + 1 :], root)


@given(SIZES, SIZES, st.data())
def test_consistency_proofs_are_the_defined_ones_and_hold_for_nothing_else(
    one: int, other: int, data: st.DataObject
) -> None:
    """A tree that shares fewer leaves with the older one, or a changed proof, is not shown to be consistent."""
    old, new = sorted((one, other))
    roots = defined_root(ALL[:old]), defined_root(ALL[:new])
    proof = consistency_proof(nodes_of(ALL), old, new)
    assert proof == ([] if old in (0, new) else defined_subproof(old, ALL[:new], True))
    assert consistent(old, new, *roots, proof)
    assert not consistent(old, new, *roots, [*proof, bytes(32)])
    if 0 < old < new:
        assert not consistent(new, old, *roots[::-1], proof) and not consistent(old, new, *roots, [])
        place = data.draw(st.integers(0, len(proof) - 1))
        assert not consistent(old, new, *roots, [*proof[:place], bytes(32), *proof[place + 1 :]])
    if old:
        forked = [*ALL[: old - 1], *many(new - old + 1, b"fork")]
        proof = consistency_proof(nodes_of(forked), old, new)
        assert not consistent(old, new, roots[0], defined_root(forked), proof)


@given(st.lists(st.integers(0, 60), max_size=5))
def test_the_file_gives_the_same_nodes_however_it_grew(steps: list[int]) -> None:
    """Also over garbage behind its end, as a power cut leaves it."""
    with tempfile.TemporaryDirectory() as folder:
        tree, size = TreeFile(Path(folder) / "tree"), 0
        for step in steps:
            assert tree.extend(size, ALL[size : size + step]) == min(size + step, 300)
            size = min(size + step, 300)
            tree._write_block(32 * nodes_before(size), bytearray(b"x" * 100))
        assert tree.holds(size, defined_root(ALL[:size])) and not tree.holds(size, bytes(32))
        for old in {0, size // 3, size}:
            assert consistency_proof(tree.node, old, size) == consistency_proof(nodes_of(ALL), old, size)
        tree.close()


def test_a_file_that_is_too_short_holds_nothing(tmp_path: Path) -> None:
    """Missing nodes are an error, never a wrong proof."""
    tree = TreeFile(tmp_path / "tree")
    tree.extend(0, ALL[:5])
    with pytest.raises(ValueError):
        tree.node(0, 5)
    assert not tree.holds(8, defined_root(ALL[:8]))
    for bad in (lambda: inclusion_proof(tree.node, 5, 5), lambda: consistency_proof(tree.node, 6, 5)):
        with pytest.raises(ValueError):
            bad()
    tree.close()
