"""The schema of an exported job's two configuration files, key by key.

Processes that check job folders before FLARE reads them use it; it loads no torch. A method's options are
only bounded here; `JobSpec.from_dict` checks them in the job's process.
"""

import json
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from medfedvqa.errors import MedfedvqaError
from medfedvqa.federation.flare.run_folder import CONTROLLER, EXECUTOR
from medfedvqa.federation.flare.strict_json import NotAllowed
from medfedvqa.federation.job import STATUS_JOB, JobSpec
from privacy import PrivacyError


class _StrictSchema(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


Patience = Annotated[float, Field(ge=1, le=3600)]
Empty = Annotated[list[Any], Field(max_length=0)]


def _job(job: dict[str, Any]) -> dict[str, Any]:
    if job != STATUS_JOB:
        # As text, in which tuples are lists and times are strings; no value becomes another type.
        JobSpec.model_validate_json(json.dumps(job), strict=True)
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
    except (ValidationError, MedfedvqaError, PrivacyError, RecursionError):
        raise NotAllowed("the configuration is not what this version exports") from None
    # Python holds 1, 1.0 and True for equal, and they are not the same job.
    if json.dumps(job, sort_keys=True) != json.dumps(same, sort_keys=True):
        raise NotAllowed("the configurations of server and sites hold different jobs")
    return job
