"""A job before it has a data set: a method, its options, and how it trains."""

from collections.abc import Mapping, Sequence
from typing import Any

from medfedvqa.errors import ConfigError
from medfedvqa.federation.job import ANY_DATA, JobSpec
from medfedvqa.library.data_set import Data
from medfedvqa.library.job_options import checked_job
from medfedvqa.models import bundled_for
from privacy import PrivacyCost, PrivacyError, Secagg, spent

AUTO = "auto"


class Job:
    """A method with its options. It is checked when it is made, and trains nothing before `medfedvqa.run`."""

    def __init__(
        self,
        method: str,
        /,
        *,
        epsilon: float | None = None,
        dp: Mapping[str, Any] | None = None,
        secagg: Secagg = False,
        committee: int | Sequence[str] | None = None,
        gather: str = "mean",
        most_norm: float | None = None,
        min_sites: int = 1,
        wait_for: int | None = None,
        round_timeout: float | None = None,
        split: str = "official",
        questions: str = "closed",
        seed: int = 0,
        backbone: str = AUTO,
        method_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Every other keyword is an option of the method, as `medfedvqa.options` lists them: `rounds=10`.

        `epsilon`: differential privacy by patient, what the whole job may cost each patient, in nats. `dp`: other
        settings of it by name, as `clip`. `secagg`: aggregate on shares; 'crypten': means too with CrypTen, not under
        masks; `committee`: how many sites compute then, or which. `gather`: how the server combines uploads, `mean`,
        `trimmed` or `median`. `most_norm`: the largest L2 norm of an upload. `min_sites`: the job neither begins nor
        continues with fewer sites; `wait_for`: a round ends with this many answers, by default with all;
        `round_timeout`: it ends after this many seconds, by default never, since all sites run on this machine.
        `split`: `official`, or `patient` for parts that share no patient. `questions`: `closed`, `open` or `all`.
        `seed`: of the split, the phantom set and training. `backbone`: its name; `auto` is the bundled one that has not
        seen the data. `method_options`: options as a mapping, for names that are only known when the program runs.

        Raises `ConfigError` for an unknown method or option, or a value out of range, and `BackboneError` for a name
        that no backbone has.
        """
        private = {**(dp or {}), **({} if epsilon is None else {"epsilon": epsilon})}
        self._auto = backbone == AUTO
        self._settings: dict[str, Any] = {
            "method": method,
            "options": {**(method_options or {}), **options},
            "split": {"kind": split, "seed": seed, "questions": questions},
            "backbone": bundled_for(ANY_DATA) if self._auto else backbone,
            "seed": seed,
            "dp": private or None,
            "secagg": secagg,
            "committee": committee,
            "gather": gather,
            "most_norm": most_norm,
            "min_sites": min_sites,
            "wait_for": wait_for,
            "round_timeout": round_timeout,
        }
        try:
            self._spec = checked_job(self._settings)
        except PrivacyError as error:
            raise ConfigError(str(error)) from None

    @property
    def method(self) -> str:
        """The method's name."""
        return self._spec.method

    @property
    def options(self) -> dict[str, Any]:
        """All options of the method in force, defaults included."""
        options: dict[str, Any] = self._spec.build().config.model_dump(mode="json")
        return options

    @property
    def cost(self) -> PrivacyCost | None:
        """What the whole job costs each patient, in nats at the job's delta; None without differential privacy.

        It follows from the settings alone, whatever the data.
        """
        if self._spec.dp is None:
            return None
        return spent([event for task in self._spec.build().plan() for event in task.events], self._spec.dp.delta)

    def spec(self, data: Data) -> JobSpec:
        """The job as sites receive it, on this data set."""
        backbone = {"backbone": bundled_for(data.name)} if self._auto else {}
        return JobSpec.from_dict({**self._settings, "data": data.name, **backbone})

    def __repr__(self) -> str:
        """The method, and the options that differ from its defaults."""
        options = "".join(f", {name}={value!r}" for name, value in self._spec.options.items())
        return f"Job({self.method!r}{options})"
