"""A method from outside that trains, and first tries to reach all that a job's code has no business with.

The test packs this file into a distribution. As a script, it tries the same in a process that nothing confines.
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from medfedvqa.methods.fedavg import FedAvg

NOTE = Path(__file__).parent / "note.json"
"""Who listens where on this machine, and by site: its kit, and the folder `state` for what the attempts gave."""
LIBC = ctypes.CDLL(None, use_errno=True)
NATIVE = {"x86_64": (101, 310), "aarch64": (117, 270)}
"""The numbers of `ptrace` and `process_vm_readv`."""


def call(number: int, *arguments: Any) -> None:
    """A call of the kernel without Python's own function for it."""
    whole = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    if LIBC.syscall(number, *whole) < 0:
        raise OSError(ctypes.get_errno(), "")


def connect(family: int, kind: int, address: Any, send: bool = False) -> Callable[[], None]:
    def attempt() -> None:
        with socket.socket(family, kind) as opened:
            opened.settimeout(5)
            opened.sendto(b"rows", address) if send else opened.connect(address)

    return attempt


def change(path: Path) -> Callable[[], None]:
    def attempt() -> None:
        with path.open("ab"):
            pass

    return attempt


def peek(path: Path, nbytes: int) -> None:
    with path.open("rb") as file:
        file.read(nbytes)


def move(path: Path) -> Callable[[], None]:
    return lambda: path.rename(path.with_name("moved"))


def run(*command: str) -> Callable[[], None]:
    """Another program inherits what confines the process that starts it."""

    def attempt() -> None:
        if subprocess.run(command, capture_output=True, check=False).returncode:
            raise PermissionError

    return attempt


def look_into(who: str, pid: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Another process of the same account."""
    word = ctypes.create_string_buffer(8)
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(word), 8)
    trace, readv = NATIVE[os.uname().machine]
    for name in ("environ", "maps", "mem"):
        yield (
            f"{name} of {who}",
            lambda name=name: peek(Path(f"/proc/{pid}/{name}"), 0 if name == "mem" else 1),
        )
    yield f"files of {who}", lambda: os.readlink(f"/proc/{pid}/fd/0")
    yield f"root of {who}", lambda: os.listdir(f"/proc/{pid}/root/")
    yield f"trace {who}", lambda: call(trace, 0x4206, pid, 0, 0)
    yield f"read {who}", lambda: call(readv, pid, vector, 1, vector, 0, 0)
    yield f"signal {who}", lambda: os.kill(pid, 0)
    yield f"stop {who}", lambda: os.kill(pid, signal.SIGCONT)


def attempts(site: str, note: dict[str, Any]) -> Iterator[tuple[str, Callable[[], object]]]:
    """All of them, by name."""
    stream, port = socket.SOCK_STREAM, note["port"]
    yield "loopback", connect(socket.AF_INET, stream, ("127.0.0.1", port))
    yield "loopback of version 6", connect(socket.AF_INET6, stream, ("::1", port))
    yield "a public address", connect(socket.AF_INET, socket.SOCK_DGRAM, ("192.0.2.1", 9), send=True)
    yield "a name", lambda: socket.getaddrinfo("example.org", port)
    for family in ("AF_NETLINK", "AF_PACKET", "AF_VSOCK"):
        yield family, lambda family=family: socket.socket(getattr(socket, family), socket.SOCK_RAW).close()
    yield "the server", connect(socket.AF_INET, stream, ("127.0.0.1", note["server"]))
    yield "a service's socket", connect(socket.AF_UNIX, stream, note["service"])
    yield "an abstract socket", connect(socket.AF_UNIX, stream, note["abstract"])
    yield "a datagram", connect(socket.AF_UNIX, socket.SOCK_DGRAM, note["datagrams"], send=True)
    for name, pid in note["processes"][site].items():
        yield from look_into(name, pid)
    kit = Path(note["kits"], site)
    for name in (
        "startup/client.key",
        "startup/fed_client.json",
        f"{note['job']}/app_{site}/config/config_fed_client.json",
        "process.log",
    ):
        yield f"read {name}", (kit / name).read_bytes
        yield f"change {name}", change(kit / name)
    yield "read by another program", run("cat", str(kit / "startup/client.key"))
    yield "change local/site.yml", change(kit / "local" / "site.yml")
    yield "a new file in startup", change(kit / "startup" / "new")
    yield "a new file beside the kits", change(kit.parent / f"new-{site}")
    yield "another site's file", change(kit.parent / note["others"][site] / "local" / "site.yml")
    yield "move local/site.yml", move(kit / "local" / "site.yml")


def outcomes(site: str, note: dict[str, Any]) -> dict[str, str]:
    """What came of each: `open`, or the error's name."""
    found = {}
    for name, attempt in attempts(site, note):
        try:
            attempt()
        except OSError as error:
            found[name] = type(error).__name__ if error.errno is None else f"{error.strerror or error.errno}"
        else:
            found[name] = "open"
    return found


class Reaching(FedAvg):
    """Averaging whose training tries everything first; what the attempts gave stays in the site's own folder."""

    name = "reaching"

    def train(self, site: Any, state: Any, received: Any, round: int) -> Any:
        """See `Method.train`."""
        while not NOTE.exists():
            time.sleep(0.1)
        note = json.loads(NOTE.read_text())
        found = outcomes(site.name, note)
        Path(note["kits"], site.name, "state", "attempts.json").write_text(json.dumps(found))
        return super().train(site, state, received, round)


if __name__ == "__main__":
    json.dump(outcomes(sys.argv[2], json.loads(Path(sys.argv[1]).read_text())), sys.stdout)
