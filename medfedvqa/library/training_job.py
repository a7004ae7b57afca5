"""A job without its data set: a method, its options, and the settings of training. The error for an unknown name
suggests the nearest name that exists.
"""

import inspect
from collections.abc import Mapping, Set
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from medfedvqa import plugins
from medfedvqa.backbone_names import NO_BACKBONE, parse
from medfedvqa.core import method_names, method_type
from medfedvqa.data import organs
from medfedvqa.data.data_roots import PHANTOM
from medfedvqa.data.site_cuts import Cut, named, sites_of
from medfedvqa.errors import ConfigError
from medfedvqa.federation.job import ANY_DATA, JobSpec
from medfedvqa.federation.job_choices import JobChoices
from medfedvqa.library.data_set import Data
from medfedvqa.models import bundled_for
from medfedvqa.near_miss import check_name
from privacy import DPSettings, PrivacyCost, PrivacyError, spent

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


def checked_job(job: dict[str, Any], keywords: Set[str] = frozenset()) -> JobSpec:
    """The job's specification. Raises `ConfigError` for unknown names, with the nearest known ones, and for bad values.

    `keywords`: names besides the method's options that the error may suggest.

    Raises `BackboneError` for a name that no backbone has; the loader checks what the name stands for.
    """
    check_method(job["method"])
    check_options(job["method"], job.get("options", {}), keywords)
    for name in job.get("dp") or {}:
        names = [field.name for field in fields(DPSettings)]
        check_name("setting of differential privacy", name, names, "`medfedvqa privacy settings` lists them")
    if "backbone" in job:
        parse(job["backbone"])
    return JobSpec.from_dict(job)


def check_method(name: str) -> None:
    """Raises `ConfigError` for an unknown method."""
    if not plugins.check("methods", name, plugins.allowed()):
        check_name("method", name, method_names(training=False), "`medfedvqa methods` lists them")


def check_options(method: str, options: dict[str, Any], keywords: Set[str] = frozenset()) -> None:
    """Raises `ConfigError` for an option that the method does not have. `keywords`: further names to suggest."""
    for name in options:
        names = [*method_type(method).config_type.model_fields, *keywords]
        check_name("option", name, names, f"`medfedvqa methods {method}` lists them", f" of '{method}'")


def backbone_for(name: str, reader: str, options: Mapping[str, Any] = NO_OPTIONS) -> str:
    """The backbone's name. `auto` and the empty name become the bundled backbone that has not seen the data, or
    `none` if the options name a network of the method's own."""
    if name not in ("", "auto"):
        return name
    return NO_BACKBONE if options.get("network") else bundled_for(reader)


def check_site_names(reader: str, root: Path | None, sites: tuple[str, ...]) -> None:
    """Raises `ConfigError` for a site that a published set does not have. The phantom set draws any site."""
    if reader != PHANTOM and sites:
        names = organs(reader, root)
        for site in sites:
            cut, hospital = Cut.of_site(site), named(site)
            every = sites_of(cut, reader, root, "all") if cut else names
            name = hospital.organ if hospital and not cut else site
            check_name("site", name, every, f"the sites of {reader} are {', '.join(every)}")


__all__ = ["Option", "method_names", "options"]


@dataclass(frozen=True)
class Option:
    """One option of a method."""

    name: str
    default: Any
    meaning: str
    """One phrase, with the option's unit and the source of its default."""


def options(method: str) -> tuple[Option, ...]:
    """The options of the method of this name, each with its default and meaning. Raises `ConfigError`."""
    fields = method_type(method).config_type.model_fields
    return tuple(Option(name, field.default, field.description or "") for name, field in fields.items())


AUTO = "auto"
DEFAULTS = {name: field.default for name, field in JobChoices.model_fields.items()} | {"round_timeout": None}
"""Keywords of `Job` with their defaults. All sites run on this machine, so that a round needs no time limit."""


class Job:
    """A method with its options. The constructor checks them; `medfedvqa.run` trains."""

    def __init__(
        self,
        method: str,
        /,
        *,
        epsilon: float | None = None,
        dp: Mapping[str, Any] | None = None,
        split: str = "official",
        questions: str = "closed",
        backbone: str = AUTO,
        method_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Every other keyword is a field of `JobChoices`, or an option of the method: `secagg=True`, `rounds=10`.

        `epsilon`: turns on differential privacy by patient; the most that the job may cost each patient, in nats.
        `dp`: its other settings, such as `clip`. `split`: `official`, or `patient` for parts that share no patient.
        `questions`: `closed`, `open` or `all`. `backbone`: its name; `auto` is the bundled one that has not seen the
        data. `method_options`: options as a mapping, for names that are only known when the program runs.

        `inspect.signature(medfedvqa.Job)` has the fields with their types and defaults, `medfedvqa run --help` has what
        they mean, and `medfedvqa.options` lists a method's options. Here a round has no limit by default, since all
        sites run on this machine.

        Raises `ConfigError` for an unknown method or option, or a value out of range, and `BackboneError` for a name
        that no backbone has.
        """
        private = {**(dp or {}), **({} if epsilon is None else {"epsilon": epsilon})}
        choices = DEFAULTS | {name: options.pop(name) for name in DEFAULTS if name in options}
        self._auto = backbone == AUTO
        self._settings: dict[str, Any] = {
            "method": method,
            "options": {**(method_options or {}), **options},
            "split": {"kind": split, "seed": choices["seed"], "questions": questions},
            "backbone": backbone,
            "dp": private or None,
            **choices,
        }
        self._settings["backbone"] = self._backbone(ANY_DATA)
        try:
            self._spec = checked_job(self._settings, DEFAULTS.keys())
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
        """The whole job's cost to each patient, in nats at the job's delta; None without differential privacy.

        It depends on the settings alone, not on the data.
        """
        if self._spec.dp is None:
            return None
        return spent([event for task in self._spec.build().plan() for event in task.events], self._spec.dp.delta)

    def spec(self, data: Data) -> JobSpec:
        """The job's specification for sites, on this data set."""
        return JobSpec.from_dict({**self._settings, "data": data.name, "backbone": self._backbone(data.name)})

    def _backbone(self, data: str) -> str:
        settings = self._settings
        return backbone_for(AUTO, data, settings["options"]) if self._auto else str(settings["backbone"])

    def __repr__(self) -> str:
        """The method, and the options that differ from its defaults."""
        options = "".join(f", {name}={value!r}" for name, value in self._spec.options.items())
        return f"Job({self.method!r}{options})"


def _signature() -> inspect.Signature:
    """The signature of `Job` with the fields of a job as keywords, for `help` and for editors at run time."""
    *before, options = inspect.signature(Job.__init__).parameters.values()
    fields = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=JobChoices.model_fields[name].annotation,
        )
        for name, default in DEFAULTS.items()
    ]
    return inspect.Signature([*before, *fields, options])


vars(Job.__init__)["__signature__"] = _signature()
