"""A provisioned federation whose server is the attacker: what it sees of sites' mail, and what its tampering does."""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from phantoms import short_job
from scipy.stats import chisquare
from tapped import TappedFederation

from audits import Outcome
from medfedvqa.data import load_site
from medfedvqa.data.phantom import organs
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_state import StateFile

pytestmark = pytest.mark.slow

SITES = organs(4)
JOB = short_job(options={"blocks": 2}, secagg=True)
MARKER_VALUES = 4
FALSE_ALARM = 1e-8


@pytest.fixture(scope="module")
def federation(phantoms: Callable[..., TappedFederation]) -> TappedFederation:
    """Sites that know each other's keys."""
    return phantoms(SITES, TappedFederation, introduced=True, methods=["prompt_pfl"])


@pytest.fixture(scope="module")
def configs(federation: TappedFederation) -> dict[str, SiteConfig]:
    return {name: federation.config(name) for name in SITES}


def run(federation: TappedFederation, folder: Path, job: JobSpec = JOB) -> tuple[str, dict[str, object]]:
    """Runs a job to its end; its id and results."""
    federation.forget()
    job_id = federation.run(job, folder / "job")
    return job_id, federation.outcome(job_id)


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
    phantoms: Callable[..., TappedFederation], tmp_path: Path, forgery: str
) -> None:
    """One bit, or an older message in place of a newer: the attempt is repeated without the site that is named. Among
    sites of its own: those that were in a sum over all four refuse one over three."""
    federation = phantoms(SITES, TappedFederation, introduced=True, methods=["prompt_pfl"])
    with federation.ordered(forgery):
        job_id, results = run(federation, tmp_path)
    ((_, sender, receiver),) = federation.done()
    assert results["status"] == "finished"
    assert f"Site {sender} broke off in round 1" in str(results["notes"])
    shared = [e for e in federation.log(receiver, job_id) if (e.peer, e.outcome) == ("sites", Outcome.SENT)]
    assert [sender in str(entry.reason) for entry in shared] == [True, False]
    assert len({entry.reason for entry in shared}) == 2


@pytest.mark.release
def test_a_wrong_fingerprint_is_refused_and_the_reason_is_said(federation: TappedFederation, tmp_path: Path) -> None:
    """The job needs all sites; one of them pins another key for a peer than the peer has."""
    one, other = SITES[:2]
    with federation.changed(one, peers={**federation.config(one).peers, other: "f" * 64}):
        job_id, results = run(federation, tmp_path, JOB.model_copy(update={"min_sites": len(SITES)}))
    assert federation.status(job_id) != "FINISHED:COMPLETED"
    assert f"{other} fell out" in str(results["failure"]) and "the job needs 4" in str(results["failure"])
    log = (federation.kits / one / "vault" / "vault.log").read_text()
    assert f"site '{other}' shows a key whose fingerprint is not the pinned one" in log
