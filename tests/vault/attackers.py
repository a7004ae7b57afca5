"""A courier, and behind it a server, that lie at a vault's socket: own frames, own signatures, nothing of `Wire`."""

import base64
import json
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from lying_network import Network
from lying_server import DEADLINE, Answer, NearLiar
from vaults import sites_of

from audits import Entry, Event, Outcome, read, verify
from medfedvqa.core import Tensors
from medfedvqa.federation.flare.recipe import export_job
from medfedvqa.federation.job import JobSpec, Terms
from medfedvqa.federation.job_signature import federation_of
from medfedvqa.vault.place import VaultPlace
from medfedvqa.version import code_digest

PREFIX = struct.Struct("<4sIQ")
SIGNATURES, SIGNER = ".__nvfl_sig.json", ".__nvfl_submitter.crt"
SITE, RANDOM = "chest", "medclip@random"
OPTIONS = {"rounds": 2, "local_epochs": 1, "local_unit": "batches", "batch_rows": 8, "blocks": 1, "hidden": 8}
JOB = {"method": "prompt_pfl", "options": OPTIONS | {"local_baseline": False}, "data": "phantom", "backbone": RANDOM}
START_DEADLINE = 600.0
"""Seconds, for a machine that is busy with other things."""
Files = dict[str, bytes]
OPENED: list[socket.socket] = []
"""All connections, which the test closes."""


def encoded(kind: str, arrays: Mapping[str, Any] | None = None, data: bytes = b"", **fields: Any) -> bytes:
    """A frame's bytes, whatever it says."""
    specs = [[name, array.dtype.name, list(array.shape)] for name, array in (arrays or {}).items()]
    head = json.dumps({"kind": kind, **fields, "arrays": specs}).encode()
    body = b"".join(np.ascontiguousarray(array).tobytes() for array in (arrays or {}).values()) + data
    return PREFIX.pack(b"mfv1", len(head), len(body)) + head + body


@dataclass
class Client:
    """One connection."""

    place: VaultPlace

    def __post_init__(self) -> None:
        self.socket = self.place.connect()
        OPENED.append(self.socket)
        self.socket.settimeout(DEADLINE)

    def open(self, job_id: str, files: Mapping[str, bytes], code: str = "") -> "Client":
        """Names a job; the vault has greeted when this returns."""
        arrays = {name: np.frombuffer(content, np.uint8) for name, content in files.items()}
        self.send("job", arrays, id=job_id, code=code or code_digest())
        assert self.receive()[0]["kind"] == "ready"
        return self

    def send(self, kind: str, arrays: Mapping[str, Any] | None = None, data: bytes = b"", **fields: Any) -> None:
        self.socket.sendall(encoded(kind, arrays, data, **fields))

    def receive(self) -> tuple[dict[str, Any], dict[str, Any], bytes]:
        """Head, arrays and plain bytes of the next frame. Raises `EOFError` or `ConnectionError` after the last one."""
        _, head_bytes, body_bytes = PREFIX.unpack(self._read(PREFIX.size))
        head, arrays = json.loads(self._read(head_bytes)), {}
        body = self._read(body_bytes)
        for name, dtype, shape in head["arrays"]:
            count = int(np.prod(shape))
            arrays[name] = np.frombuffer(body, np.dtype(dtype), count).reshape(shape)
            body = body[arrays[name].nbytes :]
        return head, arrays, body

    def ask(self, task: str, round: Any, arrays: Mapping[str, Any] | None = None, data: bytes = b"") -> Answer:
        """One task, of which no mail is expected."""
        self.send("task", arrays, data, task=task, round=round)
        return self.answer()

    def answer(self) -> Answer:
        head, arrays, _ = self.receive()
        assert head["kind"] in ("answer", "refused")
        return Answer(arrays, head.get("code", ""))

    def hung_up(self) -> bool:
        """Whether the vault ends this connection, and says no more than its greeting."""
        content = b""
        try:
            while piece := self.socket.recv(1 << 16):
                content += piece
        except ConnectionError:
            pass
        return content.count(b"mfv1") == content.count(b'"ready"') <= 1

    def end(self) -> None:
        """The job is over."""
        self.send("end")
        assert self.receive()[0]["kind"] == "done"
        self.socket.close()

    def _read(self, nbytes: int) -> bytes:
        content = b""
        while len(content) < nbytes:
            piece = self.socket.recv(nbytes - len(content))
            if not piece:
                raise EOFError
            content += piece
        return content


