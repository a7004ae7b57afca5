"""Measures a secure mixture: exchanges, bytes and seconds, with all sites as threads of this process.

The server deals from seeds of the members, and each site checks the dealing (`privacy.secagg.cut_and_choose`).
Prompts of ViT-B/32 (12 layers of 4 tokens, 768 wide for images and 512 for text), over encrypted links, without a
network: to the seconds add, for each exchange, what a message through the federation's server takes.
"""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from audits import Tensors
from privacy.secagg import Group, Identity, InProcessRelay, TensorLayout, connect
from privacy.secagg.communicator import MeteredWire
from privacy.secagg.cut_and_choose import SETS, Dealing, check_dealing, check_part, new_seed, set_seed
from privacy.secagg.protocol import secure_mix

LAYOUT = TensorLayout.of({"image": (12, 4, 768), "text": (12, 4, 512)})
TIMEOUT = 600.0
HASH = 32
"""Bytes of a digest or a seed."""
CASES = [(3, 3), (5, 5), (8, 8), (25, 3), (100, 3), (200, 3)]
"""Sites, and members among them."""


COLUMNS = {
    "sites": "5d",
    "members": "7d",
    "exchanges": "9d",
    "deal s": "6.2f",
    "check s": "7.2f",
    "mix s": "6.2f",
    "clock s": "7.2f",
    "member MB": "9.2f",
    "owner MB": "8.2f",
    "dealt member": "12.2f",
    "dealt owner": "11.2f",
    "dealt in all": "12.2f",
}
"""Processor seconds of all dealings, of one member's checks, of mixing at all sites together, and these by the clock;
megabytes that a member sends, and the last owner; those that the dealer sends to the member who gets most, to the last
owner, and in all, with what shows that it dealt right."""

CONTEXT = b"benchmark"


def prompts(site: int) -> Tensors:
    """The prompts of a site, which resemble those of other sites."""
    common, of_site = np.random.default_rng(0), np.random.default_rng(1 + site)
    return {n: np.float32(0.02 * (common.normal(size=s) + of_site.normal(size=s))) for n, s in LAYOUT.shapes}


def cost(size: int, members: int) -> list[float]:
    """The columns of one mixture; connecting is not counted."""
    sites = tuple(f"s{rank:03}" for rank in range(size))
    committee = sites[:members]
    seeds, index = {member: new_seed() for member in committee}, 0
    began = time.process_time()
    dealing = Dealing.of(sites, committee, LAYOUT, CONTEXT, seeds)
    chosen = dealing.chosen(index)
    dealt_s = time.process_time() - began
    me, began = committee[0], time.process_time()
    check_part(me, chosen.parts[me], chosen.digests, dealing.digests[index])
    check_dealing(sites, committee, LAYOUT, CONTEXT, (me, seeds[me]), chosen.revealed, dealing.digests, index)
    checked_s = time.process_time() - began
    dealer_seeds = {member: set_seed(seed, CONTEXT, index) for member, seed in seeds.items()}
    identities = {site: Identity(X25519PrivateKey.generate()) for site in sites}
    relay = InProcessRelay()

    def connected(me: str) -> dict[str, MeteredWire]:
        peers = [site for site in (sites if me in committee else committee) if site != me]
        pinned = {peer: identities[peer].fingerprint for peer in peers}
        links = connect(identities[me], "benchmark", me, pinned, relay.of(me), TIMEOUT)
        return {peer: MeteredWire(link) for peer, link in links.items()}

    with ThreadPoolExecutor(size) as pool:
        links = dict(zip(sites, pool.map(connected, sites), strict=True))
        uploads = list(pool.map(prompts, range(size)))

        def mixed(rank: int) -> Tensors:
            me = sites[rank]
            group, part = Group(me, sites, committee), chosen.parts[me]
            return secure_mix(group, links[me], part, uploads[rank], 0.5, LAYOUT, dealer_seeds.get(me, b""))

        began, clock = time.process_time(), time.perf_counter()
        list(pool.map(mixed, range(size)))
        mixing, clock = time.process_time() - began, time.perf_counter() - clock
    sent = {site: sum(link.nbytes for link in links[site].values()) for site in sites}
    proof_bytes = HASH * (SETS + size)
    parts = {site: len(part) + proof_bytes for site, part in chosen.parts.items()}
    for member in committee:
        parts[member] += HASH * (SETS - 1) * members
    exchanges = links[sites[0]][sites[1]].messages
    nbytes = [sent[sites[0]], sent[sites[-1]], max(parts.values()), parts[sites[-1]], sum(parts.values())]
    return [size, members, exchanges, dealt_s, checked_s, mixing, clock, *(each / 1e6 for each in nbytes)]


def main() -> None:
    """Measure each case and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=200, help="leave out cases of more sites")
    arguments = parser.parse_args()
    cost(3, 3)
    torch.set_num_threads(1)
    print("  ".join(COLUMNS))
    for size, members in CASES:
        if size <= arguments.most:
            row = zip(cost(size, members), COLUMNS.values(), strict=True)
            print("  ".join(format(value, how) for value, how in row), flush=True)


if __name__ == "__main__":
    main()
