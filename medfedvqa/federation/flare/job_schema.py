"""The schema of an exported job's two configuration files, key by key.

The models need no torch: they serve processes that check the folders of jobs before FLARE reads them. A method's
options are only bounded here; `JobSpec.from_dict` checks them in the job's process.
"""

import json
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from medfedvqa.bounds import (
    FINGERPRINT,
    MOST_ANSWERS,
    MOST_SECONDS,
    MOST_SEED,
    MOST_SITES,
    MOST_WEIGHT,
    NONCE,
    BackboneName,
    DataName,
    Identifier,
    SiteName,
)
from medfedvqa.federation.flare.strict_json import NotAllowed
from medfedvqa.shape_cards import ShapeCard

EXECUTOR = "medfedvqa.federation.flare.executor.SiteExecutor"
CONTROLLER = "medfedvqa.federation.flare.controller.FederationController"
STATUS_JOB = {"method": "site_status"}
"""A copy of `medfedvqa.federation.site_status.STATUS_JOB`, whose module imports torch."""

_MOST_OPTIONS = 128
_MOST_OPTION_NAME = 24


class _StrictSchema(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def _option_name(name: str) -> str:
    if not (name.isidentifier() and name.islower()):
        raise ValueError("the options are not those of a method")
    return name


_Scalar = bool | int | float | str | None
_OptionName = Annotated[str, Field(max_length=_MOST_OPTION_NAME), AfterValidator(_option_name)]
_Answers = Annotated[list[_Scalar], Field(max_length=MOST_ANSWERS)]
_BySite = Annotated[dict[str, dict[_OptionName, _Scalar]], Field(max_length=MOST_SITES)]
Options = Annotated[dict[_OptionName, _Scalar | _Answers | _BySite], Field(max_length=_MOST_OPTIONS)]
"""Options by name: scalars, lists of scalars, or for each site a table of names and scalars."""

Seed = Annotated[int, Field(ge=0, le=MOST_SEED)]
Sites = Annotated[list[SiteName], Field(max_length=MOST_SITES)]
Patience = Annotated[float, Field(ge=1, le=3600)]
Empty = Annotated[list[Any], Field(max_length=0)]


class SplitFields(_StrictSchema):
    """The fields of `medfedvqa.data.Split`."""

    kind: Literal["official", "patient"]
    seed: Seed
    fractions: Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(min_length=3, max_length=3)]
    validation: Annotated[float, Field(ge=0, lt=1)]
    questions: Literal["closed", "open", "all"]


class PrivacyFields(_StrictSchema):
    """The fields of `privacy.DPSettings`, with the same bounds."""

    epsilon: Annotated[float, Field(gt=0, le=1e5)] | None
    noise: Annotated[float, Field(gt=0, le=1e6)] | None
    count_noise: Annotated[float, Field(gt=0, le=1e6)] | None
    count_share: Annotated[float, Field(gt=0, lt=1)]
    delta: Annotated[float, Field(gt=0, lt=1)]
    unit: Literal["patient"]
    clip: Annotated[float, Field(ge=1e-6, le=1e6)]
    sample_rate: Annotated[float, Field(ge=1e-5, le=1)]
    expected_patients: Annotated[int, Field(ge=1, le=10_000_000)]
    patient_rows: Annotated[int, Field(ge=1, le=4_096)]
    physical_patients: Annotated[int, Field(ge=1, le=4_096)]


class TermsFields(_StrictSchema):
    """The fields of `medfedvqa.federation.job_terms.Terms`."""

    nonce: Annotated[str, Field(pattern=NONCE)]
    expires: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)\z")]
    federation: Annotated[str, Field(pattern=FINGERPRINT)]
    sites: Annotated[list[SiteName], Field(min_length=1, max_length=MOST_SITES)]


class JobFields(_StrictSchema):
    """The fields of `medfedvqa.federation.job.JobSpec`, as `to_dict` writes them."""

    method: Identifier
    options: Options
    data: DataName
    split: SplitFields
    backbone: BackboneName
    seed: Seed
    dp: PrivacyFields | None
    secagg: bool | Literal["crypten"]
    min_sites: Annotated[int, Field(ge=1, le=MOST_SITES)]
    wait_for: Annotated[int, Field(ge=1, le=MOST_SITES)] | None = None
    round_timeout: Annotated[float, Field(ge=1, le=MOST_SECONDS)] | None = None
    committee: Annotated[int, Field(ge=1, le=MOST_SITES)] | Sites | None
    card: ShapeCard | None = None
    terms: TermsFields | None = None
    gather: Literal["mean", "trimmed", "median"] = "mean"
    most_norm: Annotated[float, Field(gt=0, le=MOST_WEIGHT)] | None = None


def _job(job: dict[str, Any]) -> dict[str, Any]:
    if job != STATUS_JOB:
        JobFields.model_validate(job)
    return job


def _exactly(path: str) -> Any:
    return Field(pattern=rf"^{re.escape(path)}\z")


class _Arguments(_StrictSchema):
    job: Annotated[dict[str, Any], AfterValidator(_job)]


class _Executor(_StrictSchema):
    path: Annotated[str, _exactly(EXECUTOR)]
    args: _Arguments


class _Tasks(_StrictSchema):
    tasks: Annotated[list[Literal["*"]], Field(min_length=1, max_length=1)]
    executor: _Executor


class _Workflow(_StrictSchema):
    id: Literal["controller"]
    path: Annotated[str, _exactly(CONTROLLER)]
    args: _Arguments


class _Common(_StrictSchema):
    format_version: Literal[2]
    components: Empty
    task_data_filters: Empty
    task_result_filters: Empty
    # Sites take no part in downloads: a job that sends arrays by reference would wait forever.
    np_download_chunk_size: Literal[0]
    tensor_download_chunk_size: Literal[0]


class _Client(_Common):
    executors: Annotated[list[_Tasks], Field(min_length=1, max_length=1)]
    max_runner_sync_timeout: Patience = 1.0
    get_task_timeout: Patience = 1.0
    submit_task_result_timeout: Patience = 1.0


class _Interval(_StrictSchema):
    task_request_interval: Annotated[float, Field(ge=0.01, le=60)]


class _Server(_Common):
    workflows: Annotated[list[_Workflow], Field(min_length=1, max_length=1)]
    server: _Interval = _Interval(task_request_interval=1.0)


def job_of(client: dict[str, Any], server: dict[str, Any]) -> dict[str, Any]:
    """The job that both files hold. Raises `NotAllowed` unless they are what this version exports."""
    try:
        job = _Client.model_validate(client).executors[0].executor.args.job
        same = _Server.model_validate(server).workflows[0].args.job
    except (ValidationError, RecursionError):
        raise NotAllowed("the configuration is not what this version exports") from None
    # Python holds 1, 1.0 and True for equal, and they are not the same job.
    if json.dumps(job, sort_keys=True) != json.dumps(same, sort_keys=True):
        raise NotAllowed("the configurations of server and sites hold different jobs")
    return job
