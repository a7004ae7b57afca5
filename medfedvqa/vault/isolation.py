"""Takes the network away from this process, by the kernel, and tests from inside that it is gone.

Call `isolate` before anything else is imported: only a process of one thread can enter a name space, and a filter holds
for threads that come after it. Therefore this module imports the standard library only, and returns the value of an
`audits.entry.Isolation`. The numbers of calls and the form of a filter are those of Linux (`seccomp(2)`, `bpf(4)`).
"""

import ctypes
import errno
import os
import platform
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

_NEW_NETWORK, _NEW_USER = 0x40000000, 0x10000000
_DUMPABLE, _NO_NEW_PRIVILEGES, _SET_FILTER, _FILTER_MODE = 4, 38, 22, 2
_FAMILY, _TYPE = 16, 24
"""The offsets of a call's first two arguments in the data that a filter sees."""
_LOAD, _AND, _IS, _LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_DENY = 0x00050000 | errno.EPERM
_OTHER_NUMBERS = 0x40000000
"""Calls of the x32 convention begin here: they are the same calls by other numbers."""

_CALLS = {
    "x86_64": (0xC000003E, {"socket": 41, "socketpair": 53, "connect": 42}, (101, 308, 310, 311, 321, 425, 438)),
    "aarch64": (0xC00000B7, {"socket": 198, "socketpair": 199, "connect": 203}, (117, 268, 270, 271, 280, 425, 438)),
}
"""By machine: its number, calls by name, and those that would get at another process's sockets: `ptrace`, `setns`,
`process_vm_readv`, `process_vm_writev`, `bpf`, `io_uring_setup`, `pidfd_getfd`."""

_CUT = {errno.EPERM, errno.EACCES, errno.ENETUNREACH, errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.ENODEV}
"""Errors of a socket that leads nowhere. A refused connection is none: somebody was asked."""
REMEDY = (
    "let it make name spaces (`sysctl user.max_user_namespaces`), run it as a service with PrivateNetwork=yes or in a "
    "container with `network none`, or on a machine whose kernel filters system calls (seccomp); or write `isolation: "
    "none` into site.yml"
)
"""What to do on a machine where no isolation is possible."""
_SOCKET_TABLES = ("tcp", "tcp6", "udp", "udp6", "raw", "raw6")


def isolate(reaches_system_log: bool = False) -> str:
    """Isolate this process as strongly as the kernel permits; returns `namespace`, `filter` or `none`.

    `reaches_system_log`: the process may connect to Unix sockets. Otherwise it only answers connections, and can ask no
    resolver, bus or container daemon of the machine to send anything.
    """
    alone = _enter_own_network() or _has_empty_network()
    _filter_sockets(reaches_system_log)
    if reached():
        return "none"
    return "namespace" if alone else "filter"


def permitted() -> str:
    """The isolation that a new process would get, tried in one. Raises `OSError` if none can start."""
    command = [sys.executable, "-m", "medfedvqa.vault.isolation"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout.strip() or "none"


def reached() -> list[str]:
    """The kinds of sockets that lead somewhere; none in an isolated process. No packet leaves the machine."""
    return [name for name, attempt in _ATTEMPTS.items() if not _is_cut(attempt)]


def _is_cut(attempt: Callable[[], None]) -> bool:
    try:
        attempt()
    except OSError as error:
        return error.errno in _CUT
    return False


def _connect(family: int, kind: int, place: tuple[str, int]) -> Callable[[], None]:
    def attempt() -> None:
        with socket.socket(family, kind) as opened:
            opened.settimeout(1)
            opened.connect(place)

    return attempt


def _open(family: str) -> Callable[[], None]:
    def attempt() -> None:
        with socket.socket(getattr(socket, family), socket.SOCK_RAW):
            pass

    return attempt


# A datagram socket that connects finds a route, and sends nothing. The addresses are those for documentation.
_ATTEMPTS = {
    "loopback": _connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 9)),
    "a public address": _connect(socket.AF_INET, socket.SOCK_DGRAM, ("192.0.2.1", 9)),
    "a public address of version 6": _connect(socket.AF_INET6, socket.SOCK_DGRAM, ("2001:db8::1", 9)),
    "netlink": _open("AF_NETLINK"),
    "packets": _open("AF_PACKET"),
}


def _enter_own_network() -> bool:
    """Enter a new network name space, whose loopback is down; a user name space around it needs no rights."""
    libc = ctypes.CDLL(None, use_errno=True)
    with suppress(AttributeError, OSError):
        if libc.unshare(_NEW_NETWORK) == 0:
            return True
        user, group = os.geteuid(), os.getegid()
        if libc.unshare(_NEW_NETWORK | _NEW_USER) == 0:
            maps = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
            for name, text in maps.items():
                Path("/proc/self", name).write_text(text, encoding="ascii")
            return True
    return False


def _has_empty_network() -> bool:
    """Whether a service manager or container gave this process a network without interfaces and other users."""
    with suppress(OSError):
        tables = [Path("/proc/self/net", name) for name in _SOCKET_TABLES]
        sockets = sum(len(table.read_text().splitlines()) - 1 for table in tables if table.exists())
        # A service that may only open Unix sockets cannot ask the kernel by one.
        interfaces = Path("/proc/self/net/dev").read_text().splitlines()[2:]
        return {line.partition(":")[0].strip() for line in interfaces} <= {"lo"} and not sockets
    return False


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def _filter_sockets(connects: bool) -> None:
    """Refuse all sockets but Unix ones, calls that reach others' sockets (see `_CALLS`), and tracing."""
    libc = ctypes.CDLL(None, use_errno=True)
    if platform.machine() in _CALLS and hasattr(libc, "prctl"):
        instructions = b"".join(struct.pack("<HBBI", *step) for step in _steps(*_CALLS[platform.machine()], connects))
        program = _Program(len(instructions) // 8, instructions)
        libc.prctl(_DUMPABLE, 0, 0, 0, 0)  # other processes of the account do not read this one's memory
        if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0:
            libc.prctl(_SET_FILTER, _FILTER_MODE, ctypes.byref(program))


_Step = tuple[int, int, int, int]
"""An instruction's code, the steps to skip if it is true and if not, and its operand."""


def _steps(machine: int, calls: dict[str, int], denied: tuple[int, ...], connects: bool) -> Iterator[_Step]:
    yield from ((_LOAD, 0, 0, 4), (_IS, 1, 0, machine), (_RETURN, 0, 0, _KILL))
    yield from ((_LOAD, 0, 0, 0), (_LEAST, 0, 1, _OTHER_NUMBERS), (_RETURN, 0, 0, _DENY))
    for number in (*denied, *(() if connects else (calls["connect"],))):
        yield from ((_IS, 0, 1, number), (_RETURN, 0, 0, _DENY))
    # Without a connection, only a datagram would reach a socket that somebody else listens at.
    only_streams = () if connects else (
        (_LOAD, 0, 0, _TYPE), (_AND, 0, 0, 15), (_IS, 1, 0, socket.SOCK_STREAM), (_RETURN, 0, 0, _DENY),
    )  # fmt: skip
    only_unix = ((_LOAD, 0, 0, _FAMILY), (_IS, 1, 0, socket.AF_UNIX), (_RETURN, 0, 0, _DENY))
    yield from ((_IS, 1, 0, calls["socket"]), (_IS, 0, len(only_unix) + len(only_streams) + 1, calls["socketpair"]))
    yield from (*only_unix, *only_streams, (_RETURN, 0, 0, _ALLOW))
    yield (_RETURN, 0, 0, _ALLOW)


if __name__ == "__main__":
    print(isolate())
