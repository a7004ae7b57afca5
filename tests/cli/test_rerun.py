"""`medfedvqa audit rerun`: a run again from its own record, and what it says of every digest."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tiny_clip import TINY, write_random

from audits.entry import leaf_hash
from audits.exchange import canonical
from medfedvqa.federation import rerun
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import Engine, plan, run

Command = Callable[..., Any]
SITES = ("site-004", "site-002", "site-001", "site-003")
OPTIONS = {"rounds": 2, "local_epochs": 1, "local_unit": "batches", "batch_rows": 16, "blocks": 1, "hidden": 8}
JOB = {"method": "fedavg", "options": OPTIONS, "data": "phantom", "backbone": TINY}


def ran(
    out: Path,
    file: Path,
    root: Path | None = None,
    sites: tuple[str, ...] = SITES,
    engine: Engine = "local",
    **job: Any,
) -> Path:
    """The folder of a run that is over. Keywords change the job."""
    spec = JobSpec.from_dict({**JOB, **job})
    run(plan(spec, root, out, sites, 1, {spec.backbone: file}), engine, lambda event: None)
    return out


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Path:
    """A run of four sites in process."""
    return ran(tmp_path_factory.mktemp("finished") / "run", tiny_backbone)


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A copy of the run, which a test may change."""
    return Path(shutil.copytree(finished, tmp_path / "copy"))


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails the test once a rerun is planned."""

    def never(*arguments: Any, **others: Any) -> None:
        raise AssertionError("the run should have been refused")

    monkeypatch.setattr(rerun, "plan", never)


def files(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change one JSON file."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def doctor(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change entries of a log, and hash all that follow anew: each line fits its own hash and the one before."""
    lines, before = [], "0" * 64
    for line in (folder / "log.jsonl").read_text().splitlines():
        record = json.loads(line)
        change(record)
        record["prev_hash"] = before
        before = record["leaf_hash"] = leaf_hash(record)
        lines.append(canonical(record) + b"\n")
    (folder / "log.jsonl").write_bytes(b"".join(lines))


def test_a_run_gives_the_same_digests_again(medfedvqa: Command, finished: Path) -> None:
    """Exit code 0, the number of digests of each site, and nothing has changed: neither data, backbone and code nor a
    file of the run."""
    before = files(finished)
    done = medfedvqa("audit", "rerun", str(finished))
    logged = [json.loads(line) for line in (finished / "sites/site-001/audit/log.jsonl").read_text().splitlines()]
    each = sum(len(entry["tensors"]) for entry in logged)
    assert (done.returncode, done.stderr.count("Error")) == (0, 0)
    counts = ", ".join(f"{site} {each}" for site in SITES)
    assert done.stdout == f"equal: all {4 * each} digests of tensors in 4 logs\n  equal digests by site: {counts}\n"
    assert files(finished) == before


def test_a_doctored_digest_is_the_first_that_differs(medfedvqa: Command, copied: Path) -> None:
    """Of what a site sent in round 2; another site's, later in that round, is not named. The logs' chains hold."""

    def change(record: dict[str, Any]) -> None:
        if (record["task"], record["round"], record["direction"]) == ("train", 2, "out"):
            (tensor,) = (each for each in record["tensors"] if each["name"] == "head.answers.bias")
            tensor["sha256"] = "ab" * 32

    def change_later(record: dict[str, Any]) -> None:
        if (record["task"], record["direction"]) == ("evaluate", "out"):
            record["tensors"][0]["sha256"] = "cd" * 32

    doctor(copied / "sites/site-003/audit", change)
    doctor(copied / "sites/site-001/audit", change_later)
    done = medfedvqa("audit", "rerun", str(copied), "--quiet")
    assert done.returncode == 1 and done.stdout.startswith("DIFFERENT: 2 of ")
    place = "site site-003, round 2, task train, tensor head.answers.bias, direction out"
    assert f"first tensor that differs: {place}\n" in done.stdout


@pytest.mark.slow
def test_an_entry_that_a_log_lacks_differs(medfedvqa: Command, copied: Path) -> None:
    """What a site received in round 2 is not in its log, though the run's other logs have it."""

    def change(record: dict[str, Any]) -> None:
        if (record["task"], record["direction"]) == ("train", "in"):
            record["tensors"] = []

    doctor(copied / "sites/site-002/audit", change)
    done = medfedvqa("audit", "rerun", str(copied), "--quiet")
    assert done.returncode == 1 and "site site-002, round 2, task train, tensor " in done.stdout
    assert "only the log of the rerun has this tensor" in done.stdout


@pytest.mark.parametrize(
    ("name", "value"),
    [("options", {**OPTIONS, "learning_rate": 0.002}), pytest.param("seed", 1, marks=pytest.mark.slow)],
)
def test_another_job_differs_from_its_first_tensor_on(
    medfedvqa: Command, copied: Path, name: str, value: object
) -> None:
    """A seed or an option that was changed in the run's record: the first upload of the first site is named.

    The drawn set has other rows for another seed, and so its data are said to have changed.
    """
    edit(copied / "launch.json", lambda facts: facts["job"].update({name: value}))
    done = medfedvqa("audit", "rerun", str(copied), "--quiet")
    assert done.returncode == 1 and "first tensor that differs: site site-001, round 1, task start" in done.stdout
    assert "direction out\n" in done.stdout and done.stdout.count("Note: The data") == 4 * (name == "seed")


