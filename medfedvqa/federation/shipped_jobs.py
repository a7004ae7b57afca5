"""The jobs that ship with the project, and how a site's policy judges them.

One for each method with its defaults; and one under differential privacy and on shares, so that a federation is private
from its first job on."""

from collections.abc import Mapping
from functools import cache

from audits import Refusal
from audits.policy import SitePolicy
from medfedvqa.core import method_names
from medfedvqa.errors import ConfigError
from medfedvqa.federation.admission import policy_objection
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import DEFAULTS
from privacy import PrivacyError
from privacy.secagg import MINIMUM

PRIVATE = "prompt_pfl_private_on_shares"
_PRIVATE_JOB = {
    "method": "prompt_pfl",
    "options": {
        "answers": "closed",
        "rounds": 10,
        "local_epochs": 1,
        "finish_epochs": 20,
        "most_share": 0.75,
    },
    "dp": {"epsilon": 3.0},
    "secagg": True,
    "min_sites": MINIMUM,
}
"""Neither the server nor another site sees a site's prompts, which are at most three quarters of any mixture; what
leaves costs each patient epsilon 3 at most. Afterwards each site trains further by itself; nothing of that leaves."""


def shipped_names() -> list[str]:
    """The names of the shipped jobs, which are those of their folders."""
    return [*method_names(), PRIVATE]


@cache
def shipped_job(name: str) -> JobSpec:
    """The method's job with its defaults, on shares where it does not run otherwise; or the private job."""
    if name == PRIVATE:
        return JobSpec.from_dict(_PRIVATE_JOB)
    try:
        job = JobSpec.from_dict({"method": name})
        job.build().plan()
        return job
    except (ConfigError, PrivacyError):
        return JobSpec.from_dict({"method": name, "secagg": True})


def refused_jobs(policies: Mapping[str, SitePolicy]) -> dict[tuple[tuple[str, ...], Refusal], list[str]]:
    """The shipped jobs that these sites' policies refuse, by the sites that refuse and their code."""
    refused: dict[tuple[tuple[str, ...], Refusal], list[str]] = {}
    for name in shipped_names():
        found = {site: policy_objection(policy, shipped_job(name)) for site, policy in policies.items()}
        codes = {site: objection[0] for site, objection in found.items() if objection}
        for code in dict.fromkeys(codes.values()):
            sites = tuple(site for site in codes if codes[site] is code)
            refused.setdefault((sites, code), []).append(name)
    return refused


def to_allow(name: str) -> str:
    """One sentence on what a site's `site.yml` must say so that the shipped job of this name runs there."""
    job = shipped_job(name)
    kinds = {spec.kind.value for task in job.exchange().tasks for spec in (*task.up, *task.down)}
    demands = [f"`{job.method}` among `policy.methods`"]
    demands += [f"`{kind}` among `policy.kinds`" for kind in sorted(kinds - {*DEFAULTS["kinds"]})]
    demands += ["the other sites' fingerprints in `peers` or `provisioned_peers`"] if job.secagg else []
    fresh = " Unless `policy.require_fresh` is false, it takes the job only as `medfedvqa jobs export --kit` makes it."
    return (
        f"A hospital allows this job in its `local/site.yml` by {', '.join(demands)}; the rest may stay as provisioned."
        f"{fresh if job.dp else ''}"
    )
