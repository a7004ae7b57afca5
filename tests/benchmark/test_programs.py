"""The programs in `benchmarks/` still run: each with the smallest settings that its options allow."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "benchmarks"
DEADLINE = 840
"""Seconds for one program, on a machine that does other things as well."""
SMALLEST = {
    "burned_in_text": "{data} --images 1 --texts 4",
    "devices": "--architecture ViT-S-32-alt --blocks 1 --rows 2 --steps 1",
    "devices private": "--private 2 --steps 1",
    "dp_accuracy": "{out}/runs --seeds 0 --lines {out}/lines.jsonl",
    "federation": "--rounds 2",
    "federation sharing": "--rounds 2 --sharing 3",
    "identifiers": "{data} --names 5 --headers 1",
    "kills": "--out {out}/kills.jsonl --trials 1 --modes 'clear, private' --rounds 2",
    "midi_b": "synthetic {out}/midi --patients 1",
    "scale": "--sites 2 3 --out {out}/scale.jsonl --plot {out}/scale.svg",
    "start_up": "--repetitions 1",
    "text_gate": "train {data} --shorter 2000 --out {out}/gate.onnx",
    "trojan": "{out}/runs --shares 0.0 --seeds 1 --triggers inverted",
    "upgrade": "{root}",
}
"""Options of each program, of some for a second way to run it; `{out}` is an empty folder, `{data}` that of the real
data sets, and `{root}` this checkout."""
LONG = {
    "dp_accuracy",
    "federation",
    "federation sharing",
    "kills",
    "scale",
    "trojan",
    "upgrade",
}
"""Programs that start provisioned federations, or train others to the end: before a release."""


def test_every_program_is_tried() -> None:
    """A new benchmark has its smallest settings here."""
    assert {path.stem for path in PROGRAMS.glob("*.py")} == {name.split()[0] for name in SMALLEST}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.release) if name in LONG else name for name in SMALLEST]
)
def test_a_program_runs_to_its_end(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """It ends without an error and prints a result."""
    data = request.getfixturevalue("data_folder") if "{data}" in SMALLEST[name] else None
    options = shlex.split(SMALLEST[name].format(out=tmp_path, data=data, root=ROOT))
    command = [sys.executable, str(PROGRAMS / f"{name.split()[0]}.py"), *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert ended.stdout.strip()
