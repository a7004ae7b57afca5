"""FedMD, Fed-ET and FedGEMS against their equations; that they keep what all methods promise is in test_all_methods."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from audits import Kind
from medfedvqa.core import Method, Site, create
from medfedvqa.data import CLOSED_ANSWERS, held_out_pairs, public_pairs
from medfedvqa.errors import ConfigError
from medfedvqa.models import Backbone, load_backbone, shape_of
from medfedvqa.papers import public_outputs
from medfedvqa.papers.methods.fedet import ensemble
from medfedvqa.papers.methods.fedgems import selected, taught
from medfedvqa.papers.methods.fedmd import digest, labelled
from medfedvqa.papers.public_outputs import LOGITS, MOST_LOGIT, AnsweringServer, stacked
from privacy import DPSettings, PrivateStep

NAMES = ("fedmd", "fedet", "fedgems")
TAUGHT = ("fedet", "fedgems")
QUICK: dict[str, Any] = {
    "rounds": 2, "local_epochs": 1, "batch_rows": 6, "reduction": 4, "hidden": 8, "learning_rate": 0.01,
    "weighting": "uniform",
}  # fmt: skip
PUBLIC: dict[str, Any] = {**QUICK, "public_pairs": 12, "public_rows": 8}
MORE: dict[str, dict[str, Any]] = {
    "fedmd": {"transfer_epochs": 1},
    **dict.fromkeys(TAUGHT, {"trunk": "medclip2-slake", "server_hidden": 8, "server_epochs": 1, "test_pairs": 0}),
}
DP = DPSettings(noise=1.0, count_noise=1.0, sample_rate=0.5, expected_patients=2, physical_patients=4)
SHAPE = shape_of("medclip2-slake")
QUESTIONS = public_pairs(12).questions

Sites = Callable[..., Site]
Runs = Callable[..., Any]


def method(name: str, dp: DPSettings | None = None, **options: object) -> Any:
    return create(name, {**PUBLIC, **MORE[name], **options}, dp)


@cache
def trunk(name: str) -> Backbone:
    return load_backbone(name)


@pytest.fixture(autouse=True)
def one_trunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers of all tests share the weights that never change."""
    monkeypatch.setattr(public_outputs, "load_backbone", trunk)


@pytest.fixture
def run(site: Sites, federation: type) -> Runs:
    """A job over sites of these names."""

    def go(job: Method, *names: str, **how: bool) -> Any:
        done = federation(job, {name: site(name) for name in names}, **how)
        done.run()
        return done

    return go


def test_fedets_ensemble_is_the_papers_sum_written_out() -> None:
    """Variances 2/3 and 8/3 weigh 1/5 and 4/5; a third site that says nothing weighs nothing."""
    first, second, third = [1.0, -1.0, 0.0], [-2.0, 2.0, 0.0], [5.0, 5.0, 5.0]
    answers, dissent, some = ensemble(torch.tensor([[first], [second], [third]], dtype=torch.float64))
    # 1/5 (1, -1, 0) + 4/5 (-2, 2, 0) = (-1.4, 1.4, 0): the answer 1, from which the first site and the third differ.
    assert answers.tolist() == [1] and some.tolist() == [True]
    torch.testing.assert_close(dissent, torch.tensor([[0.2, -0.2, 0.0]], dtype=torch.float64), atol=1e-12, rtol=0)
    assert not ensemble(torch.tensor([[second], [second]]))[2].any()


def test_fedets_server_learns_the_consensus_and_the_dissent() -> None:
    """CE with the consensus, plus lambda times the divergence from the dissenting softmax, by hand."""
    uploads = torch.tensor([[[1.0, -1.0, 0.0]], [[-2.0, 2.0, 0.0]]])
    logits, item = torch.tensor([[0.3, 0.1, -0.2]]), torch.tensor([0])
    log_s, dissent = logits.log_softmax(1), torch.tensor([0.2, -0.2, 0.0]).softmax(0)
    divergence = (dissent * (dissent.log() - log_s[0])).sum()
    for weight in (0.0, 0.5):
        loss = method("fedet", diversity=weight).lesson_of_server(None, uploads)(logits, item)
        torch.testing.assert_close(loss, (-log_s[0, 1] + weight * divergence)[None])