class Authority:
    """A root, and those whom it certifies."""

    def __init__(self) -> None:
        self.key = generate_private_key(65537, 2048)
        self.certificate = self._issue("root", self.key, None)

    def submitter(self, ca: bool = False) -> tuple[RSAPrivateKey, bytes]:
        """A key and its certificate; with `ca`, one that may certify others."""
        key = generate_private_key(65537, 2048)
        return key, self._issue("lead", key, self.certificate, ca).public_bytes(Encoding.PEM)

    def _issue(
        self, name: str, key: RSAPrivateKey, issuer: x509.Certificate | None, ca: bool = False
    ) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        now, ca = datetime.now(UTC), ca or issuer is None
        usage = x509.KeyUsage(not ca, False, False, False, False, ca, ca, False, False)
        builder = x509.CertificateBuilder(issuer.subject if issuer else subject, subject, key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(days=1))
        builder = builder.not_valid_after(now + timedelta(days=30))
        builder = builder.add_extension(x509.BasicConstraints(ca, None), critical=True).add_extension(usage, True)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        return builder.add_extension(identifier, False).sign(self.key, SHA256())


def exported(job: JobSpec, folder: Path) -> Files:
    """The job's files, as its submitter exports them, before anybody signs."""
    export_job(job, folder)
    return {f"config/{path.name}": path.read_bytes() for path in (folder / "app" / "config").glob("*.json")}


def signed(files: Files, signer: tuple[RSAPrivateKey, bytes]) -> Files:
    """The files with signatures of each folder."""
    key, certificate = signer
    padding = PSS(MGF1(SHA256()), PSS.MAX_LENGTH)

    def signatures(contents: Files) -> bytes:
        values = {name: key.sign(content, padding, SHA256()) for name, content in contents.items()}
        return json.dumps({name: base64.b64encode(value).decode() for name, value in values.items()}).encode()

    inner = signatures({path.removeprefix("config/"): content for path, content in files.items()})
    chains = {SIGNER: certificate, f"config/{SIGNER}": certificate}
    return {**files, SIGNATURES: signatures({"config": b"config"}), f"config/{SIGNATURES}": inner, **chains}


@dataclass
class SocketLiar(NearLiar):
    """The lying server of the federation's tests, at the sockets of several vaults, whose mail it carries and bends."""

    places: Mapping[str, VaultPlace]
    job: JobSpec
    job_id: str
    files: Files
    network: Network = field(default_factory=Network)
    bend_mail: Any = staticmethod(lambda head: {"attempt": head["attempt"], "site": head["site"]})
    """What the courier says of a letter that a site waits for."""

    def __post_init__(self) -> None:
        self.clients = {site: Client(place).open(self.job_id, self.files) for site, place in self.places.items()}

    def _answer(self, site: str, task: str, round: int, message: Tensors) -> Answer:
        client = self.clients[site]
        client.send("task", message, task=task, round=round)
        while True:
            head, arrays, data = client.receive()
            if head["kind"] in ("answer", "refused"):
                return Answer(arrays, head.get("code", ""))
            relay = self.network.relay(site, head["attempt"])
            if head["kind"] == "mail":
                relay.send(head["site"], data)
                continue
            try:
                letter = relay.receive(head["site"], head["seconds"])
            except TimeoutError:
                client.send("silence")
            else:
                client.send("mail", data=letter, **self.bend_mail(head))

    def close(self) -> None:
        """The job is over at all sites."""
        for client in self.clients.values():
            client.end()


