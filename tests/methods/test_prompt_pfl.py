"""The prompt method against its card: what travels, what reduces to what, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tiny_clip import TINY

from audits import Kind
from medfedvqa.core import create
from medfedvqa.errors import ConfigError
from medfedvqa.evaluation import load_transcript
from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import plan, run
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.models import shape_of

Sites = Callable[..., dict[str, SiteConfig]]
Job = Callable[..., JobSpec]
PROMPTS = {"prompt.image", "prompt.text"}
SMALL = ("site-001", "site-002", "site-003")


def serve(job: JobSpec, configs: dict[str, SiteConfig], out: Path) -> dict:
    """Run a job in this process, with state and logs in a folder of its own."""
    moved = {
        site: config.model_copy(update={"state": out / site / "state", "audit": out / site / "audit"})
        for site, config in configs.items()
    }
    return serve_job(job, tuple(moved), LocalEngine(moved, job, "test").call, out, "local")


def last_shared(out: Path) -> dict[str, dict[str, np.ndarray]]:
    return load_transcript(out).shared


def test_payload_of_the_paper_is_61440_floats() -> None:
    """ViT-B/32, r=12, L=4: 12x4x768 + 12x4x512 floats up, and as many down."""
    exchange = create("prompt_pfl", {}).exchange(shape_of("ViT-B-32/openai"))
    train = exchange.task("train")
    floats = {spec.name: int(np.prod(spec.shape)) for spec in train.up if spec.kind is Kind.PARAMETERS}
    assert sum(floats.values()) == 61_440 and train.bytes_down == 245_760
    assert train.bytes_up == 245_760 + 4


@pytest.mark.parametrize(
    ("ablation", "prompts"),
    [("none", PROMPTS), ("AS1", set()), ("AS2", set()), ("AS3", {"prompt.text"}), ("AS4", {"prompt.image"})],
)
def test_ablations_share_what_the_paper_says(ablation: str, prompts: set[str]) -> None:
    """AS1 and AS2 share nothing, AS3 and AS4 the prompt that is left; heads and answers never travel."""
    exchange = create("prompt_pfl", {"ablation": ablation}).exchange(shape_of("medclip2-slake"))
    for task in exchange.tasks:
        tensors = {spec.name for spec in (*task.up, *task.down) if spec.kind is Kind.PARAMETERS}
        assert tensors == (prompts if task.name != "evaluate" or task.down else set())


def test_shapes_that_travel_do_not_tell_the_answer_space(sites: Sites, quick_job: Job) -> None:
    """Every tensor's shape depends on the backbone and the options alone."""
    exchange = create("prompt_pfl", quick_job().options).exchange(shape_of(TINY))
    shapes = {spec.shape for task in exchange.tasks for spec in task.up}
    assert shapes == {(2, 4, 32), ()}


@pytest.mark.slow
def test_without_sharing_every_site_trains_as_if_alone(sites: Sites, quick_job: Job, tmp_path: Path) -> None:
    """AS2 among three sites equals AS2 at one site, and equals the row 'alone' of a run that shares."""
    among = serve(quick_job(ablation="AS2"), sites(*SMALL), tmp_path / "among")
    alone = serve(quick_job(ablation="AS2"), sites(SMALL[0]), tmp_path / "alone")
    sharing = serve(quick_job(local_baseline=True), sites(*SMALL), tmp_path / "sharing")
    assert among["sites"][SMALL[0]]["correct"] == alone["sites"][SMALL[0]]["correct"]
    for site, facts in sharing["sites"].items():
        assert facts["baselines"]["alone"]["correct"] == among["sites"][site]["correct"]


@pytest.mark.slow
def test_the_order_of_sites_changes_nothing(sites: Sites, quick_job: Job, tmp_path: Path) -> None:
    """Synchronous exchange is permutation-equivariant: the same prompts and counts, whoever is asked first."""
    serve(quick_job(), sites(*SMALL), tmp_path / "one")
    serve(quick_job(), sites(*SMALL[::-1]), tmp_path / "other")
    one, other = last_shared(tmp_path / "one"), last_shared(tmp_path / "other")
    for site, tensors in one.items():
        for name, array in tensors.items():
            assert np.allclose(array, other[site][name], atol=1e-6)


