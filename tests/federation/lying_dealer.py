"""A lying server's mixtures and draws: it deals what it likes, and draws until a committee suits it."""

import secrets
from collections.abc import Callable, Collection

import numpy as np
from lying_server import Answer, LyingServer, attempt_message, hex_message

from medfedvqa.federation.job import JobSpec
from medfedvqa.methods import MixOnShares
from medfedvqa.models import shape_of
from privacy.secagg import Layout
from privacy.secagg.protocol import deal_mix

KEY = 32
"""Bytes of a key in what is dealt."""

Bend = Callable[[str, bytes], bytes]
"""By site: what the dealer hands out in the place of an honest part."""


def mixed_layout(job: JobSpec, task: str) -> Layout:
    """What the job mixes."""
    method = job.build()
    how = method.on_shares[task]
    assert isinstance(how, MixOnShares)
    return how.layout(method.declared(shape_of(job.backbone)).task(task))


def deal(job: JobSpec, task: str, sites: Collection[str]) -> dict[str, bytes]:
    """An honest dealing for a mixture in which all sites compute."""
    return deal_mix(sorted(sites), sorted(sites), mixed_layout(job, task))


def mix(
    server: LyingServer,
    task: str,
    round: int,
    sites: Collection[str],
    dealing: dict[str, bytes] | None = None,
    number: int = 1,
) -> dict[str, Answer]:
    """Asks for one mixture of the saved answers to a task; with `dealing` if it is given, else with a fresh one."""
    group, name = sorted(sites), secrets.token_hex(8)
    dealing = dealing or deal(server.job, task, group)
    messages = {site: attempt_message(name, group, group, number, dealing[site]) for site in group}
    return server.ask(f"{task}/mix", round, messages)


def bent(part: bytes, members: int, size: int, vector: np.ndarray) -> bytes:
    """A site's part with a vector of ring elements, [size], added to the correction of its mixture."""
    start, end = members * KEY, members * KEY + 8 * size
    correction = np.frombuffer(part[start:end], "<u8") + vector.astype(np.uint64)
    return part[:start] + correction.tobytes() + part[end:]


def draw(server: LyingServer, round: int, sites: Collection[str]) -> tuple[dict[str, bytes], set[str]]:
    """One whole draw of a committee: the beacons by site, and the codes of refusals on the way."""
    codes: set[str] = set()

    def step(task: str, names: Collection[str], array: str, message: dict[str, np.ndarray]) -> dict[str, bytes]:
        answers = server.tell(task, round, names, message)
        codes.update(answer.code for answer in answers.values() if answer.code)
        return {site: answer.tensors[array].tobytes() for site, answer in answers.items() if array in answer.tensors}

    commitments = step("committee/commit", sites, "commitment", {})
    nonces = step("committee/open", sorted(commitments), "nonce", hex_message("commitments", commitments))
    return step("committee/check", sorted(nonces), "beacon", hex_message("nonces", nonces)), codes
