"""A provisioned federation whose server is the attacker: what it sees of sites' mail, and what its tampering does."""

import json
import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chisquare
from taps import TappedFederation

from audits import Outcome, read
from medfedvqa.data import load_site
from medfedvqa.data.phantom import organs
from medfedvqa.federation.flare.recipe import export_job
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import Launch, write_sites
from medfedvqa.federation.site_config import SiteConfig, load_site_config
from medfedvqa.federation.site_state import StateFile

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    # FLARE's transport, on one of its threads.
    pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning"),
]

SITES = organs(4)
BACKBONE = "medclip@random"
OPTIONS = {"rounds": 1, "local_epochs": 1, "local_unit": "batches", "batch_rows": 4, "blocks": 2, "hidden": 16}
JOB = JobSpec.from_dict(
    {
        "method": "prompt_pfl",
        "options": {**OPTIONS, "local_baseline": False},
        "data": "phantom",
        "backbone": BACKBONE,
        "secagg": True,
    }
)
PATIENCE = 300.0  # seconds
MARKER_VALUES = 4
FALSE_ALARM = 1e-8


Paths = dict[str, Path]


def written(folder: Path, backbone: Path) -> Paths:
    """Phantom sites that know each other's keys."""
    return write_sites(Launch(JOB, None, folder, SITES, backbone_files={BACKBONE: backbone}))


def tapped(folder: Path, paths: Paths) -> TappedFederation:
    """A federation of these sites, to be started."""
    places = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"PYTHONPATH": os.pathsep.join(places)}
    return TappedFederation(folder, paths, environment)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory, random_backbone: Path) -> Paths:
    return written(tmp_path_factory.mktemp("sites"), random_backbone)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory, paths: Paths) -> Iterator[TappedFederation]:
    with tapped(tmp_path_factory.mktemp("federation"), paths) as federation:
        yield federation


@pytest.fixture(scope="module")
def configs(paths: dict[str, Path]) -> dict[str, SiteConfig]:
    return {name: load_site_config(path, name) for name, path in paths.items()}


def run(federation: TappedFederation, folder: Path, job: JobSpec = JOB) -> tuple[str, dict[str, object]]:
    """Runs a job to its end; its id and results."""
    federation.forget()
    export_job(job, folder / "job")
    job_id = federation.submit(folder / "job")
    federation.wait(job_id, PATIENCE)
    return job_id, json.loads((federation.results(job_id) / "results.json").read_text())


def markers(config: SiteConfig, job_id: str) -> set[bytes]:
    """A few neighbouring values each of a site's prompts, in all ways that numbers are written."""
    saved = StateFile(config.state, job_id).load()
    assert saved is not None
    found = set()
    for name, tensor in saved.state["values"].items():
        if name.startswith("prompt."):
            values = tensor.numpy().ravel()
            for start in range(0, values.size - MARKER_VALUES, 101):
                marker = values[start : start + MARKER_VALUES]
                found |= {marker.astype(kind).tobytes() for kind in ("<f4", ">f4", "<f8", ">f8")}
    return found


def questions(name: str) -> set[bytes]:
    """A site's questions, as text is written."""
    data = load_site("phantom", None, name, JOB.split, JOB.seed)
    texts = {*data.train.questions, *data.test.questions, *data.answers}
    return {text.encode(code) for text in texts if len(text) > 8 for code in ("utf-8", "utf-16-le", "utf-16-be")}


def test_a_server_that_keeps_all_it_relays_finds_prompts_in_a_plain_job(
    federation: TappedFederation, configs: dict[str, SiteConfig], tmp_path: Path
) -> None:
    """The control: the recorder sees what is there to be seen, from every site."""
    job_id, results = run(federation, tmp_path, JOB.model_copy(update={"secagg": False}))
    assert results["status"] == "finished"
    seen = federation.seen()
    assert b"prompt_pfl" in seen
    for config in configs.values():
        assert any(marker in seen for marker in markers(config, job_id))


