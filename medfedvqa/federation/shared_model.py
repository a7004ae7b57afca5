"""The final model of a run of averaging, which the server keeps for hospitals that join later."""

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from audits import Tensors
from medfedvqa.atomic_files import PRIVATE, write_whole
from medfedvqa.core import Method
from medfedvqa.errors import ConfigError
from medfedvqa.federation.job import JobSpec
from medfedvqa.methods.fedavg import FedAvgConfig, model_digest
from medfedvqa.methods.join import JoinConfig

MODEL = "model.npz"
"""The file in a run's folder: the arrays by name, and as the entry `job` the UTF-8 bytes of the job, as JSON."""
MODELS = "models"
"""The folder in a provisioned server's kit that holds the same files, each named by its model's digest."""
_JOB = "job"
_FINISH = 20
_OTHERS: Mapping[str, Any] = dict(evaluated="shared", unseen=(), sampled=None, patience=None, start_from=None)
"""Options reset in a joining job: they concern only the training of the run's own sites."""


@dataclass(frozen=True)
class SharedModel:
    """The arrays that all sites of a run shared at its end, with the job that trained them."""

    job: JobSpec
    tensors: Tensors = field(repr=False)

    @property
    def digest(self) -> str:
        """The digest that jobs name the model by."""
        method = self.job.build()
        own = method.config.model if isinstance(method.config, JoinConfig) else None
        return own or model_digest(method.public_answers, self.tensors)

    def write(self, *places: Path) -> None:
        """Writes each of these files whole, for the server's account only."""
        job = np.frombuffer(json.dumps(self.job.to_dict()).encode(), np.uint8)
        content = io.BytesIO()
        np.savez(content, **{_JOB: job}, **self.tensors)  # type: ignore[arg-type]  # no tensor has such a name
        for path in places:
            write_whole(path, content.getvalue(), PRIVATE)

    @classmethod
    def read(cls, path: Path) -> "SharedModel":
        """The model in a file. Raises `ConfigError` if there is none, or it is damaged."""
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                job = JobSpec.from_dict(json.loads(arrays[_JOB].tobytes()))
                return cls(job, {name: arrays[name] for name in arrays.files if name != _JOB})
        except FileNotFoundError:
            raise ConfigError(
                f"there is no {MODEL}: name the folder of a run of an averaging method, or of its downloaded results"
            ) from None
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            raise ConfigError(f"{MODEL} is damaged: take another copy of it") from None

    def joining(self, organs: Sequence[str] = (), finish: int = _FINISH, **changes: Any) -> JobSpec:
        """The job by which hospitals receive this model and then train it for `finish` passes; 0: not at all.

        `organs`: the names of the job's option `organs`. `changes`: fields of the job to set. Raises `ConfigError` if
        the arrays that the run's sites shared are not a whole model.
        """
        config = self.job.build().config.model_dump(mode="json")
        options = {name: value for name, value in config.items() if name in FedAvgConfig.model_fields}
        options |= {**_OTHERS, "model": self.digest, "organs": list(organs), "finish_epochs": finish}
        facts = {"split": self.job.to_dict()["split"], "data": self.job.data, "backbone": self.job.backbone}
        facts |= {"seed": self.job.seed, "method": "join", "options": options, **changes}
        job = JobSpec.from_dict({**facts, **({"card": self.job.to_dict()["card"]} if self.job.card else {})})
        down = {spec.name: spec.shape for spec in job.exchange().task("evaluate").down}
        if down != {name: array.shape for name, array in self.tensors.items()}:
            raise ConfigError(f"a run of '{self.job.method}' shares no complete model, so no hospital can join it")
        return job

    def starting(self, job: JobSpec) -> JobSpec:
        """The job, with this model as its start. Raises `ConfigError` if its sites would train another model, or if its
        method starts from none.
        """
        if "start_from" not in type(job.build().config).model_fields:
            raise ConfigError(f"jobs of '{job.method}' start from no earlier model: use `fedavg`")
        job = job.model_copy(update={"options": {**job.options, "start_from": self.digest}})
        down = {spec.name: spec.shape for spec in job.exchange().task("start").down}
        fits = down == {name: array.shape for name, array in self.tensors.items()}
        same = model_digest(job.build().public_answers, self.tensors) == self.digest
        if not fits or not same or job.backbone != self.job.backbone:
            raise ConfigError(
                "this job trains another model than the run that it should start from: give it the backbone, the "
                "answers and the options of that run's model"
            )
        return job


def model_for(method: Method[Any], folder: Path, out: Path) -> Tensors:
    """The model that a job of this method begins with, from `folder` or the run's own one; empty if there is none."""
    config = method.config
    digest = config.model if isinstance(config, JoinConfig) else getattr(config, "start_from", None)
    places = (folder / f"{digest}.npz", out / MODEL) if digest else ()
    return next((SharedModel.read(place).tensors for place in places if place.exists()), {})
