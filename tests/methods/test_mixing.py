"""Whose gradients a site's model takes in a stepwise job: what that changes, and what is refused."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from medfedvqa.core import Site, create
from medfedvqa.core.gradient_mixing import Mixer
from medfedvqa.core.hub import GroupMean
from medfedvqa.errors import ConfigError
from medfedvqa.evaluation import history
from privacy import DPSettings

STEP = {
    "schedule": "stepwise",
    "tuning": "classifier",
    "answers": ["yes", "no"],
    "hidden": 8,
    "dropout": 0.0,
    "units": 16,
}
ORGANS = {"lung": ("lung-1of2", "lung-2of2"), "brain": ("brain-1of2", "brain-2of2")}
PRIVATE = DPSettings(noise=2.0, count_noise=1.0, sample_rate=0.5, expected_patients=2)
Make = Callable[..., Site]


@pytest.fixture
def contradicting(site: Make) -> dict[str, Site]:
    """Two hospitals of each of two organs. What is answered yes in one organ is answered no in the other."""
    sites = {name: site(name, questions=2) for names in ORGANS.values() for name in names}
    swapped = {name: replace(each.data, answers=each.data.answers[::-1]) for name, each in sites.items()}
    return {name: replace(each, data=swapped[name]) if "brain" in name else each for name, each in sites.items()}


def trained(federation: Any, sites: dict[str, Site], **options: Any) -> Any:
    """The run of a job, and the share of all test rows that are answered right."""
    run = federation(create("fedavg", STEP | {"rounds": 40, "learning_rate": 0.01} | options), sites)
    counts = run.run().values()
    return run, sum(int(each["correct"]) for each in counts) / sum(int(each["rows"]) for each in counts)


def last_models(run: Any) -> dict[str, dict[str, np.ndarray]]:
    """What each site is tested with."""
    return {site: tensors for task, _, site, tensors in run.received if task == "evaluate"}


def test_organs_that_contradict_each_other_keep_their_own_answers(
    contradicting: dict[str, Site], federation: Any
) -> None:
    """One model of the plain sum answers half of the rows; mixed gradients give each organ's sites all of them. The
    results hold the weights: of its own organ's sites a model takes more than of the others."""
    _, plain = trained(federation, contradicting)
    assert plain == 0.5
    for mixing in ("organ", "reliability"):
        run, mixed = trained(federation, contradicting, mixing=mixing)
        sites, records = run.hub.history.sites, [each.reliability for each in run.hub.history.rounds]
        (weights,) = map(np.array, [each for each in records if each][3].values())
        same = np.array([[one.split("-")[0] == other.split("-")[0] for other in sites] for one in sites])
        assert mixed == 1.0 and weights[same].min() > 2 * weights[~same].max()
        assert np.allclose(weights.sum(axis=1), 1) and run.hub.model == {}


def test_without_the_others_an_organ_trains_as_if_it_were_alone(
    contradicting: dict[str, Site], federation: Any
) -> None:
    """With weight 0 of the other organ, the models are those of two jobs, of one organ each. Groups by option are
    those of names."""
    together, _ = trained(federation, contradicting, mixing="organ", others=0.0, rounds=5)
    named, _ = trained(federation, contradicting, mixing="organ", others=0.0, rounds=5, groups=[*ORGANS.values()])
    for names in ORGANS.values():
        apart, _ = trained(federation, {name: contradicting[name] for name in names}, rounds=5)
        for name in names:
            one, other, third = (last_models(run)[name] for run in (together, apart, named))
            moved = max(np.abs(other[tensor] - array).max() for tensor, array in apart.received[2][3].items())
            assert moved > 0.02 and max(np.abs(one[tensor] - other[tensor]).max() for tensor in one) < moved / 100
            assert all(np.array_equal(one[tensor], third[tensor]) for tensor in one)


def test_what_of_the_others_is_taken_moves_an_organs_model_towards_the_plain_sum(
    contradicting: dict[str, Site], federation: Any
) -> None:
    """With others at nearly 1 and one step of all, the models of both organs are nearly the plain one."""
    plain, _ = trained(federation, contradicting, rounds=3)
    apart = {}
    for others in (0.0, 0.5, 0.999):
        mixed = last_models(trained(federation, contradicting, mixing="organ", others=others, rounds=3)[0])
        gaps = [np.abs(mixed[s][n] - a).mean() for s, each in last_models(plain).items() for n, a in each.items()]
        apart[others] = np.mean(gaps)
    assert apart[0.0] > apart[0.5] > 10 * apart[0.999]


