"""Kills one process of a provisioned federation at a random moment of a job, again and again, and checks what is left.

Each trial submits a job to four phantom sites on loopback (real kits, mutual TLS), sends SIGKILL to one party at a
random moment, starts what a service manager would start again, and waits for the job's end. The parties are a site's
vault, which listens, the vault's process for the job, the job's courier and the site's own process, which are FLARE's,
and the server's job process and own process. Then it checks that

- the job ended with results, or, on shares, with the sentence that fewer sites could reveal each other, or that sums of
  this job and of an earlier one could be combined,
- if nobody missed a round, every site keeps the model of the run in which nobody died: to the bit, or within 0.001
  where CrypTen's truncation, which is random, took part; not in a private job that a vault had to begin again, since
  the repeatable noise of these trials begins again with it,
- every site's log is whole, and agrees with the server's receipts and the other sites: nothing left unlogged,
- every charge in a log stands in the site's ledger, and nothing stays reserved,
- every site that did not answer in a round is named in the results.

The records go to `--out`, a line of JSON for each trial; a second call adds to them, and `--trials 0` prints the table
and the sum.
"""

import argparse
import json
import os
import random
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import torch

from audits import Entry, Event, Outcome, Refusal, VerdictState, examine, read
from audits.log_files import RUNNING
from medfedvqa.data import phantom
from medfedvqa.errors import FederationError
from medfedvqa.federation.flare.loopback import LoopbackFederation
from medfedvqa.federation.flare.provision import SERVER
from medfedvqa.federation.flare.reaper import vault_processes
from medfedvqa.federation.flare.recipe import export_job
from medfedvqa.federation.flare.server_side import SITE_PATIENCE
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.job_budget import look_into
from medfedvqa.federation.launch import Launch, write_sites
from medfedvqa.federation.site_config import SiteConfig, load_site_config
from medfedvqa.federation.site_state import StateFile

PARTIES = ("vault", "vault job", "courier", "site", "server job", "server")
SITES = 4
TRAINING = {"local_unit": "batches", "local_epochs": 4, "batch_rows": 8, "blocks": 1, "hidden": 8}
PROMPTS = {**TRAINING, "length": 2, "local_baseline": False}
PRIVACY = {"noise": 2.0, "count_noise": 20.0, "sample_rate": 0.3, "patient_rows": 4, "physical_patients": 5}
MODES: Mapping[str, Mapping[str, Any]] = {
    "clear, averages": {"method": "fedavg", "options": TRAINING, "min_sites": 2},
    "clear, mixtures": {"method": "prompt_pfl", "options": PROMPTS},
    "clear, private": {"method": "prompt_pfl", "options": {**PROMPTS, "answers": "closed"}, "dp": PRIVACY},
    "shares, averages": {"method": "fedavg", "options": TRAINING, "secagg": True},
    "shares, mixtures": {"method": "prompt_pfl", "options": PROMPTS, "secagg": True},
}
PLAIN_ENDS = ("fewer could reveal each other", Refusal.COHORT.sentence)
SECONDS_DOWN = 3.0
"""Seconds until a party's own process is started again."""
PATIENCE = 900.0
"""Seconds after which a trial has failed."""
MOST_ABSENT = 6
"""Jobs in a row that end before the party's process is found, after which something is wrong."""
ALIKE = 1e-3
"""The most by which models of two runs differ where CrypTen took part."""
FASTER = {SITE_PATIENCE: "60"}
"""A shorter wait than that of a real federation, so that many trials fit into a day."""


@dataclass(frozen=True)
class Kill:
    """What became of one kill."""

    mode: str
    party: str
    site: str
    """The party's name in the federation."""
    moment: float
    """Seconds from the submission to the kill."""
    seconds: float
    """Seconds from the submission to the end of the job."""
    end: str
    """`results`, `plain end`, or a status of FLARE that is neither."""
    missed: int
    """Rounds that a site missed, and sites that fell out of the job."""
    faults: tuple[str, ...]
    """The checks that did not hold."""
    model: str = "not compared"
    """The sites' models beside those of a run in which nobody died: `the same bits`, `alike`, `other`, or `none`."""
    codes: tuple[str, ...] = ()
    """The codes with which sites refused, by their logs."""


