"""The place of a site's vault: its configuration, the federation's root certificate, and the socket that it serves."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SOCKET = "MEDFEDVQA_VAULT"
"""Environment variable of a courier: the folder of the socket of a vault that a service manager starts."""
DETACHED = "--detached"
"""A vault with this option goes into the background once it listens."""
JOB_FILE = "job.json"
"""The one file of a job that nobody signs: the job as JSON."""
_NAME = "socket"


@dataclass(frozen=True)
class VaultPlace:
    """One site's vault."""

    config: Path
    """The site's `site.yml`."""
    site: str
    root: Path | None
    """The root certificate against which jobs must be signed; None on one machine, where nobody signs."""
    folder: Path
    """The folder of the socket, for the site's account only."""

    @classmethod
    def of_kit(cls, kit: Path) -> "VaultPlace":
        """The vault of a provisioned site."""
        folder = Path(os.environ[SOCKET]) if SOCKET in os.environ else kit / "vault"
        return cls(kit / "local" / "site.yml", kit.name, kit / "startup" / "rootCA.pem", folder)

    @property
    def kit(self) -> Path | None:
        """The site's kit, resolved; None where nobody signs."""
        return self.root and self.root.resolve().parents[1]

    def command(self, *options: str) -> list[str]:
        """The vault's command line, without the interpreter. `read` parses the arguments after the options.

        Python does not look for modules in the folder in which it is started: a courier's is the kit.
        """
        root = [] if self.root is None else [str(self.root)]
        return ["-P", "-m", "medfedvqa.vault", *options, str(self.config), self.site, str(self.folder), *root]

    @classmethod
    def read(cls, arguments: list[str]) -> "VaultPlace":
        """The place in arguments that `command` made. Raises `ValueError` for others."""
        config, site, folder, *root = arguments
        if len(root) > 1:
            raise ValueError
        return cls(Path(config), site, Path(root[0]) if root else None, Path(folder))

    @contextmanager
    def address(self) -> Iterator[str]:
        """A path to the socket that is short enough for the kernel, which takes 107 bytes, wherever its folder lies."""
        folder = os.open(self.folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{folder}/{_NAME}"
        finally:
            os.close(folder)

    def listener(self) -> socket.socket:
        """A socket that listens; one that an earlier vault left is replaced."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with self.address() as address:
            (self.folder / _NAME).unlink(missing_ok=True)
            listener.bind(address)
        listener.listen()
        return listener

    def connect(self) -> socket.socket:
        """A connection. Raises `OSError` if nobody answers."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with self.address() as address:
                connection.connect(address)
        except OSError:
            connection.close()
            raise
        return connection
