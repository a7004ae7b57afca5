"""Writes one golden file of each format into a new folder, in the formats that this version writes.

`PYTHONPATH=. python tests/golden/make.py tests/golden/formats-N`, once for each set of format numbers. What is
committed is never written again: later versions read it.
"""

import json
import shutil
import sys
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audits import AuditKey, AuditLog, Event, Kind, Outcome, Protection, Sharing, TensorRecord, origin_of
from audits.byte_ledger import FrameCount, ResultCount, Traffic, WireWindow
from audits.checkpoint import CHECKPOINTS, SUCCESSIONS, NoteFile, signed_succession
from audits.entry_proof import prove
from audits.verifier import Basis, Expiry
from audits.witness import KEYS
from medfedvqa.backup.back_up import BackupSecret, back_up
from medfedvqa.evaluation import History, RoundRecord, RunFacts, Score, write_results
from medfedvqa.federation.site_config import load_site_config, site_yaml
from medfedvqa.federation.site_state import Contribution, Dealt, Draw, Saved, StateFile
from privacy.ledger import Ledger, Limits
from privacy.ledger_replay import PlannedTask
from privacy.mechanisms import Use
from privacy.mechanisms.laplace import Laplace
from privacy.mechanisms.sampled_gaussian import SampledGaussian

IDENTITY = "AGE-SECRET-KEY-134FCZGVRQALU3NLYVNMMNMYQH0H4J6ECZPRHVUU5ZR9WJTZJCRUQ09KRVC"
SITES = ("abdomen", "chest", "head")
KEY = AuditKey(origin_of("chest"), Ed25519PrivateKey.from_private_bytes(b"chest, of golden files, 32 bytes"))
OTHER = AuditKey(origin_of("head"), Ed25519PrivateKey.from_private_bytes(b"head, of golden files, 32 bytes!"))
JOB = {"job": "job-1", "method": "prompt_pfl", "actor": "ab" * 32, "policy": "bb" * 32, "exchange": "cc" * 32}
JOB |= {"code_version": "0.1.2", "code_digest": "dd" * 32, "model_digest": "ee" * 32}
PROMPT = TensorRecord("prompt.text", (4, 4, 256), "float32", 16384, "12" * 32, Kind.PARAMETERS, Protection.DP)
SHARED = TensorRecord("prompt.text", (4, 4, 256), "float32", 16384, None, Kind.PARAMETERS, Protection.MASKED)
REFUSED = TensorRecord("activations", (8, 512), "float32", 0, None, Kind.ACTIVATIONS, Protection.NONE)
COMPUTED = "computed by all of them: all 3 of them together could open every input"


def log(folder: Path) -> None:
    """An entry of each event, signed twice, the second time cosigned; and a proof of one entry."""
    event = {"mechanism": "gaussian", "unit": "patient", "delta": 1e-05, "ledger": {"seq": 4, "head": "0f" * 32}}
    charge = {"dp_event": event, "epsilon_before": 0.0, "epsilon_after": 1.5e-07}
    about = {**JOB, "round": 1, "task": "train", "peer": "server"}
    sharing = Sharing("c83a069887a8f061", "mix", SITES, "server", COMPUTED, private=True)
    shared = {"reason": str(sharing), "sharing": sharing.record(), "peer": "sites", "task": "mix"}
    sent = FrameCount(Traffic.RESULT, "job-1", True, 2, 40000, 39000, 39000, 33000)
    window = WireWindow(
        "job", "a1" * 8, 0, True, sent=(sent,), results=(ResultCount("train", 1, 1, 2, 16388, 0, 17000),)
    )
    expiry = Expiry(1, 2192, Basis.DATE, "2032-11-23")
    with closing(AuditLog(folder, "chest", KEY)) as written:
        written.append(Event.OPEN, **JOB)
        written.append(
            Event.RECEIVE, **about, direction="in", tensors=(PROMPT,), nbytes=16384, outcome=Outcome.ACCEPTED
        )
        out = {"direction": "out", "nbytes": 16384}
        written.append(Event.RELEASE, **about, **out, tensors=(PROMPT,), outcome=Outcome.SENT, **charge)
        written.append(Event.RELEASE, **about | shared, **out, tensors=(SHARED,), outcome=Outcome.SENT, **charge)
        written.checkpoint()
        refused = {"outcome": Outcome.REFUSED, "reason": 'the kind "activations"\nis not allowed, \u00fc \\ \U0001f4a5'}
        written.append(Event.RELEASE, **about, direction="out", tensors=(REFUSED,), **refused)
        written.append(Event.REFUSAL, **JOB, **refused, admission={"code": "budget"})
        written.append(Event.ADMITTED, **JOB, admission={"definition": "aa" * 32, "nonce": "bb" * 16})
        written.append(Event.FINDING, reason="another party holds a checkpoint of other entries")
        written.append(Event.WIRE, job="job-1", wire=window.record())
        written.append(Event.CLOSE, **JOB)
        with open(folder / "log.jsonl", "ab") as file:
            file.write(b'{"actor":')
        written.append(Event.EXPIRED, reason=str(expiry), expiry=expiry.record())
        note = written.checkpoint()
    NoteFile(folder / CHECKPOINTS).append([note.joined(OTHER.cosign(note, 1_800_000_000))])
    (folder / KEYS).write_text(f"{KEY.public}\n{OTHER.public}\n")
    (folder / "proof.json").write_text(json.dumps(prove(folder, 2), indent=1) + "\n")


