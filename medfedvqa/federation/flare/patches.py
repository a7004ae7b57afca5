"""The undocumented code of NVIDIA FLARE that a server depends on, with the digests that a new version must match.

A `Reach` is code of FLARE that a guarded server replaces, writes to, reads, or relies on. Each row holds the SHA-256 of
that code's source in the tested versions. A server whose FLARE has another source does not start, since the effect of
the change is unknown. A version whose sources are all in the table starts, so that FLARE's fixes can be installed
before this project's next release. A site needs no row: its data are in a process without FLARE, and any version works.
`python -m medfedvqa.federation.flare.compare VERSION` prints what changed.
"""

import hashlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, Literal

import nvflare

# One reach behind NVIDIA FLARE's documented interface: how code is replaced, and the digest of the source beneath.

_MARK = "_medfedvqa_replaces"


@dataclass(frozen=True)
class Reach:
    """A piece of FLARE's code that a server's processes depend on, and why no public hook is enough."""

    target: str
    """`module:name` or `module:Class.name`."""
    kind: Literal["replaced", "written", "read", "relied on"]
    why: str
    digests: Mapping[str, tuple[str, ...]]
    """The tested versions by the SHA-256 of the source."""
    source: str | None = None
    """Where the source is, if not at the target: for an imported name, and for an attribute."""

    @property
    def name(self) -> str:
        """The target's name without its module."""
        return self.target.partition(":")[2]

    @property
    def owner(self) -> Any:
        """The module or class that has the target."""
        return resolve_name(self.target.rpartition(".")[0] if "." in self.name else self.target.partition(":")[0])

    def current(self) -> Any:
        """The object at the target now."""
        return resolve_name(self.target)

    def replace(self, replacement: Callable[..., Any]) -> None:
        """Make FLARE call `replacement` in this process. Nothing else changes a function of FLARE."""
        current = self.current()
        if current is not replacement:
            setattr(replacement, _MARK, current)
            setattr(self.owner, self.name.rpartition(".")[2], replacement)

    def replaced(self) -> bool:
        """Whether this project's function stands at the target."""
        return hasattr(self.current(), _MARK)

    def digest(self) -> str | None:
        """The SHA-256 of FLARE's source in this process, beneath any replacement; None if there is none."""
        try:
            code = resolve_name(self.source or self.target)
            while hasattr(code, _MARK):
                code = getattr(code, _MARK)
            return sha256(inspect.getsource(code))
        except (ImportError, AttributeError, OSError, TypeError):
            return None

    def has_tested_source(self) -> bool:
        """Whether the source is the one of a tested version."""
        return self.digest() in self.digests


def sha256(source: str) -> str:
    """The digest of a source, as the table holds it."""
    return hashlib.sha256(source.encode()).hexdigest()


TESTED = ("2.9.0", "2.9.1rc5")
"""Versions with which the egress and hardening tests have run; `make test-flare VERSION=...` runs them."""

_ALL = ("2.9.0", "2.9.1rc5")
"""The versions that share the source of most rows."""

