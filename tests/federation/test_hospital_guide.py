"""The guide for hospital IT, run as it is written: three hospitals on the loopback interface, and one that joins later.

`MEDFEDVQA_TRANSCRIPT=docs/measured/hospital-it-transcript.txt` writes what it printed there.
"""

import json
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import guide
import psutil
import pytest

from audits import AuditKey, Event, Outcome, VerdictState, examine, origin_of, read, verify
from audits.checkpoint import SUCCESSIONS, read_successions
from medfedvqa.federation.flare.loopback import free_port
from medfedvqa.federation.flare.reaper import Reaper, flare_processes
from medfedvqa.version import VERSION
from privacy import Ledger

pytestmark = [pytest.mark.release, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "hospital-it.md").read_text(encoding="utf-8")
INTRODUCTION = f"""\
Transcript of the guide for hospital IT

What the blocks of docs/hospital-it.md printed on one machine, as its test ran them with version {VERSION}.
Folders are shortened; the rest is as it came.

"""


@dataclass(frozen=True)
class Ran:
    """The folder of a run, and what each block printed."""

    folder: Path
    printed: list[str]

    def kit(self, name: str) -> Path:
        """A site's startup kit; of chest the one that it has at the end, on another machine."""
        if name == "chest":
            return self.folder / "elsewhere" / name
        workspace = "pelvis-site" if name == "pelvis" else "workspace"
        return self.folder / workspace / "medfedvqa" / "prod_00" / name

    @property
    def lost_kit(self) -> Path:
        """The kit of chest on the machine that is gone."""
        return self.folder / "workspace" / "medfedvqa" / "prod_00" / "chest"

    def results(self) -> list[Path]:
        """The results of each job that asked the sites for budget and head, in order."""
        paths = self.folder.glob("results/*/workspace/medfedvqa/status.json")
        return [path.parent for path in sorted(paths, key=lambda path: path.stat().st_mtime)]

    def statuses(self) -> list[dict[str, Any]]:
        """What the sites answered in these jobs."""
        return [json.loads((folder / "status.json").read_text())["sites"] for folder in self.results()]

    def output(self, heading: str) -> str:
        """What the blocks of a section printed."""
        pairs = zip(guide.blocks(PAGE), self.printed, strict=True)
        return "".join(output for block, output in pairs if heading in block.heading)


def spent(kit: Path) -> float:
    """Epsilon that the ledger of a kit has charged."""
    with closing(Ledger(kit / "ledger", kit.name)) as ledger:
        (account,) = ledger.accounts(1e-5)
    return account.spent.epsilon


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """The whole guide, once. All that it started ends, whatever happens."""
    folder = tmp_path_factory.mktemp("guide") / "it"
    folder.mkdir()
    port = str(free_port())
    environment = guide.environment(folder.parent / "home", MEDFEDVQA=str(ROOT), PORT=port)
    with Reaper(folder):
        printed = guide.run(PAGE, folder, environment, seconds=3500)
        yield Ran(folder, printed)


def test_the_guide_runs_as_it_is_written_and_leaves_no_process(ran: Ran) -> None:
    """Every command of it succeeds, and the last one stops everything."""
    assert len(ran.printed) == len(guide.blocks(PAGE))
    _, alive = psutil.wait_procs(flare_processes([str(ran.folder)]), timeout=30)
    assert not alive
    if place := os.environ.get("MEDFEDVQA_TRANSCRIPT"):
        hidden = {str(ran.folder): "/srv", str(ROOT): "/opt/medfedvqa", str(ran.folder.parent / "home"): "/home/it"}
        Path(place).write_text(INTRODUCTION + guide.transcript(PAGE, ran.printed, hidden), encoding="utf-8")


def test_the_shipped_private_job_trains_at_all_three_and_its_report_is_shown(ran: Ran) -> None:
    """Private by patient, and on shares of three sites: by the log and the report of chest."""
    printed = ran.output("The first job")
    assert "Verdict on 1 log: shown" in printed and "\nVerdict: shown\n" in printed
    assert "is differentially private by patient with epsilon 3.000 at delta 1e-05" in printed
    assert "on shares: shown, 3 sites" in printed and "nothing unprotected: shown" in printed


def test_the_first_job_ends_and_the_second_is_aborted(ran: Ran) -> None:
    """By FLARE's own list of jobs."""
    assert "FINISHED:COMPLETED" in ran.output("The first job")
    assert "FINISHED:ABORTED" in ran.output("The first job")


def test_every_site_answers_for_budget_and_head(ran: Ran) -> None:
    """The newcomer, too; chest's figure is its ledger's."""
    first, *later = ran.statuses()
    assert set(first) == {"abdomen", "chest", "head", "pelvis"} and len(later) == 2
    assert not any("refused" in answer for answers in (first, *later) for answer in answers.values())
    assert first["chest"]["spent"] == spent(ran.kit("chest")) > 0 == first["pelvis"]["spent"]
    assert first["chest"]["limit"] == 8.0


def test_the_restored_site_has_the_same_log_and_the_same_budget(ran: Ran) -> None:
    """Every head that chest ever reported is in the log that it has at the end, and nothing spent came back."""
    lost = ran.lost_kit
    heads = [entry.leaf_hash for entry in read(ran.kit("chest") / "audit")]
    answers = [answers["chest"] for answers in ran.statuses()]
    places = [heads.index(answer["head"]) for answer in answers]
    assert places == sorted(set(places))
    assert {answer["spent"] for answer in answers} == {spent(lost)} == {spent(ran.kit("chest"))}
    assert verify(lost / "audit").entries < verify(ran.kit("chest") / "audit").entries


def test_a_backup_of_which_others_hold_a_later_state_is_refused(ran: Ran) -> None:
    """The one from before the last job."""
    assert "others hold more of this log than the backup" in ran.output("Restore").replace("\n", " ")


def test_the_new_key_of_the_log_succeeds_the_old_one(ran: Ran) -> None:
    """Both signed it; the others follow, and know the log by no other key. The key of secure aggregation is another,
    too."""
    audit = ran.kit("chest") / "audit"
    (succession,) = read_successions(audit / SUCCESSIONS)
    (rotated,) = [entry for entry in read(audit) if entry.event is Event.ROTATED]
    assert succession.size == rotated.seq
    assert succession.new == AuditKey.at(ran.kit("chest") / "audit.key", origin_of("chest")).public != succession.old
    judged = examine(audit, "chest", [ran.kit("abdomen") / "audit", ran.results()[-1]])
    assert judged.integrity.state is judged.consistency.state is VerdictState.SHOWN
    assert "new fingerprint: " in ran.output("Back up")


def test_a_site_starts_after_a_power_cut_though_its_process_numbers_belong_to_others(ran: Ran) -> None:
    """FLARE's own script would take the other program for the site, and not start it."""
    output = ran.output("After a power cut")
    assert "Successfully registered client:chest" in output and "checks passed" in output


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
    told = (ROOT / "docs" / "measured" / "hospital-it-transcript.txt").read_text(encoding="utf-8")
    assert [block.text for block in guide.blocks(told)] == [block.text for block in guide.blocks(PAGE)]