def test_by_reliability_a_site_with_wrong_labels_counts_less(site: Make, federation: Any) -> None:
    """The others' models take hardly anything of its gradients, and the results can be tested against equal weights."""
    sites = {name: site(name, questions=2) for name in ("a", "b", "wrong")}
    data = sites["wrong"].data
    sites["wrong"] = replace(sites["wrong"], data=replace(data, answers=data.answers[::-1]))
    run, _ = trained(federation, sites, mixing="reliability", rounds=20)
    ((a, b, _),) = run.hub.history.rounds[-1].reliability.values()
    assert a[1] > 2 * a[2] and b[0] > 2 * b[2]
    assert history.tested_weights(run.hub.history) is not None
    assert sum(bool(record.reliability) for record in run.hub.history.rounds) == 10


def test_under_differential_privacy_mixing_by_organ_costs_what_the_plain_sum_costs() -> None:
    """One step an exchange; what the server makes of it is public."""
    plain, mixed = (
        create("fedavg", STEP | {"rounds": 30, "weighting": "uniform", "mixing": mixing}, PRIVATE)
        for mixing in ("none", "organ")
    )
    assert plain.plan() == mixed.plan() and mixed.cost("train").steps == 1


@pytest.mark.parametrize(
    ("options", "more", "sentence"),
    [
        ({"mixing": "organ", "schedule": "rounds"}, {}, "single steps: set 'schedule' to 'stepwise'"),
        ({"groups": [["a", "b"]]}, {}, "'groups' holds sites of one organ in each group: set 'mixing' to 'organ'"),
        ({"mixing": "organ", "groups": [["a", "b"], ["b"]]}, {}, "'groups' names a site twice"),
        ({"mixing": "organ", "unseen": ["a"]}, {}, "leave out 'unseen' and 'sampled'"),
        ({"mixing": "reliability"}, {"secagg": True}, "which secure aggregation hides: choose 'organ'"),
        ({"mixing": "reliability", "weighting": "uniform"}, {"dp": PRIVATE}, "each would cost epsilon"),
        (
            {"mixing": "organ", "groups": [["a", "b"], ["c", "d", "e"]]},
            {"secagg": True},
            "every group .* needs 3 sites",
        ),
    ],
)
def test_a_mixture_that_cannot_be_is_refused_when_the_job_is_made(
    options: dict[str, Any], more: dict[str, Any], sentence: str
) -> None:
    """With a sentence that says what to do."""
    with pytest.raises(ConfigError, match=sentence):
        create("fedavg", STEP | options, **more)


def test_sites_whose_names_say_no_organ_need_groups(site: Make, federation: Any) -> None:
    """Else every site would silently be an organ by itself."""
    with pytest.raises(
        ConfigError, match="no site's name says its organ, as 'lung-1of2' does: give the option 'groups'"
    ):
        trained(federation, {name: site(name) for name in ("here", "there")}, mixing="organ")


def test_a_lost_mean_moves_no_model() -> None:
    """What sites made of an earlier model is no gradient of the one held now. The next mean moves the model as if the
    lost one had not been asked for; with two groups the other one goes on alone."""
    method = create("fedavg", STEP | {"rounds": 4})
    sites = tuple(name for names in ORGANS.values() for name in names)
    means = [GroupMean({"x": np.full(3, value, np.float32)}, 1.0) for value in (1.0, 0.8, 0.5)]
    ended = []
    for sent in (means, [*means[:2], means[1]._replace(lost=True), means[2]]):
        mixer = Mixer(method.config, sites, False, method.server_step)
        for mean in sent:
            mixer.take({"": GroupMean(dict(mean.tensors), mean.weight, mean.lost)})
        ended.append(mixer.shared["x"])
    assert np.array_equal(*ended) and not np.array_equal(ended[0], means[0].tensors["x"])
    apart = create("fedavg", STEP | {"rounds": 4, "mixing": "organ", "others": 0.0})
    mixer = Mixer(apart.config, sites, False, apart.server_step)
    lung, brain = (next(name for name, each in mixer.groups.items() if names[0] in each) for names in ORGANS.values())
    for mean, lost in ((means[0], False), (means[1], True)):
        mixer.take({lung: mean._replace(lost=lost), brain: mean})
    kept, moved = (mixer.model(names[0])["x"] for names in ORGANS.values())
    assert np.array_equal(kept, means[0].tensors["x"]) and not np.array_equal(moved, kept)
