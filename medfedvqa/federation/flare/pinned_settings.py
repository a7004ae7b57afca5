"""What the guards of sites and servers share: settings of FLARE (2.9) that no job, file or variable changes.

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

from nvflare.fuel.f3.comm_config import CommConfigurator
from nvflare.fuel.utils.config_service import ConfigService

from audits.escaping import SENTENCE, for_terminal
from medfedvqa.federation.flare import patches
from medfedvqa.federation.flare.kit_contents import TRANSPORT

SETTINGS: Mapping[str, Any] = {
    **TRANSPORT,
    "allow_log_streaming": False,
    "np_download_chunk_size": 0,
    "tensor_download_chunk_size": 0,
    "streaming_reliable": False,
}
"""Arrays travel in the message that they belong to, and processes connect as the kits say."""


def parser() -> argparse.ArgumentParser:
    """Reads from a process's command line which kit it works in, and for which job."""
    arguments = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    arguments.add_argument("--workspace", "-m", required=True)
    arguments.add_argument("--job_id", "-n")
    return arguments


def stop(sentence: str) -> NoReturn:
    """End this process at once, with a sentence for whoever started it."""
    print(for_terminal(sentence, SENTENCE), file=sys.stderr, flush=True)
    os._exit(1)


def pin_settings(kit: Path) -> None:
    """Fix FLARE's settings in this process, and where it looks for others; `not_pinned` says whether that worked."""
    folders = _folders(kit)
    initialize = patches.INITIALIZE.current()

    def in_kit(
        section_files: dict[str, str], config_path: list[str], parsed_args: Any = None, var_dict: Any = None
    ) -> None:
        initialize(section_files, folders, parsed_args, var_dict)

    patches.INITIALIZE.replace(in_kit)
    ConfigService.initialize({}, folders)
    CommConfigurator.reset()  # it reads the file of the kit again, once
    for name, value in SETTINGS.items():
        _setting(name, value)


def not_pinned(kit: Path) -> list[str]:
    """Which of the fixed settings do not hold, asked of what FLARE itself goes by."""
    comm = CommConfigurator()
    changed = {name for name, value in SETTINGS.items() if _setting(name, value + 1) != value}
    holding = {
        "transport": comm.get_config() == TRANSPORT and not changed & TRANSPORT.keys(),
        "log streaming": "allow_log_streaming" not in changed,
        "arrays inside messages": not changed - TRANSPORT.keys() - {"allow_log_streaming"},
        "settings of the kit only": set(_folders(kit)).issuperset(ConfigService._config_path),
    }
    return [name for name, holds in holding.items() if not holds]


def _folders(kit: Path) -> list[str]:
    """Where no job writes."""
    return [str(kit / "local"), str(kit / "startup")]


def _setting(name: str, value: int) -> int:
    """The value that FLARE goes by if a file asks for this one. FLARE keeps the first: a later one changes nothing."""
    read = ConfigService.get_bool_var if isinstance(SETTINGS[name], bool) else ConfigService.get_int_var
    return int(read(name, {name: value}))