class Killing:
    """One federation and the trials in it."""

    def __init__(self, folder: Path, mode: str, rounds: int) -> None:
        self.mode, self._folder = mode, folder
        fields = {**MODES[mode], "data": "phantom", "round_timeout": 300.0}
        job = JobSpec.from_dict({**fields, "options": {**fields["options"], "rounds": rounds}})
        self._launch = Launch(job, None, folder / "sites", phantom.organs(SITES))
        self._paths = write_sites(self._launch)
        for path in self._paths.values():
            path.write_text(path.read_text(encoding="utf-8") + "repeatable_noise: 7\n", encoding="utf-8")
        self._models: dict[str, list[Any]] = {}
        self._federation = LoopbackFederation(folder, self._paths, FASTER)
        self._jobs = 0
        self.lasted = 0.0
        """Seconds of the last job that was over before its kill."""

    def __enter__(self) -> "Killing":
        self._federation.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._federation.__exit__(None, None, None)

    def undisturbed(self) -> float:
        """Seconds that the job takes, from its submission to its end, if nobody dies."""
        began = time.monotonic()
        job_id = self._submitted()
        self._federation.wait(job_id, PATIENCE)
        seconds = time.monotonic() - began
        self._models = self._kept(job_id)
        return seconds

    def trial(self, party: str, site: str, moment: float) -> Kill | None:
        """Kill the party at the moment, or as soon as it has a process after it; None if the job was over before."""
        name, is_own = SERVER if party.startswith("server") else site, party in ("site", "server")
        began = time.monotonic()
        job_id = self._submitted()
        while not (processes := self._killed(name, party, began + moment)):
            if self._federation.finished(job_id):
                self.lasted = time.monotonic() - began
                return None
            time.sleep(0.1)
        killed = time.monotonic() - began
        psutil.wait_procs(processes)
        if is_own:
            time.sleep(SECONDS_DOWN)
            self._federation.start(name)
        try:
            status = self._federation.wait(job_id, PATIENCE)
        except FederationError:
            status = self._federation.status(job_id)
        seconds = time.monotonic() - began
        if not status.startswith("FINISHED"):
            faults = (f"the job has not ended after {PATIENCE:.0f} seconds",)
            return Kill(self.mode, party, name, round(killed, 1), round(seconds, 1), status, 0, faults)
        results = json.loads((self._federation.results(job_id) / "results.json").read_text(encoding="utf-8"))
        plain = self.mode.startswith("shares") and any(end in str(results["notes"]) for end in PLAIN_ENDS)
        ends = {"FINISHED:COMPLETED": "results"} if results["status"] == "finished" else {}
        end = "plain end" if plain else ends.get(status, status)
        faults_found = list(self._faults(job_id, results, ended=end == "results"))
        fell_out = str(results["notes"]).count("broke off")
        missed = sum(bool(record["missing"]) for record in results["rounds"]) + fell_out
        model = self._compared(job_id)
        redrawn = self.mode == "clear, private" and self._began_again(job_id)
        if end == "results" and not missed and not redrawn and model not in ("the same bits", "alike"):
            faults_found.append(f"nobody missed a round, and the sites' models are {model}")
        times, codes = (round(killed, 1), round(seconds, 1)), tuple(sorted(self._codes(job_id)))
        return Kill(self.mode, party, name, *times, end, missed, tuple(faults_found), model, codes)

    def _configs(self) -> dict[str, SiteConfig]:
        paths = {name: self._federation.kits / name / "local" / "site.yml" for name in self._launch.sites}
        return {name: load_site_config(path, name) for name, path in paths.items()}

    def _codes(self, job_id: str) -> set[str]:
        entries = [entry for config in self._configs().values() for entry in read(config.audit) if entry.job == job_id]
        return {entry.admission["code"] for entry in entries if entry.event is Event.REFUSAL and entry.admission}

    def _began_again(self, job_id: str) -> bool:
        """Whether a site's log opened the job more than once: its vault's process for the job started anew."""
        logs = ([*read(config.audit)] for config in self._configs().values())
        return any(sum(e.job == job_id and e.event is Event.OPEN for e in entries) > 1 for entries in logs)

    def _kept(self, job_id: str) -> dict[str, list[Any]]:
        """By site, the arrays of what it keeps of the job."""
        saved = {name: StateFile(config.state, job_id).load() for name, config in self._configs().items()}
        return {name: [tensor.numpy() for tensor in _tensors(each.state)] for name, each in saved.items() if each}

    def _compared(self, job_id: str) -> str:
        kept = self._kept(job_id)
        if kept.keys() != self._models.keys() or not any(kept.values()):
            return "none"
        pairs = [(a, b) for name in kept for a, b in zip(kept[name], self._models[name], strict=False)]
        if any(len(kept[name]) != len(self._models[name]) for name in kept):
            return "other"
        if all(a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in pairs):
            return "the same bits"
        by_crypten = self.mode == "shares, mixtures"
        is_alike = by_crypten and all(a.shape == b.shape and np.allclose(a, b, atol=ALIKE) for a, b in pairs)
        return "alike" if is_alike else "other"

    def _submitted(self) -> str:
        self._jobs += 1
        job = self._launch.job.model_copy(update={"terms": self._federation.terms()})
        folder = self._folder / f"job-{self._jobs}"
        export_job(job, folder)
        return self._federation.submit(folder)

    def _killed(self, name: str, party: str, moment: float) -> list[psutil.Process]:
        """The processes that were killed; none before the moment, or where there is none."""
        if time.monotonic() < moment:
            return []
        if party.startswith("vault"):
            listening, jobs = vaults_of(self._federation.kits / name, self._configs()[name].audit)
            processes = listening if party == "vault" else jobs
        else:
            processes = self._federation.processes(name, party not in ("site", "server"))
        for process in processes:
            process.suspend()
        for process in processes:
            process.kill()
        return processes

    def _faults(self, job_id: str, results: Mapping[str, Any], ended: bool) -> Iterator[str]:
        out = self._federation.results(job_id)
        configs = self._configs()
        for name, config in configs.items():
            entries = [entry for entry in _once(config.audit, job_id)]
            if not _closed(entries):
                yield f"{name}: the log does not close the job"
            judged = examine(config.audit, name, [out, *(c.audit for n, c in configs.items() if n != name)])
            for part in (*judged.integrity.parts, *judged.consistency.parts):
                if part.state is not VerdictState.SHOWN:
                    yield f"{name}: {part.name}: {part.said}"
            sent = [entry for entry in entries if entry.event is Event.RELEASE and entry.outcome is Outcome.SENT]
            with closing(look_into(config)) as ledger:
                for entry in sent:
                    if entry.dp_event and ledger.charge_of(job_id, str(entry.task), entry.round or 0) is None:
                        yield f"{name}: no charge for {entry.task} in round {entry.round}"
                if ledger.together(config.policy.delta, True) != ledger.together(config.policy.delta, False):
                    yield f"{name}: something stays reserved"
            answered, told = {entry.round for entry in sent}, f"Site {name} " in str(results["notes"])
            for record in results["rounds"] if ended else ():
                if record["round"] not in answered and name not in record["missing"] and not told:
                    yield f"{name}: the results do not say that it missed round {record['round']}"