def test_with_secure_aggregation_it_finds_noise_only_and_what_it_loses_is_sent_again(
    federation: TappedFederation, configs: dict[str, SiteConfig], tmp_path: Path
) -> None:
    """No prompt, no question, no answer; even with all keys, shares; lost, doubled and late messages harm nothing."""
    with federation.ordered("drop", "double", "delay"):
        job_id, results = run(federation, tmp_path)
    assert results["status"] == "finished" and "broke off" not in str(results["notes"])
    assert [order for order, _, _ in federation.done()] == ["drop", "double", "delay"]
    seen = federation.seen()
    for name, config in configs.items():
        hidden = markers(config, job_id) | questions(name)
        assert len(hidden) > 100 and not any(marker in seen for marker in hidden)
    secrets = federation.secrets()
    assert {(me, peer) for me, peer, _, _ in secrets} == {(a, b) for a in SITES for b in SITES if a != b}
    assert {sha for _, _, _, sha in secrets} <= digests(federation.relayed())
    # A message that goes to several sites counts once.
    assert_uniform({message for _, _, message, _ in secrets})


def digests(payloads: list[bytes]) -> set[str]:
    return {sha256(payload).hexdigest() for payload in payloads}


def assert_uniform(messages: set[bytes]) -> None:
    """Bytes of long messages, and the elements of those that hold single bits: all values alike."""
    elements = [np.frombuffer(message, "<u8") for message in messages if len(message) % 8 == 0 and len(message) > 256]
    full = np.concatenate([message for message in elements if message.max() > 1]).tobytes()
    assert len(full) > 100_000
    assert chisquare(np.bincount(np.frombuffer(full, np.uint8), minlength=256)).pvalue > FALSE_ALARM
    bits = np.concatenate([np.zeros(0, np.uint64), *(message for message in elements if message.max() <= 1)])
    assert abs(int(bits.sum()) - bits.size / 2) <= 6 * np.sqrt(bits.size) / 2


@pytest.mark.release
@pytest.mark.parametrize("forgery", ["flip", "replay"])
def test_a_message_that_the_server_forged_is_refused_and_its_sender_left_out(
    tmp_path: Path, random_backbone: Path, forgery: str
) -> None:
    """One bit, or an older message in place of a newer: the attempt is repeated without the site that is named. Among
    sites of its own: those that were in a sum over all four refuse one over three."""
    paths = written(tmp_path / "sites", random_backbone)
    with tapped(tmp_path / "federation", paths) as federation:
        with federation.ordered(forgery):
            job_id, results = run(federation, tmp_path)
        ((_, sender, receiver),) = federation.done()
    configs = {name: load_site_config(path, name) for name, path in paths.items()}
    assert results["status"] == "finished"
    assert f"Site {sender} broke off in round 1" in str(results["notes"])
    shared = [e for e in read(configs[receiver].audit) if (e.job, e.peer, e.outcome) == (job_id, "sites", Outcome.SENT)]
    assert [sender in str(entry.reason) for entry in shared] == [True, False]
    assert len({entry.reason for entry in shared}) == 2


@pytest.mark.release
def test_a_wrong_fingerprint_is_refused_and_the_reason_is_said(federation: TappedFederation, tmp_path: Path) -> None:
    """The job needs all sites; one of them pins another key for a peer than the peer has."""
    one, other = SITES[:2]
    path = federation.kits / one / "local" / "site.yml"
    text = path.read_text()
    pin = load_site_config(path, one).peers[other]
    path.write_text(text.replace(pin, "f" * 64))
    try:
        job_id, results = run(federation, tmp_path, JOB.model_copy(update={"min_sites": len(SITES)}))
    finally:
        path.write_text(text)
    assert federation.status(job_id) != "FINISHED:COMPLETED"
    assert f"{other} fell out" in str(results["failure"]) and "the job needs 4" in str(results["failure"])
    log = (federation.kits / one / job_id / "log.txt").read_text()
    assert f"site '{other}' shows a key whose fingerprint is not the pinned one" in log
