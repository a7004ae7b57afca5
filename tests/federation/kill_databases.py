"""Kills processes that use a site's databases, and checks what each left; prints how often each was acknowledged.

`kill_databases.py write SITE KILLS` kills processes that write to every table, at random statements and moments.
`kill_databases.py migrate SITE` kills the migration of copies of a site of version 0.2.0 before each of its steps.
"""

import json
import os
import random
import shutil
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path

import privacy.ledger
import privacy.ledger_accounts
import privacy.ledger_replay
from audits import AuditKey, AuditLog, Event, Refusal, origin_of, read, verify
from medfedvqa.federation import approvals
from medfedvqa.federation.approvals import decide, decisions, waiting_jobs
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.job_budget import check_ledger
from medfedvqa.federation.job_closing import RefusalEntries
from medfedvqa.federation.site_config import SiteConfig, load_site_config
from medfedvqa.federation.site_database import site_database
from medfedvqa.ingest.cohort_register import Register, _extend, read_register
from privacy.accounting import PrivacyCost
from privacy.ledger import ChargeState, Ledger, Limits, PlannedTask
from privacy.ledger_journal import Head, LedgerJournal
from privacy.mechanisms.sampled_gaussian import SampledGaussian

LIMITS = Limits(1e9, 1e-3)
PLAN = [PlannedTask("train", 1, (SampledGaussian(0.1, 1.0, 1),))]
KEY = "ab" * 16


def spent(events: list, delta: float) -> PrivacyCost:
    """A step costs epsilon 1, so that a process spends its time on the ledger."""
    total = float(sum(event.steps for event in events))
    return PrivacyCost(epsilon=total, rdp=total, prv=total, mu=total, delta=delta)


privacy.ledger_accounts.spent = privacy.ledger_replay.spent = privacy.ledger.spent = spent  # type: ignore[assignment]
approvals.MOST_WAITING = 1_000_000


def log_of(config: SiteConfig) -> AuditLog:
    return AuditLog(config.audit, "chest", AuditKey.at(config.audit_key, origin_of("chest")))


def write(config: SiteConfig, key: Path, wire: int) -> None:
    """Writes to each table in turn, and says what is acknowledged."""

    def say(kind: str, *words: object) -> None:
        os.write(wire, (json.dumps([kind, *words]) + "\n").encode())

    with closing(log_of(config)) as log, closing(Ledger(config.ledger, "chest")) as ledger:
        for number in range(1_000_000):
            job = f"{os.getpid()}-{number}"
            nonce = f"{random.Random(job).getrandbits(128):032x}"
            log.append(Event.ADMITTED, job=job, admission={"definition": "0" * 64, "nonce": nonce, "runs": 1})
            say("nonce", nonce)
            ledger.reserve(job, "m", ["p"], PLAN, LIMITS)
            charge = ledger.begin(job, "train", 1, LIMITS)
            say("charge", charge.seq, charge.head)
            log.append(Event.RELEASE, job=job, dp_event={"ledger": {"seq": charge.seq, "head": charge.head}})
            ledger.settle(job, "train", 1)
            say("settled", job)
            _extend(config.ledger, Register(key=KEY, files=[nonce], patients=[nonce]))
            say("mark", nonce)
            approvals.keep_waiting(config, JobSpec(method="fedavg", options={"rounds": number + 1}), nonce * 2)
            [waiting] = [each for each in waiting_jobs(config) if each.submitter == nonce * 2]
            say("waiting", nonce * 2)
            say("decision", decide(config, waiting, "no", "ada", key, timedelta(days=7)).permit)
            RefusalEntries(log, config.state).enter(Refusal.FOLDER, job, None)
            say("refusal", job)