@pytest.mark.slow
def test_two_sites_receive_each_other_s_prompts(sites: Sites, quick_job: Job, tmp_path: Path) -> None:
    """T=2: the shared prompt is the other site's local prompt, bit for bit."""
    serve(quick_job(), sites(*SMALL[:2]), tmp_path / "run")
    transcript = load_transcript(tmp_path / "run")
    for site, other in (SMALL[:2], SMALL[1::-1]):
        for name in PROMPTS:
            assert np.array_equal(transcript.shared[site][name], transcript.uploads[other][name])


@pytest.mark.slow
def test_a_job_may_bound_the_weight_of_one_site_in_another_s_mixture(
    sites: Sites, quick_job: Job, tmp_path: Path
) -> None:
    """At one half three sites receive the mean of the two others, which by reliability they do not; and of two sites
    none can be hidden from the other, so that there must be three."""
    configs = sites(*SMALL)
    apart = []
    for name, options in (("paper", {}), ("widened", {"most_share": 0.5})):
        (tmp_path / name).mkdir()
        job = quick_job(rounds=1, **options)
        assert job.offer().mixture_share == (0.5 if options else 1.0)
        serve(job, configs, tmp_path / name)
        seen = load_transcript(tmp_path / name)
        prompts = {site: uploads["prompt.text"] for site, uploads in seen.uploads.items()}
        for site in SMALL:
            mean = np.mean([prompts[other] for other in SMALL if other != site], axis=0)
            apart.append(np.abs(seen.shared[site]["prompt.text"] - mean).max())
    assert max(apart[3:]) < 1e-7 < min(apart[:3])
    assert quick_job(most_share=0.9).build().least_sites == 3 and quick_job().build().least_sites == 2


def test_sequential_order_lets_later_sites_see_newer_prompts(sites: Sites, quick_job: Job, tmp_path: Path) -> None:
    """Algorithm 1 literally: asking one site after the other changes what the last one trained with."""
    serve(quick_job(), sites(*SMALL), tmp_path / "synchronous")
    serve(quick_job(order="sequential"), sites(*SMALL), tmp_path / "sequential")
    uploads = [load_transcript(tmp_path / order).uploads for order in ("synchronous", "sequential")]
    assert np.array_equal(uploads[0][SMALL[0]]["prompt.image"], uploads[1][SMALL[0]]["prompt.image"])
    assert not np.array_equal(uploads[0][SMALL[2]]["prompt.image"], uploads[1][SMALL[2]]["prompt.image"])


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bits(sites: Sites, quick_job: Job, tmp_path: Path) -> None:
    """Two runs of one job agree in every bit of every prompt."""
    for name in ("first", "second"):
        serve(quick_job(), sites(*SMALL), tmp_path / name)
    first, second = (load_transcript(tmp_path / name).uploads for name in ("first", "second"))
    for site, tensors in first.items():
        for name, array in tensors.items():
            assert array.tobytes() == second[site][name].tobytes()


def test_sharing_needs_two_sites(sites: Sites, quick_job: Job, tmp_path: Path) -> None:
    """One site cannot share; nothing is trained and nothing is written."""
    with pytest.raises(ConfigError, match="at least 2 sites"):
        serve(quick_job(), sites(SMALL[0]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_prompt_pfl_beats_the_question_only_prior_by_20_points_at_every_site(tmp_path: Path) -> None:
    """With the bundled backbone, each phantom site's model is at least 20 points above what the words alone tell."""
    options = {"rounds": 5, "local_epochs": 2, "learning_rate": 0.002, "decay": 0.3, "decay_every": 2}
    options["local_baseline"] = False
    job = JobSpec.from_dict({"method": "prompt_pfl", "data": "phantom", "options": options})
    results = run(plan(job, None, tmp_path / "run"), "local", lambda event: None)
    for facts in results["sites"].values():
        assert facts["accuracy"] >= facts["baselines"]["question_prior"]["accuracy"] + 0.20


@pytest.mark.parametrize(
    "options",
    [{"round": 3}, {"rounds": 0}, {"alpha": "much"}, {"ablation": "AS9"}, {"dropout": 1.0}, {"length": 1}],
)
def test_unknown_options_and_values_are_named(options: dict[str, object]) -> None:
    """A wrong option is refused with its name when the job is made, not when it runs."""
    with pytest.raises(ConfigError, match=next(iter(options))):
        create("prompt_pfl", options)


def test_unknown_methods_are_refused_with_the_known_ones() -> None:
    """A job that names an unknown method says which there are."""
    with pytest.raises(ConfigError, match="prompt_pfl"):
        JobSpec.from_dict({"method": "prompt_pfi"})
