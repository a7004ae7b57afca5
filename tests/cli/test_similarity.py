"""`medfedvqa similarity`: a local picture of a finished run of unicon."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import plan, write_sites
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.site_config import load_site_config

UNICON: dict[str, Any] = {"rounds": 1, "steps": 1, "batch_rows": 4, "blocks": 1, "width": 16, "space": 8}
SAN: dict[str, Any] = {"rounds": 1, "local_epochs": 1, "local_unit": "batches", "batch_rows": 8, "pixels": 32}


def finished(out: Path, weights: Path, method: str, options: dict[str, Any]) -> Path:
    """A run's folder, of one small site."""
    job = JobSpec(method=method, options=options, data="phantom", backbone="medclip@random")
    launch = plan(job, None, out, ("site-001",), backbone_files={"medclip@random": weights})
    sites = {site: load_site_config(path, site) for site, path in write_sites(launch).items()}
    with closing(LocalEngine(sites, job, "run")) as engine:
        serve_job(job, launch.sites, engine.call, out, "local")
    return out


@pytest.mark.slow
def test_a_finished_run_s_similarities_are_drawn_for_their_owner_alone(medfedvqa, random_backbone, tmp_path) -> None:
    """Both matrices in one file of mode 0600; a run of a method that compares no answers is refused."""
    run = finished(tmp_path / "run", random_backbone, "unicon", {**UNICON, "aggregate": "none"})
    out = tmp_path / "map.png"
    done = medfedvqa("similarity", "--run", str(run), "--site", "site-001", "--rows", "8", "--out", str(out))
    assert done.returncode == 0 and "must not leave this site" in done.stdout
    assert out.read_bytes().startswith(b"\x89PNG") and out.stat().st_mode & 0o777 == 0o600
    other = finished(tmp_path / "other", random_backbone, "san", SAN)
    done = medfedvqa("similarity", "--run", str(other), "--site", "site-001", "--out", str(tmp_path / "no.png"))
    assert done.returncode == 1 and "compares no rows with answers" in done.stderr
    done = medfedvqa("similarity", "--run", str(run), "--site", "site-009", "--out", str(tmp_path / "no.png"))
    assert done.returncode == 1 and not (tmp_path / "no.png").exists()
