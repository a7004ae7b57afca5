"""The guard of a site's processes: they send and answer nothing but the project's own messages.

FLARE's (2.9) own settings are not enough. It consults a site's `authorization.json` only if the request asks for that,
finds its settings by walking folders in which jobs leave files, and answers diagnostic requests from anybody. The guard
therefore changes the running process: FLARE makes `SiteGuard` from `local/egress__resources.json`, before it connects.
"""

import logging
import os
from pathlib import Path
from typing import Any, NoReturn

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import CellChannel, CellChannelTopic, MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL
from nvflare.private import admin_defs
from nvflare.private.defs import RequestHeader, SysCommandTopic, TrainingTopic
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.private.privacy_manager import PrivacyService
from nvflare.security.logging import SECURE_LOGGING_VAR_NAME, is_secure

from audits import AuditKey, AuditLog, LogError, NoteError, origin_of
from audits.announcements import announce_to
from medfedvqa.errors import ConfigError
from medfedvqa.federation.flare import kit_contents, patches, pinned_settings
from medfedvqa.federation.flare.allowed_messages import (
    CHANNEL,
    JOB_REQUESTS,
    NOTICE,
    STREAM_TOPICS,
    is_job_id,
    subject,
)
from medfedvqa.federation.flare.allowed_types import decode_listed_only
from medfedvqa.federation.flare.cell_hooks import before_start
from medfedvqa.federation.flare.connections import PinnedAddress, RefusedConnections, pin_cells
from medfedvqa.federation.flare.ended_streams import forget_ended_streams
from medfedvqa.federation.flare.frame_counts import WireLedger, installed
from medfedvqa.federation.flare.job_schema import EXECUTOR
from medfedvqa.federation.flare.join_watch import JoinWatch
from medfedvqa.federation.flare.result_guard import check_questions, check_results
from medfedvqa.federation.flare.validator import ask_own_validator_first
from medfedvqa.federation.live_processes import live_processes

ADMIN_TOPICS = frozenset(
    {
        *(TrainingTopic.START_JOB, TrainingTopic.DEPLOY, TrainingTopic.ABORT, TrainingTopic.ABORT_TASK),
        *(TrainingTopic.DELETE_RUN, TrainingTopic.CHECK_STATUS, TrainingTopic.SHUTDOWN, TrainingTopic.RESTART),
        *(TrainingTopic.CHECK_RESOURCE, TrainingTopic.CANCEL_RESOURCE, TrainingTopic.NOTIFY_JOB_STATUS),
        *(TrainingTopic.GET_SCOPES, SysCommandTopic.REPORT_VERSION),
    }
)
"""The server's requests that a site answers: to run jobs, and to report its presence; no shell, no logs."""

_COMMANDS = {"abort", "abort_task", "shutdown", "check_status"}
_SERVER = "server"
_PUBLIC = {
    *(ReservedKey.RUN_NUM, ReservedKey.IDENTITY_NAME, ReservedKey.FQSN, ReservedKey.IS_LEAF),
    *(ReservedKey.CLIENT_NAME, ReservedKey.CURRENT_JOB_ID),
}
"""The properties of FLARE's contexts that may leave a site: its name and its job's id."""

_logger = logging.getLogger(__name__)


class SiteGuard(FLComponent):
    """Installs hardening and byte ledger in this process, or ends the process with a sentence."""

    def __init__(self, site: str) -> None:
        super().__init__()
        parser = pinned_settings.parser()
        parser.add_argument("--parent_url", "-p")
        arguments = parser.parse_known_args()[0]
        self.site, self.job = site, arguments.job_id
        self.kit = Path(arguments.workspace)
        self._watch = JoinWatch(self.kit)
        try:
            if reason := kit_contents.kit_problem(self.kit, "site"):
                _refuse(reason)
            os.umask(0o077)
            places = kit_contents.audit_places(self.kit)
            if places.system_log is not None:
                _announce_to(places.system_log, site)
            folder, key = places.folder, AuditKey.at(places.key, origin_of(site))
            if self.job is None and live_processes(folder).site:
                # The server would take the newer one for the site, and give the older one's jobs up.
                _refuse("another process of this site lives on this machine: stop it first")
            ledger = WireLedger(folder, site, self.job, key)
            url = kit_contents.server_url(self.kit) if self.job is None else str(arguments.parent_url)
            refused = RefusedConnections(AuditLog(folder, site, key), self.job)
            address = PinnedAddress(url, refused.note)
        except (ConfigError, LogError, NoteError) as error:
            _refuse(str(error))
        except OSError as error:
            _refuse(f"the byte ledger cannot be kept beside the audit log ({error.strerror}): make the folder writable")
        _pin(self.kit)
        _tell_nothing(site)
        _answer_only_what_is_listed(site, self.job)
        check_results(ledger)
        check_questions()
        forget_ended_streams()
        decode_listed_only()
        ledger.install()
        pin_cells(url, refused.note)
        address.install()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Check the guard again before a site registers, and in a job's process each class before it is made."""
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            if reason := _not_in_force(self.kit, fl_ctx):
                _refuse(reason)
            ask_own_validator_first()
            self._watch.start()
        elif event_type == EventType.SYSTEM_START:
            self._watch.joined()
        elif event_type == EventType.BEFORE_BUILD_COMPONENT:
            pinned_settings.refuse_other_classes(fl_ctx, EXECUTOR, "site")