def test_fedgems_takes_as_teacher_whoever_is_right() -> None:
    """The server itself, else the right sites by inverse entropy, else nobody; four rows by hand."""
    server_logits = torch.tensor([[3.0, 0.0], [0.0, 3.0], [0.0, 3.0], [0.0, 3.0]])
    sure, unsure, wrong = [4.0, 0.0], [1.0, 0.0], [0.0, 2.0]
    uploads = torch.tensor([[wrong, sure, sure, wrong], [wrong, unsure, wrong, wrong]])
    teacher, has_teacher = selected(server_logits, uploads, torch.zeros(4, dtype=torch.int64))
    assert has_teacher.tolist() == [True, True, True, False]
    entropies = [float(-(p * p.log()).sum()) for p in (torch.tensor(sure).softmax(0), torch.tensor(unsure).softmax(0))]
    weights = [1 / each / (1 / entropies[0] + 1 / entropies[1]) for each in entropies]
    torch.testing.assert_close(teacher[0], server_logits[0])
    torch.testing.assert_close(teacher[1], weights[0] * torch.tensor(sure) + weights[1] * torch.tensor(unsure))
    torch.testing.assert_close(teacher[2], torch.tensor(sure))


def test_fedgems_loss_is_answers_and_teacher_by_weight(site: Sites) -> None:
    """e CE + (1 - e) KL where there is a teacher, CE alone where there is none."""
    rows = method("fedgems").public(site())
    logits, teacher = (torch.randn(len(rows), len(CLOSED_ANSWERS)) for _ in range(2))
    has_teacher = torch.arange(len(rows)) % 2 == 0
    items = torch.arange(len(rows))
    answers = F.cross_entropy(logits, rows.answers, reduction="none")
    apart = F.kl_div(logits.log_softmax(1), teacher.log_softmax(1), log_target=True, reduction="none").sum(1)
    expected = torch.where(has_teacher, 0.75 * answers + 0.25 * apart, answers)
    torch.testing.assert_close(taught(rows, teacher, has_teacher, 0.75)(logits, items), expected)
    torch.testing.assert_close(labelled(rows)(logits, items), answers)


def test_fedmds_digest_is_the_mean_absolute_difference() -> None:
    """Over answers, row by row, of the rows that are asked for."""
    consensus = torch.tensor([[9.0, 9.0], [1.0, -2.0]])
    assert digest(consensus)(torch.tensor([[0.0, 1.0]]), torch.tensor([1])).tolist() == [2.0]


@pytest.mark.parametrize("name", NAMES)
def test_what_leaves_is_the_sites_logits_on_public_rows_and_no_more(name: str, run: Runs) -> None:
    """They are what the trained model says of each public question; what comes down is the declared teacher's."""
    done = run(method(name), "here", "there")
    rows = len(QUESTIONS)
    for site in ("here", "there"):
        upload = done.uploads("train", 2)[site]
        assert upload.keys() == {LOGITS} and upload[LOGITS].shape == (rows, len(CLOSED_ANSWERS))
        public, model = done.method.public(done.sites[site]), done.method.model(done.sites[site])
        values = done.states[site]["values"]
        with torch.no_grad():
            said = model.logits(values, public.batch(torch.arange(rows))).clamp(-MOST_LOGIT, MOST_LOGIT)
        np.testing.assert_allclose(upload[LOGITS], said.numpy(), atol=1e-5)
    assert {frozenset(down) for task, *_, down in done.received if task == "train"} == {frozenset({LOGITS})}
    assert not any(down for task, *_, down in done.received if task != "train")


def test_fedmds_teacher_is_the_mean_of_all_sites_logits(run: Runs) -> None:
    """What comes down in round 2 is the mean of round 1."""
    done = run(method("fedmd"), "here", "there", "elsewhere")
    mean = np.mean([upload[LOGITS] for upload in done.uploads("start", 1).values()], axis=0)
    downs = [down[LOGITS] for task, _, _, down in done.received if task == "train"]
    assert len(downs) == 3 and all(np.allclose(down, mean, atol=1e-6) for down in downs)


