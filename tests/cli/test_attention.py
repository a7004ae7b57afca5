"""`medfedvqa attention`: a local picture, and nothing else."""

from contextlib import closing
from pathlib import Path

import pytest

from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import plan, write_sites
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.site_config import load_site_config

QUICK = {"rounds": 1, "local_epochs": 1, "local_unit": "batches", "batch_rows": 8}
PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, random_backbone: Path) -> Path:
    """A run's folder, of SAN over two small sites."""
    out = tmp_path_factory.mktemp("runs") / "run"
    files = {"medclip@random": random_backbone}
    job = JobSpec(method="san", options={**QUICK, "pixels": 32}, data="phantom", backbone="medclip@random")
    launch = plan(job, None, out, ("site-001",), backbone_files=files)
    sites = {site: load_site_config(path, site) for site, path in write_sites(launch).items()}
    with closing(LocalEngine(sites, job, "run")) as engine:
        serve_job(job, launch.sites, engine.call, out, "local")
    return out


@pytest.mark.parametrize("as_path", [False, True])
def test_a_finished_run_s_model_is_drawn_and_the_user_is_warned(medfedvqa, finished, tmp_path, as_path) -> None:
    """By the site's name or its file; the run's folder stays as it was, and only the owner can read the picture."""
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    site = str(finished / "sites" / "site-001" / "site.yml") if as_path else "site-001"
    out = tmp_path / "map.png"
    done = medfedvqa("attention", "--run", str(finished), "--site", site, "--row", "1", "--out", str(out))
    assert done.returncode == 0 and "must not leave this site" in done.stdout
    assert out.read_bytes().startswith(PNG) and out.stat().st_mode & 0o777 == 0o600
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before
    assert list(tmp_path.iterdir()) == [out]


def test_a_bare_backbone_is_drawn(medfedvqa, tmp_path) -> None:
    out = tmp_path / "map.png"
    done = medfedvqa("attention", "--data", "phantom", "--site", "site-001", "--row", "0", "--out", str(out))
    assert done.returncode == 0 and out.read_bytes().startswith(PNG)


@pytest.mark.parametrize(
    "out", ["https://host/map.png", "s3://bucket/map.png", "map.txt", "nowhere/map.png", "there.png"]
)
def test_it_writes_to_a_new_file_on_this_machine_only(medfedvqa, tmp_path, monkeypatch, out) -> None:
    """Refused before anything is computed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.png").write_bytes(b"mine")
    done = medfedvqa("attention", "--data", "phantom", "--site", "site-001", "--row", "0", "--out", out)
    assert done.returncode == 1 and [path.read_bytes() for path in tmp_path.iterdir()] == [b"mine"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--row", "9999"), "numbered from 0"),
        (("--row", "0", "--part", "all"), "'all' is not one of"),
        (("--row", "0", "--run", "nothing"), "name the folder of a finished run"),
    ],
)
def test_wrong_arguments_are_named(medfedvqa, tmp_path, more, said) -> None:
    done = medfedvqa("attention", "--data", "phantom", "--site", "site-001", *more, "--out", str(tmp_path / "map.png"))
    assert done.returncode in (1, 2) and said in done.stderr and not list(tmp_path.iterdir())