def require_guard() -> None:
    """End this process unless it is guarded: a site whose kit lacks the guard does not run."""
    if installed() is None:
        _refuse(f"guard: it is not installed; put back local/{kit_contents.GUARDED}, which provisioning wrote")


def _announce_to(socket: Path, site: str) -> None:
    try:
        announce_to(socket, site)
    except OSError as error:
        raise ConfigError(
            f"the machine's log that `system_log` of site.yml names cannot be reached ({error.strerror}): write the "
            "right socket, or null"
        ) from None


def _refuse(reason: str) -> NoReturn:
    pinned_settings.stop(f"This site does not join the federation. {reason}.")


def _pin(kit: Path) -> None:
    os.environ[SECURE_LOGGING_VAR_NAME] = "true"
    # Weights come from the site's own disk. Without this, huggingface_hub contacts its server even for cached ones.
    os.environ["HF_HUB_OFFLINE"] = "1"
    pinned_settings.pin_settings(kit)
    if missing := pinned_settings.not_pinned(kit):
        _refuse(f"not in force: {', '.join(missing)}; provision the kit again")
    # FLARE sends the content of a site's resources.json to the server, which forwards it to all sites.
    patches.SITE_CONFIG.replace(lambda config_data: {})
    processors = ClientRequestProcessors.request_processors
    processors[:] = [processor for processor in processors if ADMIN_TOPICS.issuperset(processor.get_topics())]


def _not_in_force(kit: Path, fl_ctx: FLContext) -> str | None:
    """The parts of the hardening that do not hold in this process, according to the objects that FLARE itself uses."""
    topics = {topic for one in ClientRequestProcessors.request_processors for topic in one.get_topics()}
    scopes = getattr(PrivacyService.get_manager(), "name_to_scopes", {})
    conditions = {
        "administrative commands": topics <= ADMIN_TOPICS,
        "job validator": pinned_settings.has_own_validator(),
        "one privacy scope": len(scopes) == 1,
        "secure logging": is_secure(),
        "mutual TLS": bool(fl_ctx.get_prop(FLContextKey.SECURE_MODE)),
        "byte ledger": installed() is not None,
        "rights": pinned_settings.pin_rights(pinned_settings.RIGHTS),
    }
    missing = pinned_settings.not_in_force(kit, "site", conditions)
    return f"not in force: {', '.join(missing)}; provision the kit again" if missing else None


def _tell_nothing(site: str) -> None:
    """Limit the contexts that travel with this site's messages to names and ids."""
    public = patches.PUBLIC_PROPS.current()

    def get_all_public_props(context: FLContext) -> dict[str, Any]:
        properties = public(context)
        if properties.get(ReservedKey.IDENTITY_NAME, site) != site:
            return dict(properties)  # the context is another party's
        return {name: value for name, value in properties.items() if name in _PUBLIC and isinstance(value, str | bool)}

    patches.PUBLIC_PROPS.replace(get_all_public_props)


def _answer_only_what_is_listed(site: str, job: str | None) -> None:
    """Refuse other requests before they are decoded, and check administrative ones again after that."""

    def unlisted(message: Message, cell: str) -> Message | None:
        if message.get_header(MessageHeaderKey.DESTINATION) != cell:
            return None  # the site forwards it, and the byte ledger checks it
        if _listed(subject(message.headers), str(message.get_header(MessageHeaderKey.ORIGIN)), site, job):
            return None
        _logger.warning("a request that this site does not answer was refused")
        return make_reply(ReturnCode.INVALID_REQUEST)

    def administration(message: Message) -> Message | None:
        if message.get_header(MessageHeaderKey.CHANNEL) != CellChannel.CLIENT_MAIN:
            return None
        if isinstance(message.payload, admin_defs.Message) and _permitted(message.payload):
            return None
        _logger.warning("an administrative request that this site does not answer was refused")
        return Message({}, admin_defs.error_reply("this site does not answer that"))

    def set_hooks(cell: CoreCell) -> None:
        cell.set_message_interceptor(unlisted, cell.get_fqcn())
        cell.add_incoming_request_filter(channel="*", topic="*", cb=administration)

    before_start(set_hooks)


def _listed(request: tuple[str, str], origin: str, site: str, job: str | None) -> bool:
    """Whether a process takes this request from this origin."""
    channel, topic = request
    if channel == STREAM_CHANNEL:
        return topic in STREAM_TOPICS
    if channel == CellChannel.RETURN_ONLY or request == (CellChannel.CELLNET, CellChannelTopic.Bye):
        return True
    if job is None:
        from_own_job = origin.startswith(f"{site}.")
        return request == NOTICE and from_own_job or request == (CellChannel.CLIENT_MAIN,) * 2 and origin == _SERVER
    if channel == CHANNEL:
        return origin.endswith(f".{job}")
    return request in JOB_REQUESTS and origin == f"{_SERVER}.{job}" or _is_command(request, origin, site)


def _is_command(request: tuple[str, str], origin: str, site: str) -> bool:
    return request[0] == CellChannel.CLIENT_COMMAND and request[1] in _COMMANDS and origin == site


def _permitted(request: admin_defs.Message) -> bool:
    """The job id becomes a folder name in the kit, so only UUIDs are accepted: `local` would name the settings."""
    job = request.get_header(RequestHeader.JOB_ID)
    return request.topic in ADMIN_TOPICS and (job is None or is_job_id(job))
