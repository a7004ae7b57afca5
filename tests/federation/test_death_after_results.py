"""A job whose process at the server dies after it wrote its results, and before it signed its receipts."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from nvflare.apis.signal import Signal

from audits import VerdictState, examine
from medfedvqa.data.phantom import organs
from medfedvqa.federation.flare.run_folder import RESULTS, has_finished
from medfedvqa.federation.flare.server_side import serve_on_flare
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import Launch, write_sites
from medfedvqa.federation.server_receipts import SERVER_KEYS
from medfedvqa.federation.site_config import load_site_config

ID = "9a0427e4-902a-42e3-b4ac-9c705cce5caa"
OPTIONS = {"rounds": 1, "local_unit": "batches", "local_epochs": 1, "batch_rows": 8, "blocks": 1, "hidden": 8}
JOB = JobSpec.from_dict({"method": "fedavg", "data": "phantom", "options": OPTIONS})
SITES = organs(2)
PROGRAM = """
import json, os, sys
from pathlib import Path
from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.server_receipts import ServerReceipts
from medfedvqa.federation.site_config import load_site_config
job_id, out, keys, paths = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4])
job = JobSpec.from_dict(json.loads(sys.argv[5]))
configs = {site: load_site_config(Path(path), site) for site, path in paths.items()}
receipts = ServerReceipts(job.exchange(), job_id, tuple(configs), keys, out)
engine = LocalEngine(configs, job, job_id)
serve_job(job, tuple(configs), engine.call, out, "provisioned", receipts=receipts)
engine.close()
os._exit(0)
"""


def flare(root: Path) -> Any:
    """What the server's part asks FLARE for: the job's name, its sites and the folders of the server's kit."""
    workspace = SimpleNamespace(
        get_run_dir=lambda job_id: str(root / job_id),
        get_site_config_dir=lambda: str(root / "local"),
        get_root_dir=lambda: str(root),
    )
    clients = [SimpleNamespace(name=site) for site in SITES]
    engine = SimpleNamespace(get_clients=lambda: clients, get_workspace=lambda: workspace)
    return SimpleNamespace(get_engine=lambda: engine, get_job_id=lambda: ID)


@pytest.mark.slow
def test_the_next_process_signs_what_the_dead_one_received(tmp_path: Path) -> None:
    """Only then do others hold each site's log with every release in it."""
    out, keys = tmp_path / ID / RESULTS, tmp_path / "local" / SERVER_KEYS
    out.mkdir(parents=True)
    paths = write_sites(Launch(JOB, None, tmp_path / "run", SITES))
    files = json.dumps({site: str(path) for site, path in paths.items()})
    command = [sys.executable, "-c", PROGRAM, ID, str(out), str(keys), files, json.dumps(JOB.to_dict())]
    subprocess.run(command, check=True, timeout=300)
    audits = {site: load_site_config(path, site).audit for site, path in paths.items()}

    def states() -> set[VerdictState]:
        return {part.state for site, log in audits.items() for part in examine(log, site, [out]).consistency.parts}

    assert has_finished(out) and states() != {VerdictState.SHOWN}
    serve_on_flare(cast(Any, None), JOB.to_dict(), flare(tmp_path), Signal())
    assert states() == {VerdictState.SHOWN}