def check(config: SiteConfig, said: dict[str, list[list]], kills: int) -> None:
    """Whatever any process acknowledged is there, and nothing is there by half; each kill may have hit one charge."""
    with closing(Ledger(config.ledger, "chest")) as ledger:
        ledger.verify()
        assert all(ledger.contains(*charge) for charge in said["charge"])
        jobs = {job.job: job.state for account in ledger.accounts(1e-3) for job in account.jobs}
        assert all(jobs[job] is ChargeState.CHARGED for (job,) in said["settled"])
        epsilon = sum(account.spent.epsilon for account in ledger.accounts(1e-3))
        assert len(said["charge"]) <= epsilon <= len(said["charge"]) + kills
        if (config.audit / "log.jsonl").exists():
            check_ledger(ledger, config.audit)
    register = read_register(config.ledger)
    assert register is None or register.files == register.patients
    assert {mark for (mark,) in said["mark"]} <= set(register.files if register else ())
    assert {permit for (permit,) in said["decision"]} <= {decision.permit for decision in decisions(config)}
    assert {actor for (actor,) in said["waiting"]} <= {waiting.submitter for waiting in waiting_jobs(config)}
    if (config.audit / "log.jsonl").exists():
        assert verify(config.audit).first_bad is None
        entries = list(read(config.audit))
        nonces = {entry.admission["nonce"] for entry in entries if entry.event is Event.ADMITTED and entry.admission}
        assert {nonce for (nonce,) in said["nonce"]} <= nonces
        refused = sum(entry.event is Event.REFUSAL for entry in entries)
        with site_database(config.state) as database, database.reading() as connection:
            counted = sum(count for (count,) in connection.execute("SELECT count FROM refusals"))
        assert len(said["refusal"]) <= refused <= counted


def kill_before(step: int) -> None:
    """Kills this process by SIGKILL before its SQL statement or removal of a file of that number."""
    connect, left = sqlite3.connect, [step]

    def count(*_: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(*arguments: object, **options: object) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)  # type: ignore[call-overload]
        connection.set_trace_callback(count)
        return connection

    sqlite3.connect = counted  # type: ignore[assignment]
    sys.addaudithook(lambda event, _: count() if event == "os.remove" else None)


def fork(work: Callable[[], object]) -> int:
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException as error:
            print(f"failed {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return child


def killed(child: int) -> bool:
    """Waits for a process; whether it was killed."""
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or status == 0
    return os.WIFSIGNALED(status)


def write_and_kill(site: Path, kills: int) -> None:
    config, key, chance = load_site_config(site / "site.yml", "chest"), site.parent / "ada.key", random.Random(11)
    kinds = ("nonce", "charge", "settled", "mark", "waiting", "decision", "refusal")
    said: dict[str, list[list]] = {kind: [] for kind in kinds}
    for number in range(kills):
        path = site.parent / f"wire-{number}"
        wire = os.open(path, os.O_WRONLY | os.O_CREAT)

        def work(number: int = number, wire: int = wire, step: int = chance.randrange(300)) -> None:
            if number % 2:
                kill_before(step)
            write(config, key, wire)

        child = fork(work)
        if number % 2 == 0:
            while not path.stat().st_size:
                time.sleep(0.001)
            time.sleep(chance.uniform(0, 0.2))
            os.kill(child, signal.SIGKILL)
        assert killed(child)
        os.close(wire)
        for line in path.read_text().splitlines():
            kind, *words = json.loads(line)
            said[kind].append(words)
        check(config, said, number + 1)
    print(json.dumps({kind: len(words) for kind, words in said.items()}))


def open_all(site: Path) -> None:
    """What a site of the present version does first with each of its stores."""
    config = load_site_config(site / "site.yml", "chest")
    decisions(config)
    with closing(log_of(config)) as log:
        RefusalEntries(log, config.state).enter(Refusal.FOLDER, None, None)
    _extend(config.ledger, Register(key=KEY, files=["c" * 32], patients=[]))


def contents(site: Path) -> dict[str, object]:
    config = load_site_config(site / "site.yml", "chest")
    with closing(LedgerJournal(config.ledger / "ledger.sqlite")) as journal:
        rows = [row.hash for row in journal.rows(Head())]
    register = read_register(config.ledger)
    assert register is not None
    marks = sorted({*register.files, "c" * 32}), register.patients
    return {"rows": rows, "marks": marks, "no": decisions(config), "waiting": waiting_jobs(config)}


def migrate_and_kill(site: Path) -> None:
    whole, step = Path(shutil.copytree(site, site.parent / "whole" / "chest")), 0
    open_all(whole)
    expected, counts = contents(whole), Counter[str]()
    while True:
        copy = Path(shutil.copytree(site, site.parent / str(step) / "chest"))
        was_killed = killed(fork(partial(_step, step, copy)))
        assert contents(copy) == expected, step
        open_all(copy)
        assert contents(copy) == expected, step
        entries = [entry.admission or {} for entry in read(copy / "audit") if entry.event is Event.REFUSAL]
        assert {"throttled"} <= {entry["code"] for entry in entries}
        if not was_killed:
            break
        step += 1
        counts["steps"] += 1
    print(json.dumps(counts))


def _step(step: int, copy: Path) -> None:
    kill_before(step)
    open_all(copy)


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write_and_kill(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        migrate_and_kill(Path(sys.argv[2]))
