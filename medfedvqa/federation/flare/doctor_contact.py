"""The checks that `medfedvqa doctor` makes of a federation's server: that it answers, its identity and its clock.

FLARE (2.9) serves connections with aiohttp, which answers any request for a page, behind mutual TLS, with a `Date`.
"""

import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

from medfedvqa.errors import ConfigError
from medfedvqa.federation import proxies
from medfedvqa.federation.flare.doctor_common import ROOT, SET_CLOCK, SKEW, Caution
from medfedvqa.federation.flare.kit_contents import Check, read_json

_PATIENCE = 5.0  # seconds for the whole conversation
_ANSWER = 1 << 14
"""The most bytes that are read of an answer."""
_NOT_YET_VALID, _EXPIRED = 9, 10
"""OpenSSL's codes for a certificate that is not valid at this machine's time."""

SERVER, CLOCK = "server", "clock against the server"


@dataclass(frozen=True)
class Address:
    """The network address of a server, and the name in its certificate."""

    host: str
    port: int
    party: str

    @classmethod
    def parse(cls, target: Any, party: Any) -> "Address":
        """The address in a text `host:port`. Raises `ValueError`."""
        if not isinstance(target, str) or not isinstance(party, str):
            raise ValueError("an address and a name are texts")
        host, _, port = target.rpartition(":")
        number = int(port)
        if not host or not 0 < number < 1 << 16:
            raise ValueError("an address has a host and a port")
        return cls(host.strip("[]"), number, party)


def site_settings(kit: Path) -> dict[str, Any]:
    """The content of a site's `startup/fed_client.json`; empty if it cannot be read."""
    try:
        return read_json(kit / "startup" / "fed_client.json")
    except ConfigError:
        return {}


def address_in(settings: dict[str, Any]) -> Address | None:
    """Where the server is by these settings; None if they do not say."""
    try:
        first = settings["servers"][0]
        return Address.parse(first["service"]["target"], first["identity"])
    except (LookupError, TypeError, ValueError):
        return None


class OtherParty(Exception):
    """The peer's certificate names another party."""


def server_checks(startup: Path, stem: str, address: Address | None) -> Iterator[Check]:
    """Whether the server answers this party, with key `STEM.key` and certificate `STEM.crt`, and has the same time."""
    remedy = "check that the network lets this machine reach the server's address in startup/, and that the server runs"
    if address is None:
        yield Check(SERVER, "the kit does not say where it is", "put back the file that provisioning wrote in startup/")
        return
    try:
        answer = ask(startup, stem, address)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in (_NOT_YET_VALID, _EXPIRED):
            problem = "its certificate is not valid at the time that this machine has"
            yield Check(SERVER, problem, f"{SET_CLOCK}; if it is right, the coordinator renews the certificate")
        else:
            yield Check(SERVER, "it shows no certificate of this federation", remedy)
    except OtherParty:
        yield Check(SERVER, "what answers there has another party's certificate", remedy)
    except (OSError, ValueError) as error:
        yield _by_proxy(address, error) or Check(
            SERVER, "it does not answer, or does not accept this party's certificate", remedy
        )
    else:
        yield Check(SERVER)
        yield _clock(answer)


def _by_proxy(address: Address, error: Exception) -> Check | None:
    """The check that fails because of a proxy; None if nothing tells of one."""
    closed = isinstance(error, TimeoutError | ConnectionRefusedError | socket.gaierror)
    status = None if closed else proxies.status_at(address.host, address.port)
    if status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
        problem = "a proxy answers at its address, and asks for a login (407)"
    elif status is not None:
        problem = f"a proxy, or another program without TLS, answers at its address ({status})"
    elif proxies.in_environment(address.host):
        problem = "it does not answer past the proxy that this environment names"
    else:
        return None
    return Check(SERVER, problem, proxies.REMEDY)


def ask(startup: Path, stem: str, address: Address) -> bytes:
    """The head of the server's answer to a request that FLARE ignores.

    Raises `OtherParty`, `ssl.SSLError` or another `OSError`.
    """
    end = time.monotonic() + _PATIENCE
    context = ssl.create_default_context(cafile=str(startup / ROOT))
    context.load_cert_chain(startup / f"{stem}.crt", startup / f"{stem}.key")
    context.check_hostname = False  # FLARE's certificates name parties
    with (
        socket.create_connection((address.host, address.port), _PATIENCE) as plain,
        context.wrap_socket(plain) as connection,
    ):
        if _common_name(connection.getpeercert()) != address.party:
            raise OtherParty
        connection.sendall(b"GET / HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n")
        answer = b""
        while b"\r\n\r\n" not in answer and len(answer) < _ANSWER:
            connection.settimeout(max(0.001, end - time.monotonic()))
            block = connection.recv(4096)
            if not block:
                break
            answer += block
    if not answer:
        raise ConnectionResetError
    return answer


def _common_name(certificate: Any) -> str | None:
    subject = (certificate or {}).get("subject", ())
    return next((value for part in subject for kind, value in part if kind == "commonName"), None)


def _clock(answer: bytes) -> Check:
    dates = [line[5:] for line in answer.split(b"\r\n\r\n")[0].split(b"\r\n") if line[:5].lower() == b"date:"]
    try:
        date = parsedate_to_datetime(dates[0].decode("ascii").strip()).replace(tzinfo=UTC)
    except (LookupError, ValueError, TypeError):
        return Caution(CLOCK, "the server's connection does not say what time it is", "compare the clocks yourself")
    difference = datetime.now(UTC) - date
    if abs(difference) > SKEW:
        minutes, way = abs(difference).total_seconds() / 60, "ahead of" if difference.days >= 0 else "behind"
        remedy = f"{SET_CLOCK}; if this machine's clock is right, tell the coordinator that the server's is not"
        return Check(CLOCK, f"it is {minutes:.0f} minutes {way} the server's", remedy)
    return Check(CLOCK)