@pytest.mark.parametrize("name", NAMES)
def test_only_logits_and_counts_are_declared(name: str) -> None:
    """Of kind `representations`, in a range that the gate and the server check; the bytes are those of the page."""
    exchange = create(name, {}).exchange(SHAPE)
    for task in exchange.tasks[:-1]:
        assert {(spec.kind, spec.shape) for spec in (*task.up, *task.down)} == {(Kind.REPRESENTATIONS, (252, 48))}
        assert task.up[0].bounds == (-30.01, 30.01) and task.bytes_up == 48384
    assert [task.name for task in exchange.tasks] == ["start", "train", "evaluate"]


@pytest.mark.parametrize("name", NAMES)
def test_without_public_passes_a_site_trains_as_if_alone_bit_for_bit(name: str, run: Runs) -> None:
    """It is `local` with the same options and a head that starts alike everywhere; with them it is not."""
    without = {"public_epochs": 0} | ({"transfer_epochs": 0} if name == "fedmd" else {})
    alone = method(name).without_others()
    plain, apart = run(method(name, **without), "here"), run(alone, "here")
    taught = run(method(name), "here")
    values = [done.states["here"]["values"] for done in (plain, apart, taught)]
    assert all(torch.equal(value, values[1][key]) for key, value in values[0].items())
    assert not all(torch.equal(value, values[2][key]) for key, value in values[0].items())
    local = create("fedavg", QUICK)
    state, here = local.setup(plain.sites["here"]), plain.sites["here"]
    for number in (1, 2):
        state, _ = local.train(here, state, {}, number)
    assert all(torch.equal(value, state["values"][key]) for key, value in values[0].items())


@pytest.mark.parametrize("name", NAMES)
def test_a_lesson_brings_a_sites_answers_nearer_to_its_teachers(name: str, site: Sites) -> None:
    """Beside the same round without the lesson, on the public rows."""
    here = site()
    job = method(name, public_epochs=10, local_unit="batches")
    state = {**job.setup(here), "begun": True}
    rows = job.public(here)
    teacher = 4 * F.one_hot(rows.answers, len(CLOSED_ANSWERS)).float()
    apart = {}
    for kind, received in (("taught", {LOGITS: teacher.numpy()}), ("not", {})):
        _, reply = job.train(here, state, received, 2)
        said = torch.from_numpy(reply[LOGITS])
        loss, _ = next(job.lessons(state, rows, teacher))
        apart[kind] = float(loss(said, torch.arange(len(rows))).mean())
    assert apart["taught"] < 0.7 * apart["not"]


def test_sites_of_different_sizes_send_logits_of_one_shape(run: Runs) -> None:
    """`models` says by name what is different; a name that is not there is refused."""
    sizes = {"here": {"hidden": 4, "blocks": 1, "tuning": "lora"}}
    done = run(method("fedmd", models=sizes), "here", "there")
    values = {site: state["values"] for site, state in done.states.items()}
    assert len(values["here"]["head.hidden.bias"]) == 4 and len(values["there"]["head.hidden.bias"]) == 8
    assert any("lora" in name for name in values["here"]) and not any("lora" in name for name in values["there"])
    assert {up[LOGITS].shape for up in done.uploads("train", 2).values()} == {(len(QUESTIONS), len(CLOSED_ANSWERS))}
    for name in NAMES:
        with pytest.raises(ConfigError, match="names a site that does not take part"):
            run(method(name, models={"nowhere": {}}), "here")