UNPACK = Reach(
    "nvflare.fuel.utils.fobs.fobs:Packer.unpack",
    "replaced",
    "FLARE decodes objects of all classes on its list, and the list cannot be shortened.",
    {"05cd1805704be8590ab5285e38b039c7487f42fa063daa5e76d349f7ab2fde6b": _ALL},
)
SECTION = Reach(
    "nvflare.fuel.utils.fobs.lobs:_get_one_section",
    "replaced",
    "A message may have FLARE write a file or fetch a part from another process.",
    {"d4fec4f6ffd66b8d8408b8e76ceb8ce5317e634216722ce67cab3c05154571f3": _ALL},
)
LOAD = Reach(
    "nvflare.fuel.utils.fobs.lobs:load_from_stream",
    "replaced",
    "An error of decoding quotes the message, and FLARE sends it to others.",
    {"74600c23d3ee136f077611b010fcdc3a65795225b84aae0aa12b0e5d25a77a88": _ALL},
)
RECOMPOSE = Reach(
    "nvflare.app_common.decomposers.numpy_decomposers:NumpyArrayDecomposer.native_recompose",
    "replaced",
    "numpy allocates what an array's header states; FLARE registers its decoder first, and the first one stays.",
    {"2490186bc236c80ecb830e8b8d3322c6298374d88b0c38fe17b8707260d3cbda": _ALL},
)
FORGET = Reach(
    "nvflare.fuel.f3.streaming.byte_receiver:RxTask._schedule_remove_task",
    "replaced",
    "FLARE keeps a thread for each stream that has ended.",
    {"c8e56d1be1dc81bfe52947143861ce043c00cda099f1c5f4ca3e38a55dd012ec": _ALL},
)
TIMER = Reach(
    "nvflare.fuel.f3.streaming.byte_receiver:RxTask.cleanup_timer",
    "written",
    "The stream must look as if its timer had started.",
    {"32e8ac61ad0fe9e82794eff1ef07e8f5bb9a0f8991e2c04e4c0418efdf0f52cf": _ALL},
    source="nvflare.fuel.f3.streaming.byte_receiver:RxTask._remove_task",
)
REMOVE = Reach(
    "nvflare.fuel.f3.streaming.byte_receiver:RxTask._remove_task",
    "read",
    "Forgets a stream that has ended.",
    {"32e8ac61ad0fe9e82794eff1ef07e8f5bb9a0f8991e2c04e4c0418efdf0f52cf": _ALL},
)
INITIALIZE = Reach(
    "nvflare.fuel.utils.config_service:ConfigService.initialize",
    "replaced",
    "FLARE looks for settings in the whole kit, where jobs leave files.",
    {"9fe416cda8f4c9e339a2cacb92d247b318aa7a81e93d882b2e1f06629d7708e0": _ALL},
)
CONFIG_PATH = Reach(
    "nvflare.fuel.utils.config_service:ConfigService._config_path",
    "read",
    "Holds where FLARE looks for settings; no public function returns it.",
    {"51667044512e8c6fb1a98bf3de57d268aacd52736bb78175f14ab7a36b25cd12": _ALL},
    source="nvflare.fuel.utils.config_service:ConfigService.find_file",
)
ANY_VAR = Reach(
    "nvflare.fuel.utils.config_service:ConfigService._any_var",
    "relied on",
    "A setting keeps the first value that it gets.",
    {"6e8239b358167ad577d3df26f796db477f9417fd86ef3472c5da3b3d3d896af1": _ALL},
)
COMM_CONFIG = Reach(
    "nvflare.fuel.f3.comm_config:CommConfigurator.__init__",
    "relied on",
    "The transport's settings are read once.",
    {"833ca6d49489c4e556a8d82286e24bc31dcd7f1967c0b8e9ade44046c12131fb": _ALL},
)
UNZIP = Reach(
    "nvflare.private.fed.utils.app_deployer:unzip_all_from_bytes",
    "replaced",
    "FLARE unpacks an archive, however large, before it asks a validator.",
    {"73a1a00c9582861d26e7b3cf20c7f375baa5ecde843ebd450b06ce3c34f2baf9": _ALL},
    source="nvflare.fuel.utils.zip_utils:unzip_all_from_bytes",
)
VALIDATE_APP = Reach(
    "nvflare.private.fed.utils.app_authz:AppAuthzService.validate_app",
    "relied on",
    "Asks the validator that the guard has set, and no other.",
    {"03ffdf970b59a0a6580f48122d24909fd84d4638c1bc98883e201eb9920f18e3": _ALL},
)
DEPLOY_APP = Reach(
    "nvflare.private.fed.utils.app_deployer:AppDeployer.deploy",
    "relied on",
    "Has a job validated before it can run.",
    {"324c3c32d5fe2434bf36c3d71c8931164bd5954a0e0622e7ea937ef1c6b66f07": _ALL},
)
DEPLOY_JOB = Reach(
    "nvflare.private.fed.server.job_runner:JobRunner._deploy_job",
    "replaced",
    "FLARE keeps the files of a job that was refused, and has no event for it.",
    {"ba1138cb6fade9cf2c05499b245c68426270cf00c205f1e94c3455e96be54ecf": _ALL},
)
CLIENT_ACTIVE = Reach(
    "nvflare.apis.impl.wf_comm_server:WFCommServer.client_is_active",
    "written",
    "FLARE calls it for each heartbeat of a site, and fires no event.",
    {"f1c0044211ab41d09c498fe36b5bbf8ce8b7bfbad70b40a9bbebb0b96b3953a4": _ALL},
)
CLIENT_TASKS = Reach(
    "nvflare.apis.controller_spec:Task.client_tasks",
    "written",
    "FLARE lists an assignment twice if a site asks for it again, which kills its monitor thread.",
    {"a0f091727fcae8425eaa925f6ff51907fdc6635b595e0e7739d8453cd38ab50a": _ALL},
    source="nvflare.apis.impl.wf_comm_server:WFCommServer._do_process_task_request",
)

REACHES = tuple(row for row in list(globals().values()) if isinstance(row, Reach))
"""All rows, in the order of this file."""

PRIVATE_MODULES = frozenset(
    {
        *("nvflare.private.admin_defs", "nvflare.private.defs", "nvflare.private.privacy_manager"),
        "nvflare.private.fed.client.client_engine_executor_spec",
        *("nvflare.private.fed.client.admin", "nvflare.private.fed.client.client_req_processors"),
        *("nvflare.private.fed.simulator.simulator_const", "nvflare.private.fed.utils.app_authz"),
    }
)
"""Modules of `nvflare.private` that are imported for classes and names, and not changed."""


def problem() -> str | None:
    """Why a server must not start with the installed FLARE; None if it may."""
    unknown = [reach.name for reach in REACHES if not reach.has_tested_source()]
    if not unknown:
        return None
    others = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
    return (
        f"NVIDIA FLARE {nvflare.__version__} is installed, whose {unknown[0]}{others} this release was not tested with"
    )


def missing() -> list[str]:
    """The functions of FLARE that a server's processes must replace, but have not replaced."""
    return [reach.name for reach in REACHES if reach.kind == "replaced" and not reach.replaced()]


def is_tested() -> bool:
    """Whether the whole test suite has run with the installed version of FLARE."""
    return nvflare.__version__ in TESTED
