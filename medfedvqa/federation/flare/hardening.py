"""The guard limits a site's FLARE processes, its couriers, to this project's jobs and a few commands.

They hold no rows, models, keys or log: see `medfedvqa.vault`. The guard keeps whoever controls FLARE away from the
account's other files, by FLARE's own interfaces only. FLARE makes `SiteGuard` from `local/egress__resources.json`.
"""

import logging
import os
import threading
from pathlib import Path
from typing import Any, NoReturn

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.defs import ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message
from nvflare.private import admin_defs
from nvflare.private.defs import RequestHeader, SysCommandTopic, TrainingTopic
from nvflare.private.fed.client.admin import RequestProcessor
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.private.privacy_manager import PrivacyService
from nvflare.security.logging import SECURE_LOGGING_VAR_NAME, is_secure

from medfedvqa.atomic_files import hold
from medfedvqa.errors import ConfigError
from medfedvqa.federation import proxies
from medfedvqa.federation.flare import kit_contents, pinned_settings, validator
from medfedvqa.federation.flare.doctor_checks import address_in, server_checks, site_settings
from medfedvqa.federation.flare.run_folder import EXECUTOR
from medfedvqa.federation.live_processes import COURIER
from medfedvqa.vault.courier import report_refusal
from medfedvqa.vault.place import VaultPlace

# Says in a site's log why it has not joined: FLARE (2.9) tries for ever, and logs the errors of its transport only.

PATIENCE = 30.0
"""Seconds in which a site joins a server that it reaches."""

_logger = logging.getLogger(__name__)


class JoinWatch:
    """Waits for a site to join; after `PATIENCE` it makes the checks of `medfedvqa doctor --server` once."""

    def __init__(self, kit: Path) -> None:
        self._kit, self._address = kit, address_in(site_settings(kit))
        self._timer = threading.Timer(PATIENCE, self._explain)
        self._timer.daemon = True

    def start(self) -> None:
        """Start the timer: the site is about to register."""
        if self._address is not None and proxies.in_environment(self._address.host):
            _logger.warning("this environment names a proxy. %s", proxies.REMEDY)
        self._timer.start()

    def joined(self) -> None:
        """Cancel the timer: the site has registered."""
        self._timer.cancel()

    def _explain(self) -> None:
        for check in server_checks(self._kit / "startup", "client", self._address):
            if not check.ok:
                _logger.warning("this site has not joined. %s: %s; %s", check.name, check.problem, check.remedy)


ADMIN_TOPICS = frozenset(
    {
        *(TrainingTopic.START_JOB, TrainingTopic.DEPLOY, TrainingTopic.ABORT, TrainingTopic.ABORT_TASK),
        *(TrainingTopic.DELETE_RUN, TrainingTopic.CHECK_STATUS, TrainingTopic.SHUTDOWN, TrainingTopic.RESTART),
        *(TrainingTopic.CHECK_RESOURCE, TrainingTopic.CANCEL_RESOURCE, TrainingTopic.NOTIFY_JOB_STATUS),
        *(TrainingTopic.GET_SCOPES, SysCommandTopic.REPORT_VERSION),
    }
)
"""The server's requests that a site answers: to run jobs, and to report its presence; no shell, no logs."""

_DIAGNOSTICS = "_net_manager"
"""FLARE's channel for questions about its cells."""

_installed: list["SiteGuard"] = []