@pytest.mark.parametrize("name", TAUGHT)
def test_a_server_whose_sites_are_right_answers_questions_about_other_pictures(name: str) -> None:
    """From logits of sites that know, on public rows, it learns what also holds elsewhere: words alone give half."""
    options = {"public_pairs": 96, "server_hidden": 256, "server_epochs": 30, "public_rows": 32, "server_rate": 3e-3}
    job = method(name, **options)
    server = AnsweringServer(trunk("medclip2-slake"), job.config, job.answers, 1)
    right = 6 * F.one_hot(server.rows.answers, len(CLOSED_ANSWERS)).float()
    before = server.score(held_out_pairs(48))
    server.learn(job.lesson_of_server(server, torch.stack([right, 0.5 * right])))
    after = server.score(held_out_pairs(48))
    assert before.correct < 0.2 * before.questions and after.correct > 0.56 * after.questions
    assert after.pictures == 0 and after.rsum == 0


@pytest.mark.parametrize("name", TAUGHT)
def test_the_servers_model_is_in_the_history_and_calls_no_site(name: str, run: Runs) -> None:
    """All that travels is the same bit for bit with and without the test."""
    tested, plain = (run(method(name, test_pairs=count), "here") for count in (12, 0))
    assert [sent[:3] for sent in tested.sent] == [sent[:3] for sent in plain.sent]
    assert all(np.array_equal(a[3][n], b[3][n]) for a, b in zip(tested.sent, plain.sent, strict=True) for n in a[3])
    assert plain.hub.history.server is None
    assert tested.hub.history.server.questions == len(held_out_pairs(12).questions)


@pytest.mark.parametrize("name", NAMES)
def test_a_job_of_separate_processes_is_the_same_to_the_bit(name: str, run: Runs) -> None:
    """All that lasts is in the saved state."""
    kept, forgot = (run(method(name), "here", "there", forgetful=how) for how in (False, True))
    for one, other in zip(kept.sent, forgot.sent, strict=True):
        assert one[:3] == other[:3] and all(np.array_equal(array, other[3][name]) for name, array in one[3].items())


def test_the_order_of_answers_changes_no_bit() -> None:
    """Sites are stacked by name."""
    uploads = {name: {LOGITS: np.full((2, 3), number, np.float32)} for number, name in enumerate("cab")}
    assert torch.equal(stacked(uploads), stacked(dict(reversed(uploads.items()))))


@pytest.mark.parametrize("name", NAMES)
def test_private_steps_are_paid_for_and_public_ones_are_free(
    name: str, run: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many noisy steps as the plan charges, whatever the number of public passes."""
    finished, finish = [], PrivateStep.finish
    monkeypatch.setattr(PrivateStep, "finish", lambda self, *rest: finished.append(1) or finish(self, *rest))
    for passes in (0, 2):
        job = method(name, DP, public_epochs=passes)
        finished.clear()
        run(job, "here")
        assert len(finished) == sum(event.steps for planned in job.plan() for event in planned.events) == 4


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"answers": ["yes", "no"]}, "bright, dark"),
        ({"own": "head"}, "compares answers"),
        ({"unseen": ["here"]}, "unseen"),
    ],
)
def test_jobs_that_cannot_work_are_refused_at_submission(name: str, options: dict[str, Any], said: str) -> None:
    """Answers without a common number, and sites that never train."""
    with pytest.raises(ConfigError, match=said):
        method(name, **options)


@pytest.mark.parametrize("name", TAUGHT)
def test_a_server_that_needs_single_uploads_refuses_shares(name: str) -> None:
    """Fed-ET weighs sites, FedGEMS selects them; FedMD takes a mean, and runs."""
    with pytest.raises(ConfigError, match="every site's own upload"):
        create(name, {}, secagg=True)
    assert create("fedmd", {}, secagg=True).on_shares.keys() == {"start", "train"}


@pytest.mark.parametrize("name", TAUGHT)
def test_a_trunk_that_the_server_cannot_have_is_refused(name: str, site: Sites, run: Runs) -> None:
    """A local file's at the server; one that has seen a site's data at the site."""
    with pytest.raises(ConfigError, match="bundled one by 'trunk'"):
        run(method(name, trunk="ViT-B-32@hospital"), "here")
    there = site()
    object.__setattr__(there.data, "name", "slake")
    with pytest.raises(ConfigError, match="has seen"):
        method(name).setup(there)
