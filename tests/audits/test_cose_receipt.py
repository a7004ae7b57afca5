"""Receipts of RFC 9942: an implementation of others reads them, and ours takes nothing but what it would write."""

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from random import Random

import cbor2
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cwt import COSE, COSEKey
from small_logs import filled, key_of, opened, sealed

from audits import LogError, NoteError, VerifierKey
from audits.checkpoint import SUCCESSIONS, signed_succession
from audits.entry_proof import Receipt, _Cursor, cbor, check_receipt, issue

ENTRIES = 11


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signed log of eleven entries, whose tree is not balanced."""
    place = tmp_path_factory.mktemp("site")
    log = opened(place)
    filled(log, ENTRIES)
    log.checkpoint()
    log.close()
    return place


def root_by(receipt: bytes, entry: bytes) -> bytes:
    """RFC 9162, section 2.1.3.2, in the words of the section, on what cbor2 reads."""
    size, index, path = cbor2.loads(cbor2.loads(receipt).value[1][396][-1][0])
    fn, sn, r = index, size - 1, hashlib.sha256(b"\0" + entry).digest()
    assert fn <= sn
    for p in path:
        assert sn != 0
        if fn % 2 == 1 or fn == sn:
            r = hashlib.sha256(b"\1" + p + r).digest()
            while fn % 2 == 0 and fn != 0:
                fn, sn = fn >> 1, sn >> 1
        else:
            r = hashlib.sha256(b"\1" + r + p).digest()
        fn, sn = fn >> 1, sn >> 1
    assert sn == 0
    return r


def cose_key(key: VerifierKey) -> object:
    return COSEKey.new({1: 1, 2: key.hint.encode(), 3: -8, -1: 6, -2: key.raw})


@pytest.mark.parametrize("seq", range(ENTRIES))
def test_an_implementation_of_others_verifies_each_receipt(place: Path, seq: int) -> None:
    """Its CBOR is read by cbor2, its signature checked by cwt over the root that the entry and the path give."""
    key = key_of(place)
    receipt, entry = issue(place / "audit", seq, key)
    message = cbor2.loads(receipt)
    protected, unprotected, payload, signature = message.value
    assert message.tag == 18 and payload is None and len(signature) == 64
    assert cbor2.loads(protected) == {1: -8, 4: key.public.hint.encode(), 395: 1}
    assert list(unprotected) == [396] and list(unprotected[396]) == [-1] and len(unprotected[396][-1]) == 1
    assert cbor2.dumps(message, canonical=True) == receipt
    root = root_by(receipt, entry)
    assert COSE.new().decode(receipt, cose_key(key.public), detached_payload=root) == root
    with pytest.raises(Exception, match="verify"):
        COSE.new().decode(receipt, cose_key(key.public), detached_payload=hashlib.sha256(root).digest())
    signed = cbor2.dumps(["Signature1", protected, b"", root])
    Ed25519PublicKey.from_public_bytes(key.public.raw).verify(signature, signed)


def test_ours_checks_it_by_the_key_of_the_log_alone(place: Path) -> None:
    """Not by another key, or a second one, nor by the same bytes under another name."""
    key = key_of(place).public
    receipt, entry = issue(place / "audit", 6, key_of(place))
    line = next(line for line in (place / "audit" / "log-000006.jsonl").read_bytes().splitlines())
    assert check_receipt(receipt, entry, [key]) == json.loads(line)
    stranger = key_of(place, "stranger").public
    for keys in ([], [stranger], [key, stranger], [VerifierKey("medfedvqa/audit/head", key.raw)]):
        with pytest.raises(NoteError, match="lacks a signature by a given key"):
            check_receipt(receipt, entry, keys)


def test_a_receipt_of_another_entry_or_tree_is_refused(place: Path, tmp_path: Path) -> None:
    """Also of an entry with the same content elsewhere, or of a tree of another size."""
    key = key_of(place).public
    receipt, entry = issue(place / "audit", 6, key_of(place))
    other, other_entry = issue(place / "audit", 7, key_of(place))
    for one, of in ((receipt, other_entry), (other, entry)):
        with pytest.raises(NoteError, match="does not belong to this entry"):
            check_receipt(one, of, [key])
    parsed = Receipt.parse(receipt)
    for size, index in ((6, 6), (7, 6), (8, 6), (1 << 40, 6), (ENTRIES, 5), (ENTRIES, 7), (ENTRIES, 1 << 40)):
        with pytest.raises(NoteError, match="does not belong to this entry"):
            check_receipt(bytes(replace(parsed, size=size, index=index)), entry, [key])
    changed = sealed(json.loads(entry) | {"prev_hash": "0" * 64})
    body = re.sub(rb'"leaf_hash":"[0-9a-f]{64}",', b"", changed).strip()
    with pytest.raises(NoteError, match="does not belong to this entry"):
        check_receipt(receipt, body, [key])
    for garbage in (b"", b"{}", b"[]", entry + b"\n", entry + b" ", b"\xff", b"[" * 100_000, b"9" * 10_000):
        with pytest.raises((NoteError, LogError)):
            check_receipt(receipt, garbage, [key])


def test_other_algorithms_payloads_and_trailing_bytes_are_refused(place: Path) -> None:
    """Whatever COSE could say in another way, or besides, is no receipt of a log."""
    receipt, _ = issue(place / "audit", 6, key_of(place))
    tag, (protected, unprotected, _, signature) = 18, cbor2.loads(receipt).value
    header, proof = cbor2.loads(protected), unprotected[396][-1][0]
    size, index, path = cbor2.loads(proof)

    def made(
        header: dict = header,
        unprotected: dict = unprotected,
        payload: object = None,
        tag: int = tag,
        more: bytes = b"",
    ) -> bytes:
        body = [cbor2.dumps(header), unprotected, payload, signature]
        return cbor2.dumps(cbor2.CBORTag(tag, body)) + more

    def of(*proofs: bytes) -> dict:
        return {396: {-1: list(proofs)}}

    assert bytes(Receipt.parse(made())) == receipt
    wrong = [
        *(made(header | {1: algorithm}) for algorithm in (-7, -19, -257, 8)),
        *(made(header | {395: tree}) for tree in (0, 2, "RFC9162_SHA256")),
        *(made(header | {99: 1}), made({name: value for name, value in header.items() if name != 4})),
        *(made(payload=payload) for payload in (b"", b"\x00" * 32, "root", 0, False)),
        *(made(tag=98), made(tag=17), made(more=b"\0"), made(more=receipt), receipt[:-1], receipt[1:], b""),
        *(made(unprotected={}), made(unprotected=unprotected | {1: -8}), made(unprotected={396: {-2: [proof]}})),
        *(made(unprotected=of()), made(unprotected=of(proof, proof)), made(unprotected=of(proof + b"\0"))),
        made(unprotected=of(cbor2.dumps([size, index, []]))),
        made(unprotected=of(cbor2.dumps([size, index, [*path[:-1], path[-1][:-1]]]))),
        made(unprotected=of(cbor2.dumps([size, -1, path]))),
        made(unprotected=of(b"\x83\x18\x0b" + proof[2:])),  # the size in more bytes than it needs
        made(unprotected=of(proof[:3] + b"\x9b" + b"\xff" * 8)),  # a path of 2**64 - 1 hashes
        b"\x81" * 100_000,
    ]
    for number, encoded in enumerate(wrong):
        with pytest.raises(NoteError, match="not a receipt"):
            Receipt.parse(encoded)
            pytest.fail(f"number {number} was read")


def test_mutated_receipts_are_refused_in_one_sentence(place: Path) -> None:
    """Every byte is fixed by the form or the signature, which RFC 9942 puts over the root; the tree's size is not."""
    random, key = Random(9942), key_of(place).public
    receipt, entry = issue(place / "audit", 3, key_of(place))
    cases = [
        receipt[:at] + bytes([receipt[at] ^ 1 << bit]) + receipt[at + 1 :]
        for at in range(len(receipt))
        for bit in (0, 6)
    ]
    cases += [receipt[: random.randrange(len(receipt))] for _ in range(50)]
    cases += [random.randbytes(random.randrange(400)) for _ in range(200)]
    cases += [receipt[:30] + random.randbytes(random.randrange(200)) for _ in range(200)]
    read = Receipt.parse(receipt)
    for case in cases:
        try:
            check_receipt(case, entry, [key])
        except NoteError:
            continue
        assert replace(Receipt.parse(case), size=ENTRIES) == read and case != receipt


