"""Measures how far two first uploads of one site differ if the site draws the order of its training from a secret.

Without secure aggregation a server sees each upload; with it, the difference of two sums over sites that differ by one
is that site's upload plus what the others' uploads changed from one job to the other. This measures that change,
against the size of the update that it would hide. It is no bound on what a difference reveals.
"""

import argparse
import json
import secrets
from itertools import combinations

import numpy as np
import torch

from medfedvqa.core import Method
from medfedvqa.data import Split, load_site
from medfedvqa.data.phantom import organs
from medfedvqa.federation.job import JobSpec
from medfedvqa.models import Backbone, load_backbone, shape_of
from medfedvqa.training import Site


def update(method: Method, backbone: Backbone, organ: str, secret: bytes) -> np.ndarray:
    """The change of a site's values in the first round, as one vector."""
    data = load_site("phantom", None, organ, Split(), 0, None)
    site = Site(organ, data, backbone, "cpu", 0, secret=secret)
    start = method.exchange(shape_of(backbone.name)).task("start")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(site.task_seed("start", 1))
        state = method.setup(site)
        before = {name: tensor.detach().clone() for name, tensor in state["values"].items()}
        _, reply = method.handle(start, site, state, {}, 1)
    return np.concatenate([(reply[name] - before[name].numpy()).ravel() for name in sorted(before) if name in reply])


def main() -> None:
    """Measure, and print a line of JSON for each number of epochs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--epochs", type=int, nargs="+", default=[1, 5])
    arguments = parser.parse_args()
    if arguments.repeats < 2:
        parser.error("uploads are compared in pairs: give --repeats at least 2")
    backbone = load_backbone("medclip2-slake", {}, "cpu")
    for epochs in arguments.epochs:
        options = {"rounds": 1, "local_epochs": epochs, "batch_rows": 16, "weighting": "uniform"}
        method = JobSpec.from_dict(
            {"method": "fedavg", "options": options, "data": "phantom", "backbone": "medclip2-slake", "secagg": True}
        ).build()
        apart, same, hidden = [], [], []
        updates: list[list[np.ndarray]] = []
        for organ in organs(arguments.sites):
            of_site = [update(method, backbone, organ, secrets.token_bytes(16)) for _ in range(arguments.repeats)]
            size = np.mean([np.linalg.norm(first_update) for first_update in of_site])
            apart += [np.linalg.norm(first_update - other) / size for first_update, other in combinations(of_site, 2)]
            again = [update(method, backbone, organ, b"fixed") for _ in range(2)]
            same.append(np.linalg.norm(again[0] - again[1]) / size)
            updates.append(of_site)
        target = updates[-1]
        for first, second in combinations(range(arguments.repeats), 2):
            difference = target[first] + sum(site[first] - site[second] for site in updates[:-1])
            hidden.append(
                float(difference @ target[first] / np.linalg.norm(difference) / np.linalg.norm(target[first]))
            )
        print(
            json.dumps(
                {
                    "epochs": epochs,
                    "apart": [round(float(f(apart)), 3) for f in (min, np.mean, max)],
                    "same order": max(map(float, same)),
                    "cosine of what a difference shows and the upload": [
                        round(float(f(hidden)), 3) for f in (min, np.mean, max)
                    ],
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
