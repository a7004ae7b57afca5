"""A federation on this machine that does not come up, and the ports that it takes."""

import socket
from pathlib import Path

import pytest

from medfedvqa.errors import FederationError
from medfedvqa.federation.flare import admin_client, loopback
from medfedvqa.federation.flare.loopback import LoopbackFederation, free_port
from medfedvqa.federation.flare.provision import SERVER
from medfedvqa.federation.site_config import site_yaml

SITE = "chest"
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning")
def test_a_federation_that_does_not_come_up_shows_how_its_servers_log_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else has the server's port. The folder is temporary: its logs are gone when the error is read."""
    site = tmp_path / "site.yml"
    site.write_text(site_yaml(reader="phantom", organ=SITE, methods=[], state="s", audit="a", ledger="l"))
    monkeypatch.setattr(loopback, "_START_TIMEOUT", 3.0)
    monkeypatch.setattr(admin_client, "_LOGIN_TIMEOUT", 3.0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))
        monkeypatch.setattr(loopback, "free_port", lambda: taken.getsockname()[1])
        federation = LoopbackFederation(tmp_path / "federation", {SITE: site})
        with pytest.raises(FederationError, match="did not answer within 3 seconds") as failed, federation:
            pass
    (note,) = failed.value.__notes__
    assert note.startswith(f"the log of '{SERVER}' ends with:\nWORKSPACE set to ")


@pytest.mark.skipif(not EPHEMERAL.exists(), reason="the system does not say which ports it gives to connections")
def test_a_free_port_is_none_that_a_connection_may_take_before_the_server_does() -> None:
    first, last = map(int, EPHEMERAL.read_text().split())
    assert not any(first <= free_port() <= last for _ in range(100))
