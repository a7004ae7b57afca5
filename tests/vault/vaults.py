"""A server's engine over real vaults: a process for each site, and couriers that carry between them. No FLARE."""

import json
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import numpy as np
import psutil

from audits import Refusal
from medfedvqa.federation.hub import Reply, TaskCall
from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import Launch, write_sites
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.site_config import load_site_config
from medfedvqa.federation.site_state import StateFile
from medfedvqa.vault.courier import JobCourier
from medfedvqa.vault.place import JOB_FILE, VaultPlace
from privacy.secagg import InProcessRelay

SITES = ("chest", "abdomen", "head")
JOB = "job"


def place_of(path: Path) -> VaultPlace:
    """The vault of the site whose `site.yml` is here; a deep folder, whose socket's path is longer than 107 bytes."""
    folder = path.parent / ("vault-" + "x" * 100)
    return VaultPlace(path, path.parent.name, None, folder)


def processes(place: VaultPlace) -> list[psutil.Process]:
    """The vault's own process, and then those that answer connections."""
    found = [p for p in psutil.process_iter(["cmdline"]) if str(place.folder) in (p.info["cmdline"] or ())]
    return sorted(found, key=lambda process: process.create_time())


class VaultEngine:
    """Calls all sites at once; ends their vaults when it is left."""

    def __init__(self, paths: Mapping[str, Path], job: JobSpec) -> None:
        self.places = {site: place_of(path) for site, path in paths.items()}
        relays: defaultdict[str, InProcessRelay] = defaultdict(InProcessRelay)
        files = {JOB_FILE: json.dumps(job.to_dict()).encode()}
        self.couriers = {
            site: JobCourier(place, JOB, files, lambda attempt, site=site: relays[attempt].of(site))
            for site, place in self.places.items()
        }
        self.answered = dict.fromkeys(paths, 0)
        """By site, the bytes of values that came from its vault."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for courier in self.couriers.values():
            courier.close()
        for place in self.places.values():
            for process in processes(place):
                process.kill()

    def call(self, call: TaskCall) -> dict[str, Reply]:
        """See `hub.Engine`."""

        def answer(site: str) -> tuple[str, Reply] | None:
            incoming = call.audit_bytes.get(site, b"")
            frame = self.couriers[site].ask("task", call.messages[site], incoming, task=call.task, round=call.round)
            if frame.kind == "refused":
                call.refused(site, Refusal(frame.fields["code"]), "")
                return None
            call.answered(site)
            self.answered[site] += sum(array.nbytes for array in frame.arrays.values())
            return site, Reply(dict(frame.arrays), 0.0, frame.data)

        with ThreadPoolExecutor(len(call.messages)) as pool:
            return dict(filter(None, pool.map(answer, call.messages)))


def sites_of(out: Path, job: JobSpec, files: Mapping[str, Path], **changes: Any) -> dict[str, Path]:
    """New sites' files, whose noise and secrets repeat; keywords are further lines."""
    paths = write_sites(Launch(job, None, out, SITES, backbone_files=files))
    for path in paths.values():
        lines = "".join(f"{name}: {value}\n" for name, value in {"repeatable_noise": 7, **changes}.items())
        path.write_text(path.read_text(encoding="utf-8") + lines, encoding="utf-8")
    return paths


def in_process(out: Path, job: JobSpec, files: Mapping[str, Path]) -> None:
    """The job over sites in this process."""
    configs = {site: load_site_config(path, site) for site, path in sites_of(out, job, files).items()}
    with closing(LocalEngine(configs, job, JOB)) as engine:
        serve_job(job, SITES, engine.call, out, "local")


def states(out: Path) -> dict[str, list[Any]]:
    """What each site kept of the job at its end: the arrays of its model, and the results of sums."""
    kept = {}
    for site in SITES:
        saved = StateFile(out / "sites" / site / "state", JOB).load()
        assert saved is not None
        kept[site] = [value.numpy() for value in _tensors(saved.state)]
        kept[site] += [array for _, array in sorted(saved.mixture.items())]
    return kept


def same(one: dict[str, list[Any]], other: dict[str, list[Any]], tolerance: float = 0.0) -> bool:
    """Whether all arrays are equal to the bit, or within the tolerance if there is one."""
    pairs = [(one[site], other[site]) for site in SITES]
    if tolerance:
        return all(np.allclose(a, b, atol=tolerance) for left, right in pairs for a, b in zip(left, right, strict=True))
    return all(len(left) > 1 and list(map(bytes, left)) == list(map(bytes, right)) for left, right in pairs)


def _tensors(tree: Any) -> list[Any]:
    if isinstance(tree, Mapping):
        return [tensor for _, branch in sorted(tree.items()) for tensor in _tensors(branch)]
    if isinstance(tree, list | tuple):
        return [tensor for branch in tree for tensor in _tensors(branch)]
    return [tree] if hasattr(tree, "numpy") else []
