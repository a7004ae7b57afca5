"""Task messages of a hostile server at a site, and answers of a hostile site at the server: nothing but refusals.

`MEDFEDVQA_FUZZ` sets how many of each are tried; seeds are the numbers from 0 on, so that a failure names its message.
"""

import os
import resource
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hostile_messages import MARKER, changed_json, mutated
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.shareable import Shareable
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.app_common.decomposers import common_decomposers, numpy_decomposers
from nvflare.fuel.f3.cellnet.defs import Encoding, MessageHeaderKey
from nvflare.fuel.f3.cellnet.utils import decode_payload
from nvflare.fuel.f3.message import Message
from nvflare.fuel.utils import fobs
from nvflare.fuel.utils.fobs import fobs as packing
from nvflare.fuel.utils.fobs import lobs
from served import Served
from tiers import examples
from untrained import Averaged

from audits import Refusal, read
from medfedvqa.core import registry
from medfedvqa.errors import FederationError
from medfedvqa.federation.flare import server_guard
from medfedvqa.federation.flare.executor import carry
from medfedvqa.federation.flare.messages import AUDIT_BYTES, REASON, pack
from medfedvqa.federation.flare.server_side import _TaskAnswers
from medfedvqa.federation.hub import TaskCall
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.server_receipts import ServerReceipts
from medfedvqa.federation.site_runtime import SiteRuntime

pytestmark = pytest.mark.sampled

COUNT = int(os.environ.get("MEDFEDVQA_FUZZ", examples(500)))
GROWTH = 300 * 1024  # KiB, of a process that has run one message of each kind
SITE = "chest"
TASKS = (("start", 1), ("train", 2), ("evaluate", 2))


@pytest.fixture(autouse=True)
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding as in a server's processes; FLARE's own is put back afterwards."""
    for register in (flare_decomposers, common_decomposers, numpy_decomposers):
        register.register()
    for place, name in (
        (packing.Packer, "unpack"),
        (lobs, "_get_one_section"),
        (lobs, "load_from_stream"),
        (numpy_decomposers.NumpyArrayDecomposer, "native_recompose"),
    ):
        monkeypatch.setattr(place, name, getattr(place, name))
    server_guard.decode_listed_only()


@pytest.fixture
def job(quick_job: Callable[..., JobSpec], monkeypatch: pytest.MonkeyPatch) -> JobSpec:
    """A job of a method that does not train."""
    monkeypatch.setitem(registry._METHODS, Averaged.name, Averaged)
    facts = {"method": Averaged.name, "options": {"rounds": 2, "local_baseline": False}}
    return JobSpec.from_dict(quick_job().to_dict() | facts)


class Ends:
    """A site and the notary of a server, as they meet in one job."""

    def __init__(self, config: Any, job: JobSpec, folder: Path) -> None:
        self.runtime, self.config = SiteRuntime(config, job, "job"), config
        self.served = Served(self.runtime)
        self.notary = ServerReceipts(job.exchange(), "job", [SITE, "head"], folder / "notary", folder)

    def to_site(self, task: str, round: int) -> Shareable:
        """The honest server's message."""
        tensors = Averaged.holding("any", 1) if task != "start" else {}
        tensors.pop("rows", None)
        return pack(round, tensors, self.notary.outgoing([SITE])[SITE])

    def answer(self, task: str, message: Shareable) -> Shareable:
        """What the site submits. A site that has refused a job refuses all that follows; here each message is new."""
        self.runtime._refused = None
        return carry(self.served.courier, task, message)

    def take(self, task: str, round: int, reply: Any) -> None:
        """What the server does with it. Raises `FederationError` for a refusal."""
        gathering = _TaskAnswers(TaskCall(task, round, {SITE: {}}), lambda replies: ())
        client_task = SimpleNamespace(client=SimpleNamespace(name=SITE), result=reply, task_sent_time=0.0)
        gathering._received(client_task, None)
        gathering.complete(0.0)
        taken = gathering.replies[SITE]
        self.notary.incoming(SITE, task, round, taken.tensors, taken.audit_bytes)

    def close(self) -> None:
        self.served.close()
        self.notary.close()


@pytest.fixture
def ends(sites: Callable[..., dict[str, Any]], job: JobSpec, tmp_path: Path) -> Iterator[Ends]:
    found = Ends(sites(SITE, methods=[Averaged.name])[SITE], job, tmp_path)
    yield found
    found.close()


def encoded(message: Any) -> bytes:
    return bytes(fobs.dumps(message))


def decoded(payload: bytes) -> Any:
    """As FLARE's cells do it. Raises `UndecodedError`, which says nothing of the payload."""
    message = Message({MessageHeaderKey.PAYLOAD_ENCODING: Encoding.FOBS}, payload)
    decode_payload(message, fobs_ctx={})
    return message.payload


