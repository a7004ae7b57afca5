"""`python -m medfedvqa.vault SITE_YML SITE FOLDER [ROOT_CERTIFICATE]`: a site's process without network.

It imports once what jobs need, listens at a socket in FOLDER, and forks a process for each connection, which ends with
it: so its memory is freed, and a job can only break its own process. With `--detached` before the rest, it goes into
the background once it listens, and ends some time after its last connection.
"""

import os
import select
import signal
import socket
import struct
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import yaml

from medfedvqa.atomic_files import hold
from medfedvqa.vault.isolation import REMEDY, isolate
from medfedvqa.vault.place import DETACHED, VaultPlace

_LINGER = 60.0
"""Seconds that a vault in the background waits for another connection."""
_POLL = 1.0
_MOST_CONNECTIONS = 64
_KEPT = {
    *("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    *("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "PYTHONWARNINGS", "PYTHONPYCACHEPREFIX"),
}
"""The environment variables that the process keeps."""


def main(arguments: list[str]) -> int:
    """Run the vault; returns the exit status. With `--detached`, the background process ends once it is idle."""
    detached = arguments[:1] == [DETACHED]
    try:
        place = VaultPlace.read(arguments[detached:])
    except ValueError:
        print(__doc__, file=sys.stderr)
        return os.EX_USAGE
    os.umask(0o077)
    for name in os.environ.keys() - _KEPT:
        del os.environ[name]
    # Weights come from the site's own disk. Without this, huggingface_hub contacts its server even for cached ones.
    os.environ["HF_HUB_OFFLINE"] = "1"
    place.folder.mkdir(parents=True, exist_ok=True)
    if (lock := hold(place.folder / "lock")) is None:
        print("a vault of this site runs already: end it first, or use it", file=sys.stderr)
        return os.EX_TEMPFAIL
    isolation = _isolated(place)
    with place.listener() as listener:
        _import_all()
        if detached:
            _detach(place.folder / "vault.log")
        _accept(listener, lock, place, isolation, _LINGER if detached else None)
    os.close(lock)
    return 0


def _isolated(place: VaultPlace) -> str:
    """Isolate this process, unless `site.yml` says `isolation: none`. Without a readable file, each job is refused."""
    settings = {}
    with suppress(OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError):
        settings = yaml.safe_load(place.config.read_text(encoding="utf-8"))
    if not isinstance(settings, dict):
        settings = {}
    if settings.get("isolation") == "none":
        return "none"
    held = isolate(reaches_system_log=settings.get("system_log") is not None)
    if held == "none":
        print(f"this process keeps its network, and refuses every job: {REMEDY}", file=sys.stderr)
    return held


def _import_all() -> None:
    """Imports once the modules on which the process of every job would otherwise spend seconds."""
    import gc
    import logging

    import open_clip  # noqa: F401

    import medfedvqa.federation.flare.job_schema
    import medfedvqa.vault.tasks  # noqa: F401
    from medfedvqa.code_identity import ChangedCode, running_code
    from medfedvqa.federation.site_runtime import SiteRuntime
    from medfedvqa.installed_code import CompiledElsewhere
    from medfedvqa.models.bundled import short_vocabulary
    from medfedvqa.version import code_digest

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    short_vocabulary()
    code_digest()  # of the code that is loaded now, also after an upgrade
    # What is compared now, no job's process compares again. A fault is each job's refusal later.
    with suppress(ChangedCode, CompiledElsewhere):
        running_code(SiteRuntime)
    gc.freeze()


def _detach(log: Path) -> None:
    """Continue in a process without terminal and parent; whoever started this one sees that it listens."""
    if os.fork():
        os._exit(0)
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(output, stream.fileno())
    os.close(output)


def _accept(listener: socket.socket, lock: int, place: VaultPlace, isolation: str, linger: float | None) -> None:
    children: set[int] = set()
    last, own = time.monotonic(), os.getpid()
    while linger is None or time.monotonic() - last < linger:
        children -= {child for child in children if os.waitpid(child, os.WNOHANG)[0]}
        if children:
            last = time.monotonic()
        if len(children) >= _MOST_CONNECTIONS:
            time.sleep(_POLL)
            continue
        if not select.select([listener], [], [], _POLL)[0]:
            continue
        with listener.accept()[0] as connection:
            _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if user != os.geteuid():
                continue  # another account, or one that the name space does not know
            if child := os.fork():
                children.add(child)
            else:
                listener.close()
                os.close(lock)  # if the vault dies, another one takes its place while this process continues
                _serve(connection, place, isolation, own)


def _serve(connection: socket.socket, place: VaultPlace, isolation: str, process: int) -> NoReturn:
    """Answer one connection in a process of its own."""
    from audits import Isolation
    from medfedvqa.vault.frames import FrameRefused, Wire
    from medfedvqa.vault.tasks import Vault

    status = os.EX_SOFTWARE
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        Vault(place, Isolation(isolation), process).serve(Wire(connection))
        status = 0
    except (EOFError, ConnectionError, TimeoutError):
        status = os.EX_TEMPFAIL  # the courier is gone, or says nothing; the next one asks again
    except FrameRefused as error:
        print(error, file=sys.stderr)
    except Exception:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