class SiteGuard(FLComponent):
    """Limits what this process does for a server or a job; ends the process with a message if it cannot."""

    def __init__(self, site: str) -> None:
        super().__init__()
        arguments = pinned_settings.parser().parse_known_args()[0]
        self.kit = Path(arguments.workspace)
        self._watch = JoinWatch(self.kit)
        if reason := kit_contents.kit_problem(self.kit, "site"):
            _refuse(reason)
        os.umask(0o077)
        os.environ[SECURE_LOGGING_VAR_NAME] = "true"
        if arguments.job_id is None:
            # Only this process parses jobs; it has the schema before an upgrade can change the file.
            import medfedvqa.federation.flare.job_schema  # noqa: F401

            try:
                kit_contents.require_settings(self.kit)
                self._lock = hold(self.kit / COURIER)
            except ConfigError as error:
                _refuse(str(error))
            except OSError as error:
                _refuse(f"the kit's folder cannot be written ({error.strerror}): give it to the site's account")
            if self._lock is None:
                # The server would treat the newer process as the site, and give up the older one's jobs.
                _refuse("another process of this site is running on this machine: stop it first")
            place = VaultPlace.of_kit(self.kit)
            validator.report_refusals(lambda code, job, digest: report_refusal(place, code, job, digest))
        pinned_settings.fix_settings()
        _answer_only_what_is_listed()
        _installed.append(self)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Verify the guard before a site registers, and in a job's process each class before FLARE instantiates it."""
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            if missing := _not_in_force(fl_ctx):
                _refuse(f"not in force: {', '.join(missing)}; provision the kit again")
            validator.ask_own_validator_first()
            answer_no_diagnostics(fl_ctx)
            self._watch.start()
        elif event_type == EventType.SYSTEM_START:
            self._watch.joined()
        elif event_type == EventType.BEFORE_BUILD_COMPONENT:
            pinned_settings.refuse_other_classes(fl_ctx, EXECUTOR, "site")


def require_guard() -> None:
    """End this process unless it is guarded: a site whose kit lacks the guard does not run."""
    if not _installed:
        _refuse(f"guard: it is not installed; put back local/{kit_contents.GUARDED}, which provisioning wrote")


def _refuse(reason: str) -> NoReturn:
    pinned_settings.stop(f"This site does not join the federation. {reason}.")


def _not_in_force(fl_ctx: FLContext) -> list[str]:
    """The parts of the guard that do not hold in this process, according to the objects that FLARE itself uses."""
    scopes = getattr(PrivacyService.get_manager(), "name_to_scopes", {})
    conditions = {
        "administrative commands": all(isinstance(one, _Listed) for one in ClientRequestProcessors.request_processors),
        "job validator": pinned_settings.has_own_validator(),
        "one privacy scope": len(scopes) == 1,
        "secure logging": is_secure(),
        "mutual TLS": bool(fl_ctx.get_prop(FLContextKey.SECURE_MODE)),
        "rights": pinned_settings.pin_rights(pinned_settings.RIGHTS),
    }
    return pinned_settings.not_fixed() + [name for name, holds in conditions.items() if not holds]


class _Listed(RequestProcessor):
    """Passes listed requests with a valid job id, or none, to a processor of FLARE, and refuses all others.

    FLARE (2.9) checks the site's rights only if the request asks for it. It empties the kit's folder that has the job's
    id as its name: the id `local` would delete the settings.
    """

    def __init__(self, flares: RequestProcessor) -> None:
        self._flares = flares

    def get_topics(self) -> list[str]:
        """See FLARE's `RequestProcessor`."""
        return [str(topic) for topic in self._flares.get_topics()]

    def process(self, req: admin_defs.Message, app_ctx: Any) -> admin_defs.Message:
        """See FLARE's `RequestProcessor`."""
        job = req.get_header(RequestHeader.JOB_ID)
        if req.topic in ADMIN_TOPICS and (job is None or validator.is_job_id(job)):
            return self._flares.process(req, app_ctx)
        _logger.warning("an administrative request that this site does not answer was refused")
        return admin_defs.error_reply("this site does not answer that")


def answer_no_diagnostics(fl_ctx: FLContext) -> None:
    """Make this process refuse diagnostic requests; FLARE answers them with command lines, settings and peers."""

    def refused(message: Message) -> Message:
        _logger.warning("a question for this site's diagnostics was refused")
        return make_reply(ReturnCode.INVALID_REQUEST)

    cell = fl_ctx.get_engine().get_cell().core_cell
    cell.add_incoming_request_filter(channel=_DIAGNOSTICS, topic="*", cb=refused)


def _answer_only_what_is_listed() -> None:
    processors = ClientRequestProcessors.request_processors
    processors[:] = [_Listed(one) for one in processors]
