"""Checks a job: the error for an unknown name suggests the nearest name that exists."""

from collections.abc import Mapping, Set
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from medfedvqa import plugins
from medfedvqa.backbone_names import NO_BACKBONE, parse
from medfedvqa.core import method_names, method_type
from medfedvqa.data import organs
from medfedvqa.data.data_roots import PHANTOM
from medfedvqa.data.site_cuts import Cut, named, sites_of
from medfedvqa.federation.job import JobSpec
from medfedvqa.models import bundled_for
from medfedvqa.near_miss import check_name
from privacy import DPSettings

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
