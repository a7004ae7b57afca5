"""Pinning other sites' keys, and the words by which people compare them."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from medfedvqa.cli import app
from medfedvqa.errors import ConfigError
from medfedvqa.federation.aggregation_attempt import load_identity
from medfedvqa.federation.site_config import load_site_config, site_yaml
from medfedvqa.federation.site_keys import pin
from privacy.secagg.channel import WORDS, words_of

FACTS = {"reader": "phantom", "organ": "chest", "methods": ["prompt_pfl"]}
ONE, OTHER = "1a" * 32, "2b" * 32


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "chest" / "site.yml"
    path.parent.mkdir()
    path.write_text(site_yaml(**FACTS))
    return path


def test_two_sites_read_the_same_words(tmp_path: Path) -> None:
    """Each pins the other by one command; what one must read out is what the other is shown for it."""
    paths = {name: tmp_path / name / "site.yml" for name in ("chest", "head")}
    for name, path in paths.items():
        path.parent.mkdir()
        path.write_text(site_yaml(**{**FACTS, "organ": name}))
    prints = {name: load_identity(load_site_config(path, name)).fingerprint for name, path in paths.items()}
    shown = {}
    for name, other in (("chest", "head"), ("head", "chest")):
        added = CliRunner().invoke(app, ["peers", "add", other, prints[other], "--site", str(paths[name])])
        assert added.exit_code == 0 and words_of(prints[other]) in " ".join(added.output.split())
        shown[name] = json.loads(
            CliRunner().invoke(app, ["peers", "verify", "--site", str(paths[name]), "--json"]).output
        )
    assert shown["chest"]["peers"] == {"head": shown["head"]["words"]}
    assert shown["head"]["peers"] == {"chest": shown["chest"]["words"]}
    assert shown["chest"]["words"] != shown["head"]["words"]
    plain = CliRunner().invoke(app, ["peers", "verify", "--site", str(paths["chest"])]).output
    assert shown["head"]["words"] in " ".join(plain.split())


@pytest.mark.parametrize(
    "peers",
    ["peers: {}", f"peers: {{head: {OTHER}}}", f"peers:\n  head: {OTHER}  # by phone", "peers: {\n}"],
    ids=["empty", "flow", "block", "lines"],
)
def test_only_the_value_of_peers_changes(file: Path, peers: str) -> None:
    """Comments and all other settings stay, in whichever form the file had its peers; so does the file's mode."""
    before = file.read_text()
    file.write_text(before.replace("peers: {}", peers, 1))
    file.chmod(0o600)
    pin(file, "chest", "abdomen", ONE)
    after = file.read_text()
    assert load_site_config(file, "chest").peers == {"abdomen": ONE} | ({"head": OTHER} if OTHER in peers else {})
    same = [line for line in before.splitlines() if not line.startswith("peers")]
    assert [line for line in after.splitlines() if line in same] == same
    assert {**yaml.safe_load(after), "peers": 0} == {**yaml.safe_load(before), "peers": 0}
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("name", "fingerprint", "words"),
    [
        ("chest", ONE, "give the other site's name"),
        ("../head", ONE, "give the other site's name"),
        ("abdomen", ONE[:-1], "64 hex digits"),
        ("abdomen", OTHER, "must not share a key"),
        ("head", ONE, "--replace"),
    ],
)
def test_what_cannot_be_right_is_refused_and_changes_nothing(
    file: Path, name: str, fingerprint: str, words: str
) -> None:
    """The site's own name, a malformed name or fingerprint, a key that another has, a second key for a name."""
    pin(file, "chest", "head", OTHER)
    before = file.read_bytes()
    with pytest.raises(ConfigError, match=words):
        pin(file, "chest", name, fingerprint)
    assert file.read_bytes() == before
    pin(file, "chest", "head", ONE, replace=True)
    assert load_site_config(file, "chest").peers == {"head": ONE}


def test_there_is_one_word_for_each_byte() -> None:
    """256 words, none twice, and none that is another's beginning, so that a word that breaks off is not another."""
    assert len(WORDS) == len(set(WORDS)) == 256
    assert not [word for word in WORDS if any(other != word and other.startswith(word) for other in WORDS)]
    assert len(words_of(ONE).split("-")) == 8 and words_of(ONE) != words_of("1a" * 31 + "1b")
