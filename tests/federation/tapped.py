"""A federation with taps at its server and its sites."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import vault_tap
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from phantoms import Phantoms
from taps import DONE, FRAMES, ORDERS, add_component, disarm, opened

from medfedvqa.federation.flare import site_mail
from medfedvqa.federation.flare.provision import SERVER


class TappedFederation(Phantoms):
    """A federation with taps at its server and its sites, which write into `taps`."""

    modules = True

    checks_jobs: ClassVar[bool] = False
    """Whether the server validates jobs, as an honest one does."""

    @property
    def taps(self) -> Path:
        return self.folder / "taps"

    def start(self, name: str) -> None:
        self.taps.mkdir(exist_ok=True)
        if name == SERVER:
            disarm(self.kits / name, self.checks_jobs)
            tap = {"id": "tap", "path": "taps.ServerTap", "args": {"folder": str(self.taps)}}
            add_component(self.kits / name, tap)
        vault_tap.install(self.taps, self._environment)
        super().start(name)

    @contextlib.contextmanager
    def ordered(self, *orders: str) -> Iterator[None]:
        """The server is to do this to messages from site to site."""
        (self.taps / ORDERS).write_text(json.dumps(orders))
        yield
        (self.taps / ORDERS).unlink()

    def done(self) -> list[tuple[str, str, str]]:
        """What the server did, to messages from whom to whom."""
        path = self.taps / DONE
        return [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []

    def seen(self) -> bytes:
        """All frames that reached the server's process, one after the other."""
        return b"".join(path.read_bytes() for path in sorted(self.taps.glob(f"{FRAMES}.*")))

    def relayed(self) -> list[bytes]:
        """The payloads of messages from site to site among them."""
        frames, start, payloads = self.seen(), 0, []
        while start < len(frames):
            end = start + 8 + int.from_bytes(frames[start : start + 8], "big")
            headers, payload = opened(frames[start + 8 : end])
            if headers and headers.get(MessageHeaderKey.CHANNEL) == site_mail.CHANNEL and payload is not None:
                payloads.append(payload)
            start = end
        return payloads

    def secrets(self) -> list[tuple[str, str, bytes, str]]:
        """Who sealed what for whom, and the SHA-256 of the sealed message."""
        lines = [line for path in self.taps.glob(f"{vault_tap.SECRETS}.*") for line in path.read_text().splitlines()]
        return [(me, peer, bytes.fromhex(message), sha) for me, peer, message, sha in map(json.loads, lines)]

    def forget(self) -> None:
        """Drop what was recorded so far."""
        for path in self.taps.glob(f"{FRAMES}.*"):
            path.unlink()
        for path in self.taps.glob(f"{vault_tap.SECRETS}.*"):
            os.truncate(path, 0)  # vaults hold them open
        (self.taps / DONE).unlink(missing_ok=True)
