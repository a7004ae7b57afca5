"""Shared by the guards of sites and servers: FLARE (2.9) settings that no job, file or variable can change.

FLARE finds settings by walking a kit's whole folder, in which jobs leave files: a `comm_config.json` in one job
configures the transport of all later ones. The guards therefore fix the settings in the running process, and limit
FLARE's search to the folders `startup` and `local`, where no job writes.
"""

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.comm_config import CommConfigurator
from nvflare.fuel.sec.authz import AuthorizationService
from nvflare.fuel.utils.config_service import ConfigService
from nvflare.private.fed.utils.app_authz import AppAuthzService

from audits.escaping import SENTENCE, for_terminal
from medfedvqa.federation.flare import patches
from medfedvqa.federation.flare.kit_contents import TRANSPORT, VALIDATOR
from medfedvqa.installed_code import compare_compiled_files

SETTINGS: Mapping[str, Any] = {
    **TRANSPORT,
    "allow_log_streaming": False,
    "np_download_chunk_size": 0,
    "tensor_download_chunk_size": 0,
    "streaming_reliable": False,
}
"""With these settings, arrays travel in the message that they belong to, and processes connect as the kits say."""


RIGHTS: Mapping[str, str] = {"report_version": "any"}
"""Rights that every role has at a site or server. FLARE (2.9) puts this command into no category, so that no right in
the kit's file covers it."""

SERVER_RIGHTS: Mapping[str, str] = {**RIGHTS, "configure_site_log": "none", "configure_job_log": "none"}
"""The same at a server, where nobody may set the level of logs: at DEBUG, FLARE (2.9) writes administrators' session
tokens into them."""


def parser() -> argparse.ArgumentParser:
    """A parser of a FLARE process's command line, which names its kit and its job."""
    arguments = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    arguments.add_argument("--workspace", "-m", required=True)
    arguments.add_argument("--job_id", "-n")
    return arguments


def stop(sentence: str) -> NoReturn:
    """End this process at once, with a sentence for the person who started it."""
    print(for_terminal(sentence, SENTENCE), file=sys.stderr, flush=True)
    os._exit(1)


def fix_settings() -> None:
    """Fix FLARE's settings in this process; `not_fixed` verifies it."""
    compare_compiled_files()
    CommConfigurator.reset()  # FLARE then reads the kit's file again, once
    for name, value in SETTINGS.items():
        _setting(name, value)


def not_fixed() -> list[str]:
    """The fixed settings that do not hold, according to the objects that FLARE itself uses."""
    comm = CommConfigurator()
    changed = {name for name, value in SETTINGS.items() if _setting(name, value + 1) != value}
    conditions = {
        "transport": comm.get_config() == TRANSPORT and not changed & TRANSPORT.keys(),
        "log streaming": "allow_log_streaming" not in changed,
        "arrays inside messages": not changed - TRANSPORT.keys() - {"allow_log_streaming"},
    }
    return [name for name, holds in conditions.items() if not holds]


def pin_settings(kit: Path) -> None:
    """Fix FLARE's settings in this process, and the folders in which it looks for more; `not_pinned` verifies it."""
    folders = _folders(kit)
    initialize = patches.INITIALIZE.current()

    def in_kit(
        section_files: dict[str, str], config_path: list[str], parsed_args: Any = None, var_dict: Any = None
    ) -> None:
        initialize(section_files, folders, parsed_args, var_dict)

    patches.INITIALIZE.replace(in_kit)
    ConfigService.initialize({}, folders)
    fix_settings()


def not_pinned(kit: Path) -> list[str]:
    """The pinned settings that FLARE's own objects do not have."""
    own = set(_folders(kit)).issuperset(ConfigService._config_path)
    return not_fixed() + ([] if own else ["settings of the kit only"])


def not_in_force(kit: Path, conditions: Mapping[str, bool]) -> list[str]:
    """The settings, replaced functions and further conditions of the server's guard that do not hold."""
    return not_pinned(kit) + patches.missing() + [name for name, holds in conditions.items() if not holds]


def has_own_validator() -> bool:
    """Whether FLARE asks this project's validator about jobs."""
    validators = getattr(AppAuthzService.app_validator, "validators", [])
    return any(f"{type(validator).__module__}.{type(validator).__name__}" == VALIDATOR for validator in validators)


def refuse_other_classes(fl_ctx: FLContext, allowed: str, party: str) -> None:
    """Stop FLARE from making a job's component, unless it is of the class `allowed`."""
    config = fl_ctx.get_prop(FLContextKey.COMPONENT_CONFIG)
    if not isinstance(config, dict) or config.get("path") != allowed:
        error = f"the job brings a class that is not on this {party}'s list"
        fl_ctx.set_prop(FLContextKey.COMPONENT_BUILD_ERROR, error, private=True, sticky=False)


def pin_rights(changes: Mapping[str, str]) -> bool:
    """Override these rights of every role through FLARE's own functions; returns whether that took effect.

    Kits keep the `authorization.json` that they were provisioned with; this corrects rights that are wrong in it.
    """
    authorizer = AuthorizationService.get_authorizer()
    policy = authorizer.get_policy() if authorizer is not None else None
    if policy is None:
        return False
    roles = {role: {**rights, **changes} for role, rights in policy.config["permissions"].items()}
    return not authorizer.load_policy({**policy.config, "permissions": roles})


def _folders(kit: Path) -> list[str]:
    """The folders of a kit in which no job writes."""
    return [str(kit / "local"), str(kit / "startup")]


def _setting(name: str, value: int) -> int:
    """The value that FLARE uses if a file sets this one. FLARE keeps a setting's first value and ignores later ones."""
    read = ConfigService.get_bool_var if isinstance(SETTINGS[name], bool) else ConfigService.get_int_var
    return int(read(name, {name: value}))
