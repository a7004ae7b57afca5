"""The guide for hospital IT, run as it is written: three hospitals on the loopback interface, and one that joins later.

`MEDFEDVQA_TRANSCRIPT=docs/hospital-it-transcript.md` writes what it printed there.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import guide
import psutil
import pytest
from free_ports import free_port

from audits import Outcome, read, verify
from medfedvqa.federation.flare.reaper import Reaper, flare_processes
from medfedvqa.version import VERSION
from privacy import Ledger

pytestmark = [pytest.mark.release, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "hospital-it.md").read_text(encoding="utf-8")
INTRODUCTION = f"""\
# Transcript of the guide for hospital IT

What the blocks of [the guide](hospital-it.md) printed on one machine, as its test ran them with version {VERSION}.
Folders are shortened; the rest is as it came.

"""


@dataclass(frozen=True)
class Ran:
    """The folder of a run, and what each block printed."""

    folder: Path
    printed: list[str]

    def kit(self, name: str) -> Path:
        """A site's startup kit."""
        workspace = "pelvis-site" if name == "pelvis" else "workspace"
        return self.folder / workspace / "medfedvqa" / "prod_00" / name

    def output(self, heading: str) -> str:
        """What the blocks of a section printed."""
        pairs = zip(guide.blocks(PAGE), self.printed, strict=True)
        return "".join(output for block, output in pairs if heading in block.heading)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """The whole guide, once. All that it started ends, whatever happens."""
    folder = tmp_path_factory.mktemp("guide") / "it"
    folder.mkdir()
    port = str(free_port())
    environment = guide.environment(folder.parent / "home", MEDFEDVQA=str(ROOT), PORT=port)
    with Reaper(folder):
        printed = guide.run(PAGE, folder, environment, seconds=1700)
        yield Ran(folder, printed)


def test_the_guide_runs_as_it_is_written_and_leaves_no_process(ran: Ran) -> None:
    """Every command of it succeeds, and the last one stops everything."""
    assert len(ran.printed) == len(guide.blocks(PAGE))
    _, alive = psutil.wait_procs(flare_processes([str(ran.folder)]), timeout=30)
    assert not alive
    if place := os.environ.get("MEDFEDVQA_TRANSCRIPT"):
        hidden = {str(ran.folder): "/srv", str(ROOT): "/opt/medfedvqa", str(ran.folder.parent / "home"): "/home/it"}
        Path(place).write_text(INTRODUCTION + guide.transcript(PAGE, ran.printed, hidden), encoding="utf-8")


def test_the_first_job_trains_at_all_three_and_the_second_is_aborted(ran: Ran) -> None:
    """By FLARE's own list of jobs."""
    assert "FINISHED:COMPLETED" in ran.output("The first job")
    assert "FINISHED:ABORTED" in ran.output("The first job")


def test_every_site_answers_for_budget_and_head(ran: Ran) -> None:
    """The newcomer, too; chest's figure is its ledger's, and the head is in its log."""
    (path,) = ran.folder.glob("results/*/workspace/medfedvqa/status.json")
    answers = json.loads(path.read_text())["sites"]
    assert set(answers) == {"abdomen", "chest", "head", "pelvis"}
    assert not any("refused" in answer for answer in answers.values())
    ledger = Ledger(ran.kit("chest") / "ledger", "chest")
    (account,) = ledger.accounts(1e-5)
    ledger.close()
    assert answers["chest"]["spent"] == account.spent.epsilon > 0 == answers["pelvis"]["spent"]
    heads = {entry.leaf_hash for entry in read(ran.kit("chest") / "audit")}
    assert answers["chest"]["head"] in heads and answers["chest"]["limit"] == 8.0


def test_logs_are_whole_and_the_site_under_a_budget_let_out_private_or_public_tensors_only(ran: Ran) -> None:
    """Of all four sites; chest demanded it."""
    for site in ("abdomen", "chest", "head", "pelvis"):
        assert verify(ran.kit(site) / "audit").ok
    sent = [entry for entry in read(ran.kit("chest") / "audit") if entry.outcome == Outcome.SENT]
    tensors = [tensor for entry in sent for tensor in entry.tensors]
    assert tensors and all(tensor.protection.private or tensor.kind == "public" for tensor in tensors)


def test_what_pelvis_sent_to_be_signed_holds_no_key(ran: Ran) -> None:
    """Nor does any file that the coordinator keeps, but for the root's own key."""
    key = (ran.folder / "pelvis" / "pelvis.key").read_bytes()
    assert key == (ran.kit("pelvis") / "startup" / "client.key").read_bytes()
    assert ".key" not in ran.output("A hospital joins").split("Archive:")[1].split("files")[0]
    assert not [path for path in (ran.folder / "ca").iterdir() if key in path.read_bytes()]


def test_a_lost_ledger_is_refused_beside_its_log(ran: Ran) -> None:
    """And the sentence says what to do."""
    assert "lacks a charge that the audit log recorded: restore the newest copy" in ran.output("Restore").replace(
        "\n", " "
    )


def test_the_committed_transcript_is_of_this_guide() -> None:
    """Block by block; if this fails, write it anew as this file's head says."""
    told = (ROOT / "docs" / "hospital-it-transcript.md").read_text(encoding="utf-8")
    assert [block.text for block in guide.blocks(told)] == [block.text for block in guide.blocks(PAGE)]