def ledger(folder: Path) -> None:
    """A record of each event, and the charges of the export taken over by a second ledger of the same key."""
    events = (SampledGaussian(0.25, 2.075, 8, Use.GRADIENTS), Laplace(10.0, 1, Use.COUNTS))
    limits, plan = Limits(8.0, 1e-3), [PlannedTask("start", 1, events), PlannedTask("train", 2, events)]
    with closing(Ledger(folder / "made", "chest", "5f" * 16)) as written:
        written.bind()
        for job in ("job-1", "job-2"):
            written.reserve(job, "prompt_pfl", ["one", "two", "three"], plan, limits)
            written.begin(job, "start", 1, limits)
            written.settle(job, "start", 1)
        written.free("job-1")
        written.take_back("job-2")
        written.export(folder / "ledger.jsonl")
        (folder / "second").mkdir(0o700)
        shutil.copy(folder / "made" / "cohort.key", folder / "second")
        with closing(Ledger(folder / "second", "chest", None)) as second:
            second.reserve("job-3", "prompt_pfl", ["three", "four"], plan[:1], limits)
            second.import_(folder / "ledger.jsonl")
            second.export(folder / "imported.jsonl")
    for name in ("made", "second"):
        shutil.rmtree(folder / name)


def state(folder: Path) -> None:
    """Everything that a site may keep of a job."""
    contribution = Contribution("attempt", SITES, SITES, {"chest": b"share"}, b"group", {"head": b"open"}, SITES)
    reply = {"prompt": np.arange(6, dtype="float32").reshape(2, 3)}
    draw, dealt = (
        Draw(b"nonce", {"chest": b"commitment"}, b"beacon"),
        Dealt(seed=b"seed", coin=b"coin", attempt=b"[]", round=2, number=1),
    )
    shared = {"attempt": "attempt", "mixture": {"prompt": np.ones(3, "float32")}, "mixed": 2, "number": 1}
    kept = {"contributions": (contribution,), "group": SITES, "draw": draw, "dealt": dealt}
    StateFile(folder, "state").save(Saved("train", 2, {"step": 3, "name": "chest"}, reply, **shared, **kept))


def results(folder: Path) -> None:
    """Of a finished run."""
    split = {"kind": "official", "seed": 7}
    facts = RunFacts("prompt_pfl", {"rounds": 1}, "vqa-rad", split, "medclip2-slake", ["slake"], 1, "local", SITES, 1)
    sums = {"bytes_up": dict.fromkeys(SITES, 1004), "bytes_down": dict.fromkeys(SITES, 1000)}
    record = RoundRecord(1, 2.0, dict.fromkeys(SITES, 0.5), **sums, accuracy={"chest": 0.25}, reliability={})
    write_results(folder, facts, History(SITES, [record]), dict.fromkeys(SITES, Score(100, 70, 400, 58, 60)))


def succession(folder: Path) -> None:
    """Of the log's key, by the other key under its name."""
    folder.joinpath(SUCCESSIONS).write_text(f"{signed_succession(KEY, OTHER.named(KEY.public.name), 7)}\n")


def backup(folder: Path) -> None:
    """Of a site with a closed job and a charge in its ledger, under an identity that is no secret."""
    with TemporaryDirectory() as scratch:
        site = Path(scratch) / "chest" / "site.yml"
        site.parent.mkdir()
        site.write_text(site_yaml(reader="phantom", organ="chest", methods=["prompt_pfl"]))
        with closing(AuditLog(site.parent / "audit", "chest", KEY)) as entries:
            for event in (Event.OPEN, Event.CLOSE):
                entries.append(event, **JOB)
        (site.parent / "audit.key").write_bytes(b"chest, of golden files, 32 bytes")
        (site.parent / "audit.key").chmod(0o600)
        with closing(Ledger(site.parent / "ledger", "chest")) as written:
            limits = Limits(None, 1e-5)
            plan = [PlannedTask("train", 1, (SampledGaussian(0.5, 4.0, 10),))]
            written.reserve("job-1", "prompt_pfl", ["a"], plan, limits)
            written.begin("job-1", "train", 1, limits)
        config = load_site_config(site, "chest")
        path, _ = back_up(config, site, Path(scratch) / "out", BackupSecret("key", IDENTITY))
        shutil.copy(path, folder / "backup")


def main() -> None:
    folder = Path(sys.argv[1])
    (folder / "log").mkdir(parents=True)
    log(folder / "log")
    for make in (ledger, state, results, succession, backup):
        make(folder)


if __name__ == "__main__":
    main()