@pytest.mark.parametrize("value", [0, 23, 24, 255, 256, 65535, 65536, 2**32, 2**64 - 1, -1, -24, -25, -257])
def test_numbers_are_written_in_the_fewest_bytes(value: int) -> None:
    assert cbor(value) == cbor2.dumps(value, canonical=True)


def test_what_cannot_be_proven_gets_no_receipt(place: Path, tmp_path: Path) -> None:
    """An entry that is not there, a log of one entry, a checkpoint that this key did not sign."""
    with pytest.raises(LogError, match="no checkpoint"):
        issue(place / "audit", ENTRIES, key_of(place))
    with pytest.raises(LogError, match="not signed by this site's key"):
        issue(place / "audit", 1, key_of(tmp_path))
    log = opened(tmp_path)
    filled(log, 1)
    log.checkpoint()
    with pytest.raises(LogError, match="no receipt for a log of one entry"):
        issue(tmp_path / "audit", 0, key_of(tmp_path))
    log.close()


def test_a_site_with_a_new_key_signs_for_what_the_old_one_signed(place: Path, tmp_path: Path) -> None:
    """As far as both keys say that the new one succeeds."""
    log, old = opened(tmp_path), key_of(tmp_path)
    filled(log, 3)
    log.checkpoint()
    log.close()
    new = key_of(place)
    (tmp_path / "audit" / SUCCESSIONS).write_text(f"{signed_succession(old, new, 3)}\n")
    receipt, entry = issue(tmp_path / "audit", 2, new)
    assert check_receipt(receipt, entry, [new.public])["seq"] == 2


@pytest.mark.parametrize("encoded", [b"\x41a", b"\x1c"])
def test_a_number_of_another_type_or_of_a_reserved_length_is_refused(encoded: bytes) -> None:
    """RFC 8949, section 3: major type 0 in the first three bits, and no lengths 28 to 30."""
    with pytest.raises(ValueError):
        _Cursor(encoded).head(0)
