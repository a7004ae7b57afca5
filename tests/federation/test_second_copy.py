"""A second process of one site's kit: real processes, without a server."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from doctored import SITE, provisioned
from phantoms import wait_for

from medfedvqa.federation.flare.loopback import free_port
from medfedvqa.federation.flare.reaper import Reaper
from medfedvqa.federation.live_processes import live_processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_site_does_not_start_while_another_process_of_it_lives(tmp_path: Path) -> None:
    """The second one ends with a sentence and disturbs nothing; once the first is killed, the next one starts."""
    kit = provisioned(tmp_path, free_port()) / SITE
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    script = ["bash", str(kit / "startup" / "sub_start.sh"), "--once"]
    with Reaper(kit) as reaper:
        first = reaper.start(script, kit, tmp_path / "first", environment)
        wait_for(lambda: live_processes(kit / "audit", kit).site)
        second = subprocess.run(script, cwd=kit, env=environment, capture_output=True, text=True, timeout=300)
        assert "another process of this site is running on this machine: stop it first" in second.stderr
        assert second.returncode == 1 and first.poll() is None and live_processes(kit / "audit", kit).site
        first.kill()
        first.wait()
        third = reaper.start(script, kit, tmp_path / "third", environment)
        wait_for(lambda: live_processes(kit / "audit", kit).site)
        assert third.poll() is None
