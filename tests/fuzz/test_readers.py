"""Files that people and other sites write, mutated, through the readers that a site and an auditor use.

`MEDFEDVQA_FUZZ` sets how many inputs each reader gets (10,000 for a full run).
"""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from file_mutations import MARKER, altered, bounded, inputs, mutated, refused
from small_logs import chained_anew, key_of
from small_logs import made as made_log

from audits import AuditLog, Event, Outcome, SitePolicy, examine
from audits.entry_proof import check, prove
from audits.ui.index import Filter, Index
from medfedvqa.data.published_files import read_rows
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import SiteConfig, load_site_config, site_yaml
from medfedvqa.federation.site_runtime import SiteRuntime
from medfedvqa.ingest.questions import read_questions
from medfedvqa.report.collect import _attack, _read, _run, evidence_of
from privacy import DPSettings
from privacy.report import report_bytes, report_of, verify_report
from privacy.report.report_files import JSON, document_bytes

pytestmark = pytest.mark.sampled

SITE_YML = site_yaml(
    reader="phantom", organ="chest", root=f"/{MARKER}", methods=["prompt_pfl"], answers=["yes", "no", MARKER.lower()],
    max_epsilon=3.0, require_dp=True, peers={"head": MARKER}, backbones={MARKER: MARKER}, committee=[MARKER],
).encode()  # fmt: skip
LAUGHS = b"a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (level, level, b", ".join([b"*a%d" % (level - 1)] * 9)) for level in range(1, 9)
)
"""Aliases that come to 400 million values if somebody walks through them."""
QUESTIONS = [("image", "question", "answer", "organ", "split")] + [
    (f"{MARKER}/{number}.png", f"{MARKER} in row {number}?", "yes", "chest", "train") for number in range(5)
]
CSV = "".join(",".join(row) + "\r\n" for row in QUESTIONS).encode()
JSON_LINES = "".join(json.dumps(dict(zip(QUESTIONS[0], row, strict=True))) + "\n" for row in QUESTIONS[1:]).encode()
ROWS = [{"qid": number, "question": MARKER, "answer": MARKER, "image_name": "x.jpg"} for number in range(4)]


def test_mutated_settings_are_read_or_refused(tmp_path: Path) -> None:
    """`site.yml` and the policy in it, by bytes and by values: 10**400 and aliases without end are sentences, too."""
    path, told = tmp_path / "site.yml", yaml.safe_load(SITE_YML)
    path.write_bytes(SITE_YML)
    load_site_config(path, "chest")

    def made(random: Random) -> bytes:
        match random.randrange(4):
            case 0:
                return yaml.safe_dump(_plain(altered(random, told))).encode("utf-8", "surrogatepass")
            case 1:
                return LAUGHS + SITE_YML + f"\n{random.choice(('peers', 'answers', 'policy'))}: *a8\n".encode()
        return mutated(random, SITE_YML)

    with bounded():
        refusals = 0
        for number, content in inputs("site.yml", made):
            path.write_bytes(content)
            refusals += refused(number, lambda: load_site_config(path, "chest"))
    assert refusals
    for name in ("max_epsilon", "delta", "min_sites", "require_dp"):
        assert refused(0, lambda name=name: SitePolicy.from_mapping({**told["policy"], name: -(10**400)}))


def _plain(value: Any) -> Any:
    """Without what YAML cannot write."""
    return json.loads(json.dumps(value).replace("\\ud800", "\\ufffd").replace("\\u0000", " "))


@pytest.mark.parametrize(("name", "original"), [("q.csv", CSV), ("q.jsonl", JSON_LINES)], ids=["CSV", "JSON Lines"])
def test_mutated_questions_are_read_or_refused(tmp_path: Path, name: str, original: bytes) -> None:
    """Their errors name rows by their index; what is read can be written again."""
    path = tmp_path / name
    with bounded():
        refusals = 0
        for number, content in inputs(name, lambda random: mutated(random, original)):
            path.write_bytes(content)
            refusals += refused(number, lambda: [one.question.encode() for one in read_questions(path).rows])
    assert refusals


def test_mutated_rows_of_published_sets_are_read_or_refused(tmp_path: Path) -> None:
    """Whatever JSON is in them."""
    path = tmp_path / "rows.json"
    with bounded():
        for number, content in inputs("rows", lambda random: mutated(random, json.dumps(ROWS).encode())):
            path.write_bytes(content)
            refused(number, lambda: read_rows(path))


