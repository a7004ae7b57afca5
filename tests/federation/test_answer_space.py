"""Under differential privacy the answers that a model chooses from are public: a list of the job's or of the site's."""

import logging
from contextlib import closing

import pytest
from in_process import Job, Sites

from audits import JobRefused, Outcome, Refusal, read
from medfedvqa.cli.privacy_matrix import public_options
from medfedvqa.data import CLOSED_ANSWERS
from medfedvqa.data.pictures import Pictures
from medfedvqa.errors import ConfigError
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_runtime import SiteRuntime
from privacy import Ledger

DP = {"noise": 2.0, "count_noise": 20.0, "sample_rate": 0.3}
NOTICE = "medfedvqa.training.trainer"
OWN = {"own": "head"}
LOCAL_HEADS = {"prompt_pfl": {}, "feddat": {}, "san": {}, "mevf": {}, "pubmedclip": {}, "local": OWN, "fedavg": OWN}


@pytest.fixture
def private_job(quick_job: Job) -> Job:
    """A quick job under differential privacy with these options."""
    return lambda **options: JobSpec.from_dict(quick_job(**options).to_dict() | {"dp": DP})


def started(config: SiteConfig, job: JobSpec) -> dict[str, object]:
    """What a site answers to the first task."""
    runtime = SiteRuntime(config, job, "job")
    try:
        return dict(runtime.handle("start", 1, {}))
    finally:
        runtime.close()


@pytest.mark.parametrize("name", LOCAL_HEADS)
def test_a_private_job_with_a_local_head_says_where_its_answers_come_from(name: str) -> None:
    """Without the option the job is refused when it is made, with both ways to go on; with it the job is made."""
    options = {option: value for option, value in public_options(name).items() if option != "answers"}
    options |= LOCAL_HEADS[name]
    with pytest.raises(ConfigError, match="'answers' a list, or 'closed'.*'site' and each site.yml a list") as refused:
        JobSpec.from_dict({"method": name, "options": options, "dp": DP})
    assert "\n" not in str(refused.value)
    for answers in ("closed", "site", ["yes", "no"]):
        JobSpec.from_dict({"method": name, "options": {**options, "answers": answers}, "dp": DP})
    JobSpec.from_dict({"method": name, "options": options})


def test_a_shared_head_has_the_bundled_list_by_itself_and_never_each_sites_own() -> None:
    """One head cannot choose from several lists."""
    job = {"method": "fedavg", "options": {"weighting": "uniform"}, "dp": DP}
    assert JobSpec.from_dict(job).build().answers == CLOSED_ANSWERS
    with pytest.raises(ConfigError, match="a shared head has one answer space"):
        JobSpec.from_dict(job | {"options": {"weighting": "uniform", "answers": "site"}})


def test_a_site_without_a_list_refuses_before_it_charges_or_opens_anything(
    sites: Sites, private_job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal says what to do, is in the site's log, and costs no patient anything."""
    config = sites("chest")["chest"]

    def opened(*_: object) -> None:
        raise AssertionError("a picture was opened")

    monkeypatch.setattr(Pictures, "read", opened)
    with pytest.raises(JobRefused, match=r"give 'data' in site.yml its 'answers'"):
        started(config, private_job(answers="site"))
    assert [entry.reason for entry in read(config.audit) if entry.outcome == Outcome.REFUSED]
    with closing(Ledger(config.ledger, config.name)) as ledger:
        assert all(account.authorised.epsilon == 0 for account in ledger.accounts(1e-5))


def test_a_site_with_a_list_trains_on_it(sites: Sites, private_job: Job) -> None:
    """The head has a row for each answer of the list, whatever the site's rows hold."""
    listed = ["yes", "no", "left", "right", "an answer that nobody gives"]
    config = sites("chest", answers=listed)["chest"]
    job = private_job(answers="site")
    runtime = SiteRuntime(config, job, "job")
    reply = runtime.handle("start", 1, {})
    assert {"prompt.image", "prompt.text", "accuracy", "epsilon"} == reply.keys()
    assert runtime.site.data.public_answers and runtime.site.data.answers == tuple(listed)
    assert len(job.build().setup(runtime.site)["values"]["head.answers.bias"]) == len(listed)
    runtime.close()


def test_a_list_that_holds_none_of_a_sites_answers_is_one_sentence(sites: Sites, quick_job: Job) -> None:
    """Without privacy the site refuses, and its own people read why; no answer is named."""
    with pytest.raises(
        JobRefused, match="fewer than half of the train rows have an answer of the answer space"
    ) as refused:
        started(sites("chest")["chest"], quick_job(answers=("zebra", "giraffe")))
    assert refused.value.code is Refusal.DATA
    assert "\n" not in str(refused.value) and "zebra" not in str(refused.value)


def test_rows_outside_of_the_list_are_left_out_and_counted_at_the_site(
    sites: Sites, private_job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    """As many as have another answer; the record names none of them."""
    config = sites("chest")["chest"]
    with caplog.at_level(logging.INFO, NOTICE):
        started(config, private_job(answers=("yes", "no")))
    site = SiteRuntime(config, private_job(answers=("yes", "no")), "other").site
    outside = int((site.data.train.answers < 0).sum())
    messages = {record.getMessage() for record in caplog.records if record.name == NOTICE}
    assert 0 < outside < len(site.data.train) and len(messages) == 1
    (message,) = messages
    assert message == f"{outside} training rows are left out: the answer space does not hold their answers"
