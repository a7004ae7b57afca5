"""Confines the process of a job to the site's own files, and reports attempts of its Python code at more.

Landlock (`landlock(7)`; Linux 5.13, signals from 6.12 on) needs no rights and binds the superuser as well. It holds for
the calling thread and all that it starts: call `confine` before a job's code is imported.
"""

import ctypes
import os
import re
import socket
import stat
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # on all machines
_READ, _WRITE, _RELINK, _TRUNCATE = 1 << 2, 1 << 1 | 0x1FF0, 1 << 13, 1 << 14
_CAPABILITIES = 0b11011  # what the superuser keeps: other accounts' files, see `capabilities(7)`
_CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_LOOK_UPS = {f"socket.{name}" for name in ("getaddrinfo", "gethostbyname", "gethostbyaddr", "getnameinfo")}
_SENDING = {"socket.connect", "socket.sendto", "socket.sendmsg"}
_WATCHED = {"open", "socket.__new__", "os.kill", "os.killpg", "ctypes.dlsym", *_SENDING, *_LOOK_UPS}
_NATIVE = {"syscall", "ptrace", "process_vm_readv", "process_vm_writev", "setns"}
_noticed: set[str] = set()


def confine(
    kit: Path | None, read: Iterable[Path], written: Iterable[Path], report: Callable[[str], None], log: Path | None
) -> None:
    """Leaves this process only the files that it needs, and neither signals to nor the memory of other processes.

    Writable: `written`, devices and temporary files. Readable: these, `read`, and everything outside of `kit`
    (resolved). Each kind of attempt of Python code at more is passed to `report` once. `log`: the socket of the
    machine's log, which stays reachable. A second call has no effect.
    """
    if _noticed:
        return
    _noticed.add("confined")
    with suppress(ImportError):  # which networks of MONAI import later: it makes a socket to see whether there is IPv6
        import urllib3.util.connection  # noqa: F401
    shared = Path("/dev"), Path(os.environ.get("TMPDIR") or "/tmp")
    installed = Path(sys.prefix), Path(os.path.expanduser("~/.cache"))  # either may lie in the kit
    opened = [path.resolve() for path in (*shared, *read, *installed)]
    around = [path for path in opened if kit and kit.is_relative_to(path)]  # these would open all of the kit
    written = [path.resolve() for path in (*written, Path(os.devnull))]
    written += [path for path in opened[: len(shared)] if path not in around]
    own = [*written, *(path for path in opened if path not in around)]
    _restrict([*(_beside(kit) if kit else [Path("/")]), *own], written)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _WATCHED:  # most events are none of these
            return
        kind = _kind_of_file(arguments, kit, own, written) if event == "open" else _kind(event, arguments, log)
        if kind and kind not in _noticed:
            _noticed.add(kind)
            report(kind)

    sys.addaudithook(hook)


def _restrict(read: list[Path], written: list[Path]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    sets, header = ctypes.create_string_buffer(24), struct.pack("Ii", 0x20080522, 0)
    libc.capget(header, sets)
    effective, permitted = struct.unpack_from("2I", sets)
    libc.capset(header, struct.pack("6I", effective & _CAPABILITIES, permitted & _CAPABILITIES, 0, 0, 0, 0))
    if (version := libc.syscall(_CREATE, None, ctypes.c_size_t(0), 1)) < 1:
        return  # an older kernel, or one without Landlock
    writes = _WRITE | (_RELINK if version > 1 else 0) | (_TRUNCATE if version > 2 else 0)
    attributes = struct.pack("3Q", _READ | writes, 0, 3)[: 24 if version > 5 else 8]
    rules = libc.syscall(_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0)
    for path, rights in {**dict.fromkeys(read, _READ), **dict.fromkeys(written, _READ | writes)}.items():
        with suppress(OSError):
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            rights &= -1 if stat.S_ISDIR(os.fstat(place).st_mode) else _READ | 1 << 1 | _TRUNCATE
            libc.syscall(_ADD, rules, 1, struct.pack("=Qi", rights, place), 0)
            os.close(place)
    libc.syscall(_RESTRICT, rules, 0)
    os.close(rules)


def _beside(place: Path) -> Iterator[Path]:
    """All files and folders outside of a folder, as few as possible."""
    for inner, folder in zip((place, *place.parents), place.parents, strict=False):
        with suppress(OSError):
            yield from (path for path in folder.iterdir() if path != inner and not path.is_symlink())


def opens_network(event: str, arguments: tuple[Any, ...]) -> bool:
    """Whether a Python audit event makes a socket of a network, or looks up a name."""
    return event in _LOOK_UPS or event == "socket.__new__" and arguments[1] != socket.AF_UNIX


def _kind(event: str, arguments: tuple[Any, ...], log: Path | None) -> str | None:
    if opens_network(event, arguments):
        return "the network: folders of a network must be mounted"
    if event in _SENDING and arguments[-1] not in (None, str(log)):
        return "another process's socket"
    if event in ("os.kill", "os.killpg") and arguments[0] != os.getpid():
        return "another process"
    return "a call of the kernel" if event == "ctypes.dlsym" and arguments[1] in _NATIVE else None


def _kind_of_file(arguments: tuple[Any, ...], kit: Path | None, own: list[Path], written: list[Path]) -> str | None:
    name, _, flags = arguments
    if isinstance(name, int) or not os.path.isabs(name):
        return None  # relative to a folder that is not known here
    path = Path(os.path.realpath(os.fsdecode(name)))
    if re.match(rf"/proc/(?!{os.getpid()}/)\d+/", str(path)):
        return "another process"
    if kit and path.is_relative_to(kit) and not any(map(path.is_relative_to, own)):
        return "a file of the courier"
    return (
        "a file outside the site's folders" if flags & _CHANGES and not any(map(path.is_relative_to, written)) else None
    )