@pytest.fixture
def report(sites: Callable[..., Any], quick_job: Callable[..., Any]) -> Any:
    """A report of a private job with two rounds, as JSON."""
    config: SiteConfig = sites("chest", require_dp=True, max_epsilon=20)["chest"]
    job: JobSpec = quick_job(answers="closed").model_copy(update={"dp": DPSettings(noise=1.5, count_noise=10.0)})
    runtime = SiteRuntime(config, job, "study-1")
    runtime.handle("start", 1, {})
    runtime.close()
    return json.loads(report_bytes(report_of(evidence_of(config, None, None, None, None, (), False))))


def test_mutated_reports_are_judged_or_refused(tmp_path: Path, report: Any) -> None:
    """By bytes, and by values in a document that is otherwise written as one; none is shown in full."""
    original, path = document_bytes(report["rows"], report["evidence"]), tmp_path / JSON
    marked = json.loads(original)
    marked["evidence"]["site"] = MARKER

    def made(random: Random) -> bytes:
        if random.random() < 0.3:
            return mutated(random, original)
        document = altered(random, random.choice((report, marked)))
        try:
            return document_bytes(document["rows"], document["evidence"])
        except (ValueError, TypeError, LookupError, AttributeError):
            return json.dumps(document, indent=1, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"

    with bounded():
        for number, content in inputs("report", made):
            path.write_bytes(content)
            refused(number, lambda: [part.said.encode() for part in verify_report(tmp_path).parts])


def test_mutated_results_and_attacks_are_read_or_refused(tmp_path: Path) -> None:
    """What a report is given of a run."""
    told = {
        "schema_version": 1, "schema": 1, "backbone": {"name": MARKER}, "rounds": [1], "sites": {"chest": {}},
        "method": "prompt_pfl", "options": {"rounds": 2}, "data": "phantom", "split": {}, "seed": 0, "secagg": None,
        "dp": None, "status": "done", "engine": "local", "rounds_planned": 2, "versions": {}, "claimed": {},
        "job": {"method": "prompt_pfl", "options": {}, "data": "phantom", "backbone": "x", "dp": None},
        "confidence": 0.95, "attacks": [],
    }  # fmt: skip
    path = tmp_path / MARKER.replace(" ", "-")
    with bounded():
        for number, content in inputs("results", lambda random: json.dumps(altered(random, told)).encode()):
            path.write_bytes(content)
            for made in (_run, _attack):
                refused(number, lambda made=made: _read(path, made))


def test_mutated_proofs_are_shown_or_refused(tmp_path: Path) -> None:
    """A bundle that shows one entry holds as it was made, and no other."""
    bundle = prove(made_log(tmp_path) / "audit", 3)
    key = key_of(tmp_path).public
    check(json.dumps(bundle).encode(), [key])
    with bounded():
        for number, content in inputs("proof", lambda random: json.dumps(altered(random, bundle)).encode()):
            if json.loads(content) != bundle:
                refused(number, lambda content=content: check(content, [key]))


def test_entries_with_any_values_are_judged_and_shown(tmp_path: Path) -> None:
    """By whoever has the site's key, who can chain and hash anything: verdicts and pages never stop at it."""
    folder = tmp_path / "audit"
    log = AuditLog(folder, "chest")
    log.append(Event.OPEN, job=MARKER)
    counted = {"process": "job", "session": "a", "number": 0, "last": True, "gap": False, "sent": [], "refused": []}
    result = {"task": "t", "round": 1, "messages": 1, "tensors": 1, "nbytes": 1, "beside": 0, "encoded": 9}
    log.append(Event.RELEASE, job=MARKER, outcome=Outcome.SENT, round=1, dp_event={"delta": 1e-5}, epsilon_after=1.0)
    log.append(Event.WIRE, job=MARKER, wire={**counted, "results": [result], "mailed": 0})
    log.append(Event.REFUSAL, outcome=Outcome.REFUSED, admission={"code": "peers"})
    log.append(Event.CLOSE, job=MARKER)
    log.close()
    lines = (folder / "log.jsonl").read_bytes().splitlines()

    def made(random: Random) -> bytes:
        records = altered(random, [json.loads(line) for line in lines])
        if not isinstance(records, list) or not all(isinstance(one, dict) for one in records):
            return json.dumps(records).encode()
        try:
            return b"".join(chained_anew([json.dumps(one).encode() for one in records]))
        except (ValueError, TypeError):  # a value that no line can hold
            return b"".join(lines)

    def shown() -> None:
        examine(folder, "chest").record()
        index = Index({"chest": folder})
        try:
            index.refresh()
            index.sites(), index.jobs(None, 9), index.tensors(Filter(), 0, 9), index.spent(Filter(), 9)
            [entry.record() for _, entry in index.entries(Filter(), 0, 9)]
        finally:
            index.close()

    with bounded():
        for number, content in inputs("entries", made):
            (folder / "log.jsonl").write_bytes(content)
            refused(number, shown)
