"""An attacked site. What attackers need, FLARE's exporter among it, is imported where a test asks for it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def attacked_site(tmp_path_factory: pytest.TempPathFactory, random_backbone: Path) -> Iterator[Any]:
    """A site of a provisioned federation with a vault that runs."""
    from attackers import Attacked
    from vaults import processes

    attacked = Attacked.made(tmp_path_factory.mktemp("attacked"), random_backbone)
    attacked.start()
    try:
        assert attacked.serves()
        yield attacked
    finally:
        for process in processes(attacked.place):
            process.kill()


@pytest.fixture
def site(attacked_site: Any) -> Iterator[Any]:
    """The same, of which no connection is left to the next test."""
    from attackers import OPENED

    yield attacked_site
    while OPENED:
        OPENED.pop().close()
