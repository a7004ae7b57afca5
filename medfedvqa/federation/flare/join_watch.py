"""Says in a site's log why it has not joined: FLARE (2.9) tries for ever, and logs the errors of its transport only."""

import logging
import threading
from pathlib import Path

from medfedvqa.federation import proxies
from medfedvqa.federation.flare.doctor_checks import address_in, server_checks, site_settings

PATIENCE = 30.0
"""Seconds in which a site joins a server that it reaches."""

_logger = logging.getLogger(__name__)


class JoinWatch:
    """Waits for a site to join; after `PATIENCE` it makes the checks of `medfedvqa doctor --server` once."""

    def __init__(self, kit: Path) -> None:
        self._kit, self._address = kit, address_in(site_settings(kit))
        self._timer = threading.Timer(PATIENCE, self._explain)
        self._timer.daemon = True

    def start(self) -> None:
        """The site is about to register."""
        if self._address is not None and proxies.in_environment(self._address.host):
            _logger.warning("this environment names a proxy. %s", proxies.REMEDY)
        self._timer.start()

    def joined(self) -> None:
        """The site has registered."""
        self._timer.cancel()

    def _explain(self) -> None:
        for check in server_checks(self._kit / "startup", "client", self._address):
            if not check.ok:
                _logger.warning("this site has not joined. %s: %s; %s", check.name, check.problem, check.remedy)
