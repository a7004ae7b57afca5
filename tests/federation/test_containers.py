"""The trial in containers, run as it is written, where the machine has Docker or Podman.

`BASE` names the image to build on, where no registry is at hand; `MEDFEDVQA_BUILD_OPTIONS` gives the build further
options, as a package index needs. `MEDFEDVQA_CONTAINERS_TRANSCRIPT=docs/measured/containers-transcript.txt` writes what
it printed there.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import guide
import pytest

from medfedvqa.version import VERSION

PODMAN = shutil.which("podman") and shutil.which("podman-compose")
pytestmark = [
    pytest.mark.release,
    pytest.mark.timeout(5400),
    pytest.mark.skipif(not (PODMAN or shutil.which("docker")), reason="neither Docker nor Podman is here"),
    pytest.mark.skipif(os.geteuid() != 0, reason="the kits must be given to the containers' account"),
]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "containers.md").read_text(encoding="utf-8")
INTRODUCTION = f"""\
Transcript of the trial in containers

What the blocks of docs/containers.md printed on one machine, as its test ran them with version {VERSION}.
Folders are shortened; the rest is as it came.

"""
DOCKER = """\
#!/bin/bash
# Podman and its compose, under the name by which the page calls them.
case "$1" in
  compose) shift; exec podman-compose "$@" ;;
  build) shift; exec podman build $MEDFEDVQA_BUILD_OPTIONS "$@" ;;
  *) exec podman "$@" ;;
esac
"""
SUITE = """\
FROM localhost/medfedvqa
USER 0
COPY requirements.lock /tmp
RUN pip install --no-cache-dir --constraint /tmp/requirements.lock pytest pytest-xdist pytest-timeout hypothesis
USER 10001:10001
"""
CONFINED = (
    "--network", "none", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "all",
    "--security-opt", "no-new-privileges:true", "--user", "10001:10001",
)  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """The folder of a run, what its blocks printed, and the environment in which `docker` is the engine."""

    folder: Path
    printed: list[str]
    environment: dict[str, str]

    def output(self, heading: str) -> str:
        """What the blocks of a section printed."""
        pairs = zip(guide.blocks(PAGE), self.printed, strict=True)
        return "".join(output for block, output in pairs if block.heading == heading)

    def docker(self, *words: str) -> subprocess.CompletedProcess[str]:
        """What the engine says to this."""
        return subprocess.run(
            ["docker", *words], env=self.environment, cwd=self.folder, capture_output=True, text=True, check=False
        )


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    """The whole page, once. The containers end, whatever happens."""
    folder = tmp_path_factory.mktemp("containers") / "it"
    folder.mkdir()
    environment = guide.environment(folder.parent / "home", MEDFEDVQA=str(ROOT))
    if PODMAN:
        shim = folder.parent / "bin" / "docker"
        shim.parent.mkdir()
        shim.write_text(DOCKER)
        shim.chmod(0o755)
        environment["PATH"] = f"{shim.parent}{os.pathsep}{environment['PATH']}"
        environment.setdefault("MEDFEDVQA_BUILD_OPTIONS", "")
    trial = Trial(folder, [], environment)
    try:
        trial.printed.extend(guide.run(PAGE, folder, environment, seconds=3600))
        yield trial
    finally:
        trial.docker("compose", "-f", "trial/compose.yml", "down")


def test_the_trial_runs_as_it_is_written_and_leaves_no_container(trial: Trial) -> None:
    """Every command of it succeeds, and the last one stops everything."""
    assert len(trial.printed) == len(guide.blocks(PAGE))
    assert "medfedvqa-" not in trial.docker("ps", "--all", "--format", "{{.Names}}").stdout
    if place := os.environ.get("MEDFEDVQA_CONTAINERS_TRANSCRIPT"):
        hidden = {str(trial.folder): "/srv", str(ROOT): "/opt/medfedvqa"}
        Path(place).write_text(INTRODUCTION + guide.transcript(PAGE, trial.printed, hidden), encoding="utf-8")


def test_both_jobs_end_with_results_and_the_second_survives_the_loss_of_all_containers(trial: Trial) -> None:
    """No site missed a round of either, and chest's log is whole afterwards."""
    paths = sorted((trial.folder / "jobs" / "results").glob("*/workspace/medfedvqa/results.json"))
    results = [json.loads(path.read_text()) for path in paths]
    assert [one["status"] for one in results] == ["finished", "finished"]
    assert all(len(one["rounds"]) == 3 and set(one["sites"]) == {"abdomen", "chest", "head"} for one in results)
    assert "FINISHED:COMPLETED" in trial.output("The machine goes down")


def test_doctor_has_no_complaint_inside_a_container(trial: Trial) -> None:
    """Of a server's kit, nor of a site's."""
    printed = trial.output("Start")
    assert "30 of 30 checks passed" in printed and "20 of 20 checks passed" in printed and "warning" not in printed


def test_a_container_has_no_capability_and_a_read_only_root(trial: Trial) -> None:
    """As its processes see it."""
    printed = trial.output("What a container may not")
    assert "Read-only file system" in printed and "10001" in printed
    assert "CapEff:\t0000000000000000" in printed and "NoNewPrivs:\t1" in printed


def test_every_way_out_is_closed_inside_a_container(trial: Trial) -> None:
    """The tests of what leaves a site, with this image, a read-only root, and loopback as the only network."""
    context = trial.folder / "suite"
    context.mkdir()
    (context / "Dockerfile").write_text(SUITE)
    shutil.copy(ROOT / "requirements.lock", context)
    built = trial.docker("build", "-t", "medfedvqa-tests", str(context))
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-2000:]
    command = "python -m pytest -q -p no:cacheprovider tests/federation/test_flare_egress.py -m 'slow or not slow'"
    ran = trial.docker(
        "run", "--rm", *CONFINED, "--volume", f"{ROOT}:/src:ro", "--workdir", "/src", "medfedvqa-tests", "-c", command
    )
    assert ran.returncode == 0, ran.stdout[-4000:]