def half(content: bytes) -> bytes:
    """The first half of a frame."""
    return content[: len(content) // 2]


def started(places: Collection[VaultPlace]) -> None:
    """Start those vaults that do not run, until all answer: one that is about to end still keeps another from starting.
    A busy machine takes minutes for it."""
    end, missing = time.monotonic() + START_DEADLINE, list(places)
    while missing:
        assert time.monotonic() < end, "a vault does not start"
        commands = [[sys.executable, *place.command("--detached")] for place in missing]
        for process in [subprocess.Popen(command, stderr=subprocess.DEVNULL) for command in commands]:
            process.wait(START_DEADLINE)
        missing = [place for place in missing if not answers(place)]


def answers(place: VaultPlace) -> bool:
    """Whether somebody listens at the vault's socket."""
    try:
        place.connect().close()
    except OSError:
        return False
    return True


@dataclass
class Attacked:
    """A site, the federation that it is in, and the bits of the answers that it gives an honest server."""

    place: VaultPlace
    folder: Path
    authority: Authority
    job: JobSpec
    honest: dict[str, bytes] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self.signer = self.authority.submitter()

    @classmethod
    def made(cls, folder: Path, backbone: Path) -> "Attacked":
        """A new site in the folder."""
        authority, job = Authority(), JobSpec.from_dict(JOB)
        path = sites_of(folder, job, {RANDOM: backbone})[SITE]
        (folder / "rootCA.pem").write_bytes(authority.certificate.public_bytes(Encoding.PEM))
        return cls(VaultPlace(path, SITE, folder / "rootCA.pem", path.parent / "vault"), folder, authority, job)

    def start(self) -> None:
        """Start the vault, if it does not run."""
        started([self.place])

    def files(
        self, signer: Any = None, change: Callable[[Files], Files] = dict, job: Any = None, **terms: Any
    ) -> Files:
        """A job with a nonce of its own, signed; `job` and `terms` change its fields, and `change` its files."""
        assert self.place.root
        fresh = Terms.fresh(federation_of(self.place.root), (SITE,)).model_copy(update=terms)
        job = self.job.model_copy(update={"terms": fresh, **(job or {})})
        return signed(change(exported(job, self.folder / f"job-{next(self.numbers)}")), signer or self.signer)

    def open(self, job_id: str = "", files: Mapping[str, bytes] | None = None) -> Client:
        """A connection that names this job, or an honest one."""
        return Client(self.place).open(job_id or str(uuid4()), self.files() if files is None else files)

    def entries(self, job_id: str) -> list[Entry]:
        return [entry for entry in read(self.place.config.parent / "audit") if entry.job == job_id]

    def refusals(self, job_id: str) -> list[str]:
        """The codes in the log, of refused jobs and of refused messages."""
        entries = [entry for entry in self.entries(job_id) if entry.outcome is Outcome.REFUSED]
        return [(entry.admission or {}).get("code", "message") for entry in entries]

    def released(self, job_id: str) -> list[tuple[str | None, int | None]]:
        """Task and round of each message that left."""
        sent = [e for e in self.entries(job_id) if e.event is Event.RELEASE and e.outcome is Outcome.SENT]
        return [(entry.task, entry.round) for entry in sent]

    def serves(self) -> bool:
        """Whether an honest job gets its answers, to the bit, and the log is whole."""
        client = self.open(job_id := str(uuid4()))
        answers = [client.ask("start", 1)]
        answers.append(client.ask("train", 2, down(answers[0])))
        client.end()
        bits = {f"{n} {name}": a.tobytes() for n, each in enumerate(answers) for name, a in each.tensors.items()}
        self.honest = self.honest or bits
        assert bits == self.honest and len(bits) > 4 and self.entries(job_id)[-1].event is Event.CLOSE
        return verify(self.place.config.parent / "audit").ok


def down(start: Answer) -> dict[str, Any]:
    """What an honest server sends for the second round to the one site of a job."""
    return {name: start.tensors[name] for name in ("prompt.image", "prompt.text")}