def memory() -> int:
    """The most that this process has taken so far, KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def with_beside(message: Shareable, seed: int) -> Shareable:
    """A third of the messages are changed in their audit bytes only."""
    return Shareable(message | {AUDIT_BYTES: changed_json(message[AUDIT_BYTES], seed)}) if seed % 3 == 0 else message


def hostile_payloads(honest: dict[tuple[str, int], Shareable]) -> Iterator[tuple[str, int, bytes]]:
    """Task, round and bytes of each."""
    for seed in range(COUNT):
        task, round = TASKS[seed % 7 % len(TASKS)]
        message = honest[task, round]
        payload = encoded(with_beside(message, seed))
        yield task, round, payload if seed % 3 == 0 else mutated(payload, seed)


def test_a_site_answers_hostile_messages_with_codes_and_echoes_nothing(ends: Ends) -> None:
    """Whatever bytes come: no crash, memory bounded, each refusal is a code, the planted text is in no answer and not
    in the log; the next honest message is answered."""
    honest = {}
    for task, round in TASKS:
        honest[task, round] = ends.to_site(task, round)
        reply = ends.answer(task, honest[task, round])
        ends.take(task, round, reply)
    before, outcomes = memory(), Counter()
    for task, _, payload in hostile_payloads(honest):
        try:
            message = decoded(payload)
        except server_guard.UndecodedError as error:
            outcomes["undecoded"] += 1
            assert MARKER not in str(error) and error.__cause__ is None
            continue
        reply = ends.answer(task, message)
        outcomes[reply.get(REASON, "answered")] += 1
        assert MARKER.encode() not in encoded(reply)
        assert REASON not in reply or reply[REASON] in set(Refusal)
    assert memory() - before < GROWTH
    assert not any(MARKER in str(entry.record()) for entry in read(ends.config.audit))
    assert MARKER.encode() not in b"".join(path.read_bytes() for path in ends.config.audit.rglob("*") if path.is_file())
    assert min(outcomes["undecoded"], outcomes["answered"], outcomes.total() - outcomes["answered"]) > COUNT / 20
    assert REASON not in ends.answer("evaluate", ends.to_site("evaluate", 2))
    print(dict(outcomes), file=sys.stderr)


def test_the_server_takes_hostile_answers_for_refusals_and_echoes_nothing(ends: Ends) -> None:
    """Whatever a site submits: no crash, memory bounded, what is not an answer stops the job with a fixed sentence, and
    the planted text is neither in it nor in the receipts."""
    honest = {}
    for task, round in TASKS:
        honest[task, round] = ends.answer(task, ends.to_site(task, round))
        ends.take(task, round, honest[task, round])
    sentences = {f"site '{SITE}' stopped the job: {refusal.sentence}" for refusal in Refusal}
    before, outcomes = memory(), Counter()
    for task, round, payload in hostile_payloads(honest):
        try:
            reply = decoded(payload)
        except server_guard.UndecodedError as error:
            outcomes["undecoded"] += 1
            assert MARKER not in str(error)
            continue
        try:
            ends.take(task, round, reply)
            outcomes["taken"] += 1
        except FederationError as error:
            outcomes["refused"] += 1
            assert str(error) in sentences
    assert memory() - before < GROWTH
    ends.notary.close()
    receipts = ends.notary._out
    assert MARKER.encode() not in b"".join(path.read_bytes() for path in receipts.rglob("*") if path.is_file())
    assert min(outcomes["undecoded"], outcomes["taken"], outcomes["refused"]) > COUNT / 20
    print(dict(outcomes), file=sys.stderr)


def section(marker: int, dot: int, data: bytes) -> bytes:
    return lobs.HEADER_STRUCT.pack(marker, dot, len(data)) + data


def test_what_flare_would_make_of_a_message_besides_values_is_not_made(tmp_path: Path) -> None:
    """An object of a class that is on FLARE's list and not on ours, a file, and a part at another process: FLARE's
    decoder makes the first, writes the second and asks for the third."""
    body = encoded({"plain": [1, 2.0, "three", b"four", None, (5,)]})
    assert decoded(body)["plain"] == [1, 2.0, "three", b"four", None, (5,)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lobs, "get_datum_dir", lambda: str(tmp_path))
        for part in (section(103, 0, bytes(16) + b"file"), section(102, 1, bytes(16) + b'{"fqcn": "x"}')):
            with pytest.raises(server_guard.UndecodedError):
                decoded(body + part)
    assert not list(tmp_path.iterdir())
    assert decoded(body + section(102, 0, bytes(16) + b"bytes that nothing refers to"))
    with pytest.raises(server_guard.UndecodedError):
        decoded(encoded(DXO(DataKind.WEIGHTS, data={})))


@pytest.mark.parametrize("shape", [(1 << 40,), (1 << 40, 0), (-1,), (3,), (1,) * 40])
def test_an_array_takes_no_more_room_than_its_bytes(shape: tuple[int, ...]) -> None:
    """A header may say that eight terabytes follow; what does not follow is not made room for."""
    before = memory()
    with pytest.raises(server_guard.UndecodedError):
        server_guard.array_of(sixteen_bytes("<f8", shape))
    assert memory() - before < 10 * 1024


@pytest.mark.parametrize(
    ("kind", "shape"), [("|O", (2,)), ("<M8[s]", (2,)), ("<m8[s]", (2,)), ("|V8", (2,)), ("<c16", (1,))]
)
def test_only_numbers_and_texts_are_decoded(kind: str, shape: tuple[int, ...]) -> None:
    """Objects, dates, bytes and complex numbers are refused though their length is right; others are not."""
    assert server_guard.array_of(sixteen_bytes("<i8", (2,))).tolist() == [0, 0]
    assert server_guard.array_of(sixteen_bytes("<U2", (2,))).tolist() == ["", ""]
    with pytest.raises(server_guard.UndecodedError):
        server_guard.array_of(sixteen_bytes(kind, shape))


def sixteen_bytes(kind: str, shape: tuple[int, ...]) -> bytes:
    """As `numpy.save` begins an array, with 16 bytes of values after the header."""
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(16)


@pytest.mark.parametrize(
    "array", [np.arange(6.0).reshape(2, 3), np.arange(6).reshape(2, 3).T, np.array(True), np.empty(0)]
)
def test_an_array_of_numbers_arrives_as_it_was_sent(array: np.ndarray) -> None:
    """Through FLARE's encoder and this decoder, in either order of axes, empty or without axes."""
    arrived = decoded(encoded({"array": array}))["array"]
    assert np.array_equal(arrived, array) and arrived.dtype == array.dtype and arrived.flags.writeable