def vaults_of(kit: Path, audit: Path) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """The process of a site's vault that listens, which leads a session, and those that work on a job."""
    processes = vault_processes([str(kit)])
    working = {lock.read_text() for lock in (audit / RUNNING).glob("*")}
    jobs = [process for process in processes if str(process.pid) in working]
    return [process for process in processes if os.getsid(process.pid) == process.pid], jobs


def _tensors(tree: Any) -> list[torch.Tensor]:
    """The tensors of a saved state, in the order of their names."""
    if isinstance(tree, Mapping):
        return [tensor for _, branch in sorted(tree.items()) for tensor in _tensors(branch)]
    if isinstance(tree, list | tuple):
        return [tensor for branch in tree for tensor in _tensors(branch)]
    return [tree] if isinstance(tree, torch.Tensor) else []


def _once(audit: Path, job_id: str) -> list[Entry]:
    """The entries of the job, once the log has closed it or two minutes are over."""
    entries: list[Entry] = []
    for _ in range(120):
        entries = [entry for entry in read(audit) if entry.job == job_id] if audit.is_dir() else []
        if _closed(entries):
            break
        time.sleep(1)
    return entries


def _closed(entries: list[Entry]) -> bool:
    """Whether the log closes the job, or never opened it."""
    return not entries or any(entry.event is Event.CLOSE for entry in entries[-3:])


