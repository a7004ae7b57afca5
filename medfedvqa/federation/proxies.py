"""Proxies, which no party of a federation uses: FLARE's (2.9) transport opens each connection itself.

A network that lets nothing out but through a proxy needs a rule for the server's address and port. The functions here
recognise such a network, so that a party reports it instead of an error of the transport.
"""

import re
import socket
from collections.abc import Mapping
from typing import Any
from urllib.request import getproxies, proxy_bypass

from medfedvqa.errors import ConfigError

REMEDY = "FLARE's connections use no proxy: let the network pass this machine to the server's own address and port"

_SETTINGS = frozenset({"proxy", "proxies", "http_proxy", "https_proxy"})
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})[ \r]")
_PATIENCE = 5.0  # seconds


def refuse_settings(settings: Mapping[str, Any]) -> None:
    """Raises `ConfigError` if the settings of a site name a proxy."""
    if _SETTINGS & settings.keys():
        raise ConfigError(f"site.yml names a proxy, which is not a setting. {REMEDY}")


def in_environment(host: str) -> bool:
    """Whether the variables of this process (`https_proxy`, `all_proxy`, `no_proxy`) name a proxy for this host."""
    return bool({"https", "all"} & getproxies().keys()) and not proxy_bypass(host)


def status_at(host: str, port: int) -> int | None:
    """The HTTP status with which a proxy at this address answers; None if nothing there speaks HTTP without TLS."""
    request = f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()
    try:
        with socket.create_connection((host, port), _PATIENCE) as connection:
            connection.settimeout(_PATIENCE)
            connection.sendall(request)
            status = _STATUS.match(connection.recv(64))
    except OSError:
        return None
    return int(status.group(1)) if status else None
