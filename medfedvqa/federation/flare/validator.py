"""Which job folders a site takes: this project's configuration files, and nothing that could shadow the site's own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nvflare.apis.app_validation import AppValidator
from nvflare.lighter.tool_consts import NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE

from medfedvqa.errors import ConfigError
from medfedvqa.federation.flare.checks import EXECUTOR, read_json

_CONFIG = "config_fed_client.json"
_SIGNED = (NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE)
_FILES = {f"config/{name}" for name in (_CONFIG, "config_fed_server.json", *_SIGNED)} | set(_SIGNED)
_PLAIN = {"np_download_chunk_size", "tensor_download_chunk_size", "max_runner_sync_timeout", "get_task_timeout"}
_PLAIN |= {"submit_task_result_timeout", "format_version", "executors"}
_EMPTY = {"components", "task_data_filters", "task_result_filters"}


class ConfigurationOnly(AppValidator):
    """Belongs in a site's `resources.json` as `app_validator`; FLARE asks it before it deploys a job."""

    def validate(self, app_folder: str) -> tuple[str, dict[str, Any]]:
        """An error, or an empty text, and no properties: see FLARE's `AppValidator`."""
        return next(_objections(Path(app_folder)), ""), {}


def _objections(folder: Path) -> Iterator[str]:
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    if found - _FILES:
        yield "the job ships files other than its configuration, and this site takes none: code, or files of its own"
    try:
        config = read_json(folder / "config" / _CONFIG)
    except ConfigError:
        yield "the job has no configuration for a site"
        return
    if any(config.get(key) for key in _EMPTY):
        yield "the job brings components or filters, and this site runs its own executor only"
    if set(config) - _PLAIN - _EMPTY:
        yield "the job sets options that this site does not leave to jobs"
    executors = config.get("executors")
    if not isinstance(executors, list) or [_path(one) for one in executors] != [EXECUTOR]:
        yield "the job brings a class that is not on this site's list"


def _path(executor: Any) -> Any:
    """The class of an executor's definition; None if it says more than class and arguments."""
    inner = executor.get("executor") if isinstance(executor, dict) else None
    return inner.get("path") if isinstance(inner, dict) and set(inner) <= {"path", "args"} else None
