"""A provisioned federation whose server lies: it goes back, chooses numbers of rounds, and asks more than it may."""

import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from flare_liar import ATTACK, OUTCOME
from taps import add_component, disarm

from audits import Event, read, verify
from medfedvqa.data.phantom import organs
from medfedvqa.federation.flare.loopback import LoopbackFederation
from medfedvqa.federation.flare.provision import SERVER
from medfedvqa.federation.flare.recipe import export_job
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import SiteConfig, load_site_config, site_yaml
from privacy import DPSettings, Ledger, spent
from privacy.secagg import Identity

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    # FLARE's transport, on one of its threads.
    pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning"),
]

SITES = organs(4)
BACKBONE = "medclip@random"
OPTIONS = {"rounds": 2, "local_epochs": 1, "local_unit": "batches", "batch_rows": 4, "blocks": 1, "hidden": 16}
PROMPTS = {**OPTIONS, "local_baseline": False, "answers": "closed"}
DP = DPSettings(noise=8.0, count_noise=40.0, sample_rate=0.3, patient_rows=4)
PATIENCE = 300.0  # seconds


class LyingFederation(LoopbackFederation):
    """Its server has no guard, and plays attacks in the place of jobs."""

    def start(self, name: str) -> None:
        if name == SERVER:
            disarm(self.kits / name)
            part = {"id": "liar", "path": "flare_liar.LyingWorkflow", "args": {"folder": str(self.folder)}}
            add_component(self.kits / name, part)
        super().start(name)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory, random_backbone: Path) -> Iterator[LyingFederation]:
    """Four sites that know each other's keys and want sums of three sites at least."""
    folder = tmp_path_factory.mktemp("federation")
    for name in SITES:
        (folder / name).mkdir()
    keys = {name: Identity.create(folder / name / "identity.key").fingerprint for name in SITES}
    paths = {}
    for name in SITES:
        paths[name] = folder / name / "site.yml"
        places = {place: str(folder / name / place) for place in ("state", "audit", "ledger", "identity.key")}
        places["identity"] = places.pop("identity.key")
        facts = {"reader": "phantom", "organ": name, "methods": ["prompt_pfl", "fedavg"], "min_sites": 3}
        text = site_yaml(**facts, **places, peers=keys, backbones={BACKBONE: str(random_backbone)})
        paths[name].write_text(text)
    python = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    with LyingFederation(folder, paths, {"PYTHONPATH": os.pathsep.join(python)}) as federation:
        yield federation


@pytest.fixture(scope="module")
def configs(federation: LyingFederation) -> dict[str, SiteConfig]:
    return {name: load_site_config(federation.kits / name / "local" / "site.yml", name) for name in SITES}


def play(federation: LyingFederation, folder: Path, attack: str, **job: Any) -> tuple[str, dict[str, Any]]:
    """The id of a job whose server plays an attack, and what came of it."""
    spec = JobSpec.from_dict({"data": "phantom", "backbone": BACKBONE, "min_sites": 3, **job})
    export_job(spec.model_copy(update={"terms": federation.terms()}), folder / "job")
    (federation.folder / ATTACK).write_text(attack)
    (federation.folder / OUTCOME).unlink(missing_ok=True)
    job_id = federation.submit(folder / "job")
    assert federation.wait(job_id, PATIENCE).startswith("FINISHED:")
    return job_id, json.loads((federation.folder / OUTCOME).read_text())


def assert_refused_in_order(configs: dict[str, SiteConfig], job_id: str, sites: tuple[str, ...]) -> None:
    """Each of these sites has one refusal of the job in a log that verifies, with the code of a task out of order."""
    for site in sites:
        entries = [entry for entry in read(configs[site].audit) if entry.job == job_id]
        codes = [entry.admission["code"] for entry in entries if entry.event is Event.REFUSAL and entry.admission]
        assert codes == ["order"]
        assert verify(configs[site].audit).ok


def test_a_server_that_goes_back_a_round_opens_no_second_sum_of_it(
    federation: LyingFederation, configs: dict[str, SiteConfig], tmp_path: Path
) -> None:
    """Finding 1: the difference of the two sums was the whole upload of the site that the second leaves out."""
    job_id, outcome = play(federation, tmp_path, "rewound_sum", method="fedavg", options=OPTIONS, secagg=True)
    assert outcome == {"again": ["order"] * 3, "opened": False}
    assert_refused_in_order(configs, job_id, SITES[:3])


@pytest.mark.release
def test_a_server_chooses_no_number_for_a_round(
    federation: LyingFederation, configs: dict[str, SiteConfig], tmp_path: Path
) -> None:
    """Finding 2: it searched for the number of a round whose committee were its colluders."""
    job_id, outcome = play(federation, tmp_path, "searched_number", method="fedavg", options=OPTIONS, secagg=True)
    assert outcome == {"again": ["order"] * 4}
    assert_refused_in_order(configs, job_id, SITES)


@pytest.mark.release
def test_a_server_that_goes_back_gets_no_second_mixture_of_a_round(
    federation: LyingFederation, configs: dict[str, SiteConfig], tmp_path: Path
) -> None:
    """Finding 3: all sites mix in both rounds, and none in the first one again."""
    job_id, outcome = play(federation, tmp_path, "rewound_mixture", method="prompt_pfl", options=PROMPTS, secagg=True)
    assert outcome == {"again": ["order"] * 4, "mixed": [4, 4, 0]}
    assert_refused_in_order(configs, job_id, SITES)


@pytest.mark.release
def test_a_server_that_goes_back_spends_no_budget_beyond_the_plan(
    federation: LyingFederation, configs: dict[str, SiteConfig], tmp_path: Path
) -> None:
    """Finding 5: each repeat was charged. The ledgers have spent what the job planned, to the last digit."""
    job_id, outcome = play(federation, tmp_path, "rewound_training", method="prompt_pfl", options=PROMPTS, dp=DP)
    assert outcome == {"again": ["order"] * 8}
    assert_refused_in_order(configs, job_id, SITES)
    job = JobSpec.from_dict({"method": "prompt_pfl", "options": PROMPTS, "dp": DP})
    planned = spent([event for task in job.build().plan() for event in task.events], DP.delta).epsilon
    for config in configs.values():
        with closing(Ledger(config.ledger, config.name)) as ledger:
            assert ledger.together(DP.delta, False).epsilon == pytest.approx(planned, abs=1e-9)
