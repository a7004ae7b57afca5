"""The shipped private job on the federation of the committed project: keys, privacy and shares, as they are shipped."""

import shutil
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from doctored import checks_of

from audits import Event, Kind, Protection, read
from medfedvqa.errors import ConfigError
from medfedvqa.federation.aggregation_attempt import load_identity
from medfedvqa.federation.flare.loopback import LoopbackFederation, free_port
from medfedvqa.federation.flare.provision import provision
from medfedvqa.federation.shipped_jobs import PRIVATE, shipped_job
from medfedvqa.federation.site_config import load_site_config
from medfedvqa.federation.site_keys import pin
from privacy import Ledger

JOBS = Path(__file__).parents[2] / "nvflare_jobs"
SITES = ("abdomen", "chest", "head")


def kits_of(folder: Path) -> Path:
    """The committed project's kits, with a free port and a storage of their own."""
    project = yaml.safe_load((JOBS / "provision" / "project.yml").read_text())
    project["participants"][0]["fed_learn_port"] = free_port()
    (site_builder,) = [part for part in project["builders"] if part["path"].endswith("SiteBuilder")]
    site_builder["args"]["storage"] = str(folder / "storage")
    return provision(project, [], folder)


def test_sites_are_provisioned_with_each_others_keys_and_people_confirm_them(tmp_path: Path) -> None:
    """Each site has its own key; others' fingerprints are of their keys; kits made again have the same; and the doctor
    says that nobody has compared them until `peers` has them; another key under a known name is refused."""
    first, again = kits_of(tmp_path), kits_of(tmp_path)
    assert first != again
    for kits in (first, again):
        configs = {site: load_site_config(kits / site / "local" / "site.yml", site) for site in SITES}
        prints = {site: load_identity(config).fingerprint for site, config in configs.items()}
        for site, config in configs.items():
            assert config.peers == {} and config.known_peers == {
                name: fingerprint for name, fingerprint in prints.items() if name != site
            }
    (check,) = [check for check in checks_of(again / "head") if check["name"] == "peers"]
    assert "abdomen, chest" in check["problem"] and check["ok"]
    path = again / "head" / "local" / "site.yml"
    with pytest.raises(ConfigError, match="another key is pinned for 'chest'"):
        pin(path, "head", "chest", "0" * 64)
    for site in ("abdomen", "chest"):
        pin(path, "head", site, prints[site])
    assert load_site_config(path, "head").peers.keys() == {"abdomen", "chest"}
    (check,) = [check for check in checks_of(again / "head") if check["name"] == "peers"]
    assert check["problem"] is None


@pytest.mark.release
def test_the_private_job_runs_as_it_is_shipped(tmp_path: Path) -> None:
    """Provision, start, submit: the job finishes at every site; whatever leaves and depends on data is private and on
    shares; and each ledger is charged what the job says."""
    kits = kits_of(tmp_path)
    sites = {site: kits / site / "local" / "site.yml" for site in SITES}
    with LoopbackFederation(tmp_path / "federation", sites, kits=kits) as federation:
        folder = shutil.copytree(JOBS / PRIVATE, tmp_path / PRIVATE)  # FLARE writes a signature into it
        job = federation.submit(folder)
        assert federation.wait(job, 1200) == "FINISHED:COMPLETED"
    spec = shipped_job(PRIVATE)
    assert spec.dp is not None and spec.secagg and spec.dp.epsilon == 3.0
    for site in SITES:
        entries = [entry for entry in read(kits / site / "audit") if entry.job == job]
        left = [tensor for entry in entries if entry.event is Event.RELEASE for tensor in entry.tensors]
        of_data = {(tensor.name, tensor.protection) for tensor in left if tensor.kind is not Kind.PUBLIC}
        assert {name for name, _ in of_data} == {"prompt.image", "prompt.text", "accuracy"}
        assert {protection for _, protection in of_data} == {Protection.DP_MASKED}
        with closing(Ledger(kits / site / "ledger", site)) as ledger:
            assert 2.9 < ledger.together(spec.dp.delta, reserved=True).epsilon <= 3.0