def run(
    mode: str, parties: Sequence[str], trials: int, rounds: int, rng: random.Random, over: Callable[[], bool]
) -> Iterator[Kill]:
    """Trials of one mode. A federation in which a site fell out of a sum is left: its sites refuse the next one."""
    left, absent = trials, Counter[str]()
    while left and not over():
        with ExitStack() as ending:
            folder = Path(ending.enter_context(tempfile.TemporaryDirectory())).resolve()
            killing = ending.enter_context(Killing(folder, mode, rounds))
            length, fresh = killing.undisturbed(), True
            while left and fresh and not over():
                site = rng.choice(phantom.organs(SITES))
                party = rng.choice(parties)
                moment = rng.uniform(0, length)
                trial = killing.trial(party, site, moment)
                if trial is None and killing.lasted < moment:
                    length = killing.lasted  # the first job was slower, as on a machine that was busier then
                    continue
                absent[party] = 0 if trial else absent[party] + 1
                if absent[party] == MOST_ABSENT:
                    raise FederationError(f"in {MOST_ABSENT} jobs one after the other there was no process '{party}'")
                if trial is None:
                    continue
                yield trial
                left -= 1
                fresh = trial.end == "results" and not (mode.startswith("shares") and trial.missed)


def table(records: list[Mapping[str, Any]]) -> Iterator[str]:
    """The lines of the table: kills, how the jobs ended, jobs that somebody missed, jobs with faults, and seconds."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for record in records:
        groups[record["mode"], record["party"]].append(record)
    yield "| job | killed | kills | results | plain end | other | rounds missed | faults | median s | longest s |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for (mode, party), of in sorted(groups.items()):
        ends = [record["end"] for record in of]
        others = len(ends) - ends.count("results") - ends.count("plain end")
        missed, faults = (sum(bool(record[name]) for record in of) for name in ("missed", "faults"))
        seconds = [record["seconds"] for record in of]
        figures = (len(of), ends.count("results"), ends.count("plain end"), others, missed, faults)
        cells = " | ".join(map(str, figures))
        yield f"| {mode} | {party} | {cells} | {median(seconds):.0f} | {max(seconds):.0f} |"


def total(records: list[Mapping[str, Any]]) -> str:
    """One line on all kills: how the jobs ended, and how the models compare."""
    ends, models = (Counter(str(record.get(name, "not compared")) for record in records) for name in ("end", "model"))
    faults = sum(bool(record["faults"]) for record in records)
    words = "; ".join(", ".join(f"{n} {what}" for what, n in counts.most_common()) for counts in (ends, models))
    return f"{len(records)} kills: {words}; faults in {faults}"


def main() -> None:
    """Run trials and print the table of all that the file holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the file of the records")
    parser.add_argument("--trials", type=int, default=100, help="trials in all modes together")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--parties", nargs="+", choices=PARTIES, default=list(PARTIES), help="of whom one is killed")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=24 * 60, help="no trial begins later")
    arguments = parser.parse_args()
    rng, end = random.Random(arguments.seed), time.monotonic() + 60 * arguments.minutes
    over = lambda: time.monotonic() > end  # noqa: E731
    share, more = divmod(arguments.trials, len(arguments.modes))
    for number, mode in enumerate(arguments.modes):
        for trial in run(mode, arguments.parties, share + (number < more), arguments.rounds, rng, over):
            print(json.dumps(asdict(trial)), flush=True)
            with arguments.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(trial)) + "\n")
    records = [json.loads(line) for line in arguments.out.read_text(encoding="utf-8").splitlines()]
    print("\n".join((*table(records), total(records))))


if __name__ == "__main__":
    main()
