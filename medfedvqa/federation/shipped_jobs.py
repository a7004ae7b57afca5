"""The jobs that ship with the project, one for each method with its defaults, and what a site's policy says of them."""

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


@cache
def shipped_job(method: str) -> JobSpec:
    """The method's job with its defaults; on shares where it does not run otherwise."""
    try:
        job = JobSpec.from_dict({"method": method})
        job.build().plan()
        return job
    except (ConfigError, PrivacyError):
        return JobSpec.from_dict({"method": method, "secagg": True})


def refused_jobs(policies: Mapping[str, SitePolicy]) -> dict[tuple[tuple[str, ...], Refusal], list[str]]:
    """The methods whose shipped jobs these sites' policies refuse, by the sites and the code that they give."""
    refused: dict[tuple[tuple[str, ...], Refusal], list[str]] = {}
    for method in method_names():
        found = {site: policy_objection(policy, shipped_job(method)) for site, policy in policies.items()}
        codes = {site: objection[0] for site, objection in found.items() if objection}
        for code in dict.fromkeys(codes.values()):
            sites = tuple(site for site in codes if codes[site] is code)
            refused.setdefault((sites, code), []).append(method)
    return refused


def to_allow(method: str) -> str:
    """One sentence on what a site's `site.yml` must say so that the method's shipped job runs there."""
    job = shipped_job(method)
    kinds = {spec.kind.value for task in job.exchange().tasks for spec in (*task.up, *task.down)}
    demands = [f"`{method}` among `policy.methods`"]
    demands += [f"`{kind}` among `policy.kinds`" for kind in sorted(kinds - {*DEFAULTS["kinds"]})]
    demands += ["the other sites' fingerprints in `peers`"] if job.secagg else []
    return (
        f"A hospital allows this job in its `local/site.yml` by {', '.join(demands)}; the rest may stay as provisioned."
    )