@pytest.mark.slow
def test_a_stopped_run_is_run_again_for_as_many_rounds(medfedvqa: Command, tiny_backbone: Path, tmp_path: Path) -> None:
    """As the demo's, which ends before its last planned round."""
    job, seen = JobSpec.from_dict({**JOB, "options": {**OPTIONS, "rounds": 9}}), list[int]()
    launch = plan(job, None, tmp_path / "run", SITES[:2], 1, {TINY: tiny_backbone})
    results = run(launch, "local", lambda event: seen.append(event.round), stop=lambda: 2 in seen)
    assert (results["status"], len(results["rounds"])) == ("stopped", 2)
    assert medfedvqa("audit", "rerun", str(launch.out), "-q").stdout.startswith("equal: all ")


def test_noise_and_shares_are_refused_before_any_training(
    medfedvqa: Command, tiny_backbone: Path, tmp_path: Path, untrained: None
) -> None:
    """One sentence each, with the reason; such a run's record holds no digest of its data."""
    dp = {"noise": 1.5, "count_noise": 10.0}
    quick = {**OPTIONS, "rounds": 1, "weighting": "uniform"}
    noisy = ran(tmp_path / "noisy", tiny_backbone, sites=SITES[:1], options=quick, dp=dp)
    shared = ran(tmp_path / "shared", tiny_backbone, sites=SITES[:3], options=quick, secagg=True)
    for out, reason in (
        (noisy, "the run was private: its noise is fresh"),
        (shared, "shares: its masks are secret"),
    ):
        done = medfedvqa("audit", "rerun", str(out), "-q")
        assert done.returncode == 1 and done.stdout == "" and len(done.stderr.splitlines()) == 1
        assert reason in done.stderr
        assert json.loads((out / "launch.json").read_text())["data_digests"] == {}


@pytest.mark.parametrize(
    ("file", "change", "reason"),
    [
        ("results.json", {"status": "failed"}, "has not finished: its results.json has the status 'failed'"),
        ("results.json", {"missing_at_end": ["site-001"]}, "a site missed rounds"),
        ("launch.json", {"format": 2}, "newer version"),
        ("launch.json", None, "holds no run"),
        ("results.json", None, "no results.json"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_run_that_no_rerun_repeats_is_refused(
    medfedvqa: Command, copied: Path, untrained: None, file: str, change: dict[str, Any] | None, reason: str
) -> None:
    """One that is not over, lost a site, is of another version, or lacks its record."""
    if change is None:
        (copied / file).unlink()
    else:
        edit(copied / file, lambda content: content.update(change))
    done = medfedvqa("audit", "rerun", str(copied), "-q")
    assert done.returncode == 1 and done.stdout == "" and reason in done.stderr


def pictures(root: Path) -> None:
    """Two sites with eight pictures of each of two classes."""
    for site in ("ink", "sketch"):
        for shade, name in ((60, "cat"), (200, "dog")):
            for number in range(8):
                path = root / site / name / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("L", (32, 32), shade + number).save(path)


def test_changed_data_backbone_and_code_are_named_first(
    medfedvqa: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the site's name alone: no file, no path. Then comes what differs for it."""
    write_random(backbone := tmp_path / "tiny.safetensors")
    pictures(root := tmp_path / "SECRET-folder")
    options = {**OPTIONS, "answers": ["cat", "dog"]}
    out = ran(tmp_path / "run", backbone, root, ("sketch", "ink"), options=options, data="image-classes")
    assert medfedvqa("audit", "rerun", str(out), "-q").stdout.startswith("equal: all ")
    for path in (root / "ink" / "dog").iterdir():
        Image.new("L", (32, 32), 0).save(path)
    done = medfedvqa("audit", "rerun", str(out), "-q")
    lines = done.stdout.splitlines()
    assert done.returncode == 1 and lines[0] == "Note: The data of site 'ink' have changed since the run."
    assert lines[1].startswith("DIFFERENT") and "differs: site ink, round 1, task start" in lines[2]
    assert "SECRET" not in done.stdout + done.stderr and ".png" not in done.stdout + done.stderr
    backbone.write_bytes(backbone.read_bytes()[:-4] + b"\1\2\3\4")
    monkeypatch.setattr("medfedvqa.code_identity.code_digest", lambda: "ab" * 32)
    lines = medfedvqa("audit", "rerun", str(out), "-q").stdout.splitlines()
    assert lines[1:3] == [
        "Note: The backbone has changed since the run.",
        "Note: The code has changed since the run: medfedvqa.",
    ]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_of_flares_simulator_gives_the_same_digests_again(
    medfedvqa: Command, random_backbone: Path, tmp_path: Path
) -> None:
    """The rerun is in this process; data, backbone and code are those of the simulator's sites."""
    out = ran(tmp_path / "run", random_backbone, engine="simulator", backbone="medclip@random")
    done = medfedvqa("audit", "rerun", str(out), "-q")
    assert done.returncode == 0 and done.stdout.startswith("equal: all ") and "in 4 logs" in done.stdout
