"""The organ that a site names in site.yml."""

from pathlib import Path

import pytest

from medfedvqa.errors import ConfigError
from medfedvqa.federation.site_config import load_site_config, site_yaml


@pytest.mark.parametrize("organ", ["retina", "skin-2", "site-001", "a" * 32])
def test_a_site_may_hold_an_organ_of_its_own(tmp_path: Path, organ: str) -> None:
    (tmp_path / "site.yml").write_text(site_yaml(reader="store", root="store", organ=organ, methods=["local"]))
    assert load_site_config(tmp_path / "site.yml", "site").data.organ == organ


@pytest.mark.parametrize("organ", ["", "Retina", "SECRET name", "a" * 33, "-a", "../SECRET", "a\n", "größe"])
def test_a_site_whose_organ_is_no_name_does_not_start(tmp_path: Path, organ: str) -> None:
    """The organ is the name of a site in a run on one machine; the sentence does not repeat it."""
    (tmp_path / "site.yml").write_text(site_yaml(reader="store", root="store", organ=organ, methods=["local"]))
    with pytest.raises(ConfigError, match="'data.organ'") as caught:
        load_site_config(tmp_path / "site.yml", "site")
    assert "SECRET" not in str(caught.value)
