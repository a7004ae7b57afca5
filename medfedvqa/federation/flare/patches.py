"""Every reach behind NVIDIA FLARE's documented interface, in one table, with the digests that a new version must match.

A reach is code of FLARE that a guarded process replaces, writes to, reads, or relies on. Each row holds the SHA-256 of
that code's source in the tested versions. A site or server whose FLARE has another source does not start: nobody knows
what the change does there. A version whose sources are all in the table starts, so that a hospital can install FLARE's
fixes before this project has released. `python -m medfedvqa.federation.flare.compare VERSION` prints what changed.
"""

import nvflare

from medfedvqa.federation.flare.reach import Reach

TESTED = ("2.9.0", "2.9.1rc5")
"""Versions with which the egress and hardening tests have run; `make test-flare VERSION=...` runs them."""

SITE, SERVER = frozenset({"site"}), frozenset({"server"})
BOTH = SITE | SERVER

_ALL = ("2.9.0", "2.9.1rc5")
"""The versions that share the source of most rows."""

UNPACK = Reach(
    "nvflare.fuel.utils.fobs.fobs:Packer.unpack",
    "replaced",
    BOTH,
    "FLARE makes objects of any class on a list of its own, which can be added to but not shortened.",
    {"05cd1805704be8590ab5285e38b039c7487f42fa063daa5e76d349f7ab2fde6b": _ALL},
)
SECTION = Reach(
    "nvflare.fuel.utils.fobs.lobs:_get_one_section",
    "replaced",
    BOTH,
    "A message may have FLARE write a file or fetch a part from another process.",
    {"d4fec4f6ffd66b8d8408b8e76ceb8ce5317e634216722ce67cab3c05154571f3": _ALL},
)
LOAD = Reach(
    "nvflare.fuel.utils.fobs.lobs:load_from_stream",
    "replaced",
    BOTH,
    "An error of decoding quotes the message, and FLARE sends it to others.",
    {"74600c23d3ee136f077611b010fcdc3a65795225b84aae0aa12b0e5d25a77a88": _ALL},
)
RECOMPOSE = Reach(
    "nvflare.app_common.decomposers.numpy_decomposers:NumpyArrayDecomposer.native_recompose",
    "replaced",
    BOTH,
    "numpy makes room for what an array's header says; FLARE registers its decoder first, and the first one stays.",
    {"2490186bc236c80ecb830e8b8d3322c6298374d88b0c38fe17b8707260d3cbda": _ALL},
)
FORGET = Reach(
    "nvflare.fuel.f3.streaming.byte_receiver:RxTask._schedule_remove_task",
    "replaced",
    BOTH,
    "FLARE keeps a thread for each stream that has ended.",
    {"c8e56d1be1dc81bfe52947143861ce043c00cda099f1c5f4ca3e38a55dd012ec": _ALL},
)
TIMER = Reach(
    "nvflare.fuel.f3.streaming.byte_receiver:RxTask.cleanup_timer",
    "written",
    BOTH,
    "The stream must look as if its timer had started.",
    {"32e8ac61ad0fe9e82794eff1ef07e8f5bb9a0f8991e2c04e4c0418efdf0f52cf": _ALL},
    source="nvflare.fuel.f3.streaming.byte_receiver:RxTask._remove_task",
)
REMOVE = Reach(
    "nvflare.fuel.f3.streaming.byte_receiver:RxTask._remove_task",
    "read",
    BOTH,
    "Forgets a stream that has ended.",
    {"32e8ac61ad0fe9e82794eff1ef07e8f5bb9a0f8991e2c04e4c0418efdf0f52cf": _ALL},
)
INITIALIZE = Reach(
    "nvflare.fuel.utils.config_service:ConfigService.initialize",
    "replaced",
    BOTH,
    "FLARE looks for settings in the whole kit, where jobs leave files.",
    {"9fe416cda8f4c9e339a2cacb92d247b318aa7a81e93d882b2e1f06629d7708e0": _ALL},
)
CONFIG_PATH = Reach(
    "nvflare.fuel.utils.config_service:ConfigService._config_path",
    "read",
    BOTH,
    "Says where FLARE looks for settings; no public function does.",
    {"51667044512e8c6fb1a98bf3de57d268aacd52736bb78175f14ab7a36b25cd12": _ALL},
    source="nvflare.fuel.utils.config_service:ConfigService.find_file",
)
ANY_VAR = Reach(
    "nvflare.fuel.utils.config_service:ConfigService._any_var",
    "relied on",
    BOTH,
    "The first value of a setting is the value for good.",
    {"6e8239b358167ad577d3df26f796db477f9417fd86ef3472c5da3b3d3d896af1": _ALL},
)
COMM_CONFIG = Reach(
    "nvflare.fuel.f3.comm_config:CommConfigurator.__init__",
    "relied on",
    BOTH,
    "The transport's settings are read once.",
    {"833ca6d49489c4e556a8d82286e24bc31dcd7f1967c0b8e9ade44046c12131fb": _ALL},
)
UNZIP = Reach(
    "nvflare.private.fed.utils.app_deployer:unzip_all_from_bytes",
    "replaced",
    BOTH,
    "FLARE unpacks an archive, however large, before it asks a validator.",
    {"73a1a00c9582861d26e7b3cf20c7f375baa5ecde843ebd450b06ce3c34f2baf9": _ALL},
    source="nvflare.fuel.utils.zip_utils:unzip_all_from_bytes",
)
UNZIP_STAGED = Reach(
    "nvflare.private.fed.client.training_cmds:unzip_all_from_bytes",
    "replaced",
    BOTH,
    "FLARE unpacks an archive, however large, before it checks the signature.",
    {"73a1a00c9582861d26e7b3cf20c7f375baa5ecde843ebd450b06ce3c34f2baf9": _ALL},
    source="nvflare.fuel.utils.zip_utils:unzip_all_from_bytes",
)
VALIDATE_APP = Reach(
    "nvflare.private.fed.utils.app_authz:AppAuthzService.validate_app",
    "relied on",
    BOTH,
    "Asks the validator that the guard has set, and no other.",
    {"03ffdf970b59a0a6580f48122d24909fd84d4638c1bc98883e201eb9920f18e3": _ALL},
)
DEPLOY_APP = Reach(
    "nvflare.private.fed.utils.app_deployer:AppDeployer.deploy",
    "relied on",
    BOTH,
    "Has a job validated before it can run.",
    {"324c3c32d5fe2434bf36c3d71c8931164bd5954a0e0622e7ea937ef1c6b66f07": _ALL},
)
DEPLOY_JOB = Reach(
    "nvflare.private.fed.server.job_runner:JobRunner._deploy_job",
    "replaced",
    SERVER,
    "FLARE keeps the files of a job that was refused, and has no event for it.",
    {"ba1138cb6fade9cf2c05499b245c68426270cf00c205f1e94c3455e96be54ecf": _ALL},
)
CLIENT_ACTIVE = Reach(
    "nvflare.apis.impl.wf_comm_server:WFCommServer.client_is_active",
    "written",
    SERVER,
    "One communicator's function: FLARE tells it of each heartbeat of a site, and fires no event.",
    {"f1c0044211ab41d09c498fe36b5bbf8ce8b7bfbad70b40a9bbebb0b96b3953a4": _ALL},
)
CLIENT_TASKS = Reach(
    "nvflare.apis.controller_spec:Task.client_tasks",
    "written",
    SERVER,
    "FLARE lists an assignment twice if a site asks for it again, and its monitor thread dies of it.",
    {"a0f091727fcae8425eaa925f6ff51907fdc6635b595e0e7739d8453cd38ab50a": _ALL},
    source="nvflare.apis.impl.wf_comm_server:WFCommServer._do_process_task_request",
)
START = Reach(
    "nvflare.fuel.f3.cellnet.core_cell:CoreCell.start",
    "replaced",
    SITE,
    "A cell takes messages from its start on, and FLARE has no event between the making of a cell and its "
    "start, where the public hooks could be set.",
    {"627d734bdda7bbe39616b708a034138f68237745e37e944bbce02025df8979b8": _ALL},
)
RECEIVED = Reach(
    "nvflare.fuel.f3.cellnet.core_cell:CoreCell._process_received_msg",
    "relied on",
    SITE,
    "Asks the incoming filters before it looks at addresses, and the interceptor before it decodes.",
    {"04cc7fbf264194d9747a584670effb4400882baeef9cf6762a8c6b63d29e3162": _ALL},
)
REQUESTED = Reach(
    "nvflare.fuel.f3.cellnet.core_cell:CoreCell._process_request",
    "relied on",
    SITE,
    "Asks the filters of requests before it calls back.",
    {"9fd9dacabcf64aa9c4bf9a8f9e77e5fb30796cd84c6c9720386f229293a897e3": _ALL},
)
TRY_CALL = Reach(
    "nvflare.fuel.f3.cellnet.core_cell:CoreCell._try_cb",
    "relied on",
    SITE,
    "A hook that fails stops the message.",
    {"8e62d8dd26d919c566c2a559c1ff66b9560c868a775d11c3c49e54cac7bed4ac": _ALL},
)
FIND = Reach(
    "nvflare.fuel.f3.cellnet.registry:Registry.find",
    "relied on",
    SITE,
    "A filter of all messages is asked unless another one names the channel.",
    {"bcaee6cf314ac09dbbe89f001ea728bc13c00744a6229c17370a19f4497d0be4": _ALL},
)
SEND = Reach(
    "nvflare.fuel.f3.cellnet.core_cell:CoreCell._send_to_endpoint",
    "replaced",
    SITE,
    "Outgoing filters do not see messages that are passed on or returned, and see those of a channel only "
    "while no other filter names it.",
    {"e3f1fac80ee474ca0638a2a8f838b25cd44f0e565ba2f1fccdebe7288312aac3": _ALL},
)
SEND_FRAME = Reach(
    "nvflare.fuel.f3.sfm.sfm_conn:SfmConnection.send_frame",
    "replaced",
    SITE,
    "The one function that all bytes pass; heartbeats and handshakes pass no filter.",
    {"0633ffbff57720b9303128fb4a5acbc7328b9d9cd5fbd3c301438e6aab9442e6": _ALL},
)
HEADERS = Reach(
    "nvflare.fuel.f3.sfm.sfm_conn:SfmConnection.headers_to_bytes",
    "relied on",
    SITE,
    "Says how long a frame's headers are.",
    {"ed3bd87be39c66ccb32f5dc07896881435a062e188751afc26a686bc2bbc8ed1": _ALL},
)
SEND_BLOB = Reach(
    "nvflare.fuel.f3.stream_cell:StreamCell.send_blob",
    "replaced",
    SITE,
    "Filters see the parts of a stream, and not the result that it carries.",
    {"8c43ce08168fb241dbd58159fc15e9f121993b0067ac7d74ef9e97b0d8348f12": _ALL},
)
ADD_CONNECTOR = Reach(
    "nvflare.fuel.f3.communicator:Communicator.add_connector",
    "replaced",
    SITE,
    "Compiled transports open connections that Python's audit hook does not see.",
    {"3c51c5a306aa1b8667e867935cc8f269efa70c1f5d11ee990e7bec32a47d3e05": _ALL},
)
LOCAL_ADDRESS = Reach(
    "nvflare.private.fed.authenticator:_get_client_ip",
    "relied on",
    SITE,
    "Without a datagram socket it registers with the loopback address.",
    {"730810d3fecb86b69150750dd58558bad04561446e67701b236df95b47624c70": _ALL},
)
PUBLIC_PROPS = Reach(
    "nvflare.apis.fl_context:FLContext.get_all_public_props",
    "replaced",
    SITE,
    "Contexts travel inside of results, where filters of messages do not see them.",
    {"53b1ed213e93aa5a0d243a13206abdaf6dc68eeb95cd1fee201c5e87616a2f76": _ALL},
)
SITE_CONFIG = Reach(
    "nvflare.private.fed.app.fl_conf:project_site_config",
    "replaced",
    SITE,
    "FLARE sends the server what a site's resources.json holds.",
    {"93aaffb3b2785b1af6c6aaf711b9e9c4233886bc813d46f7cc2a9e0519693c3a": _ALL},
    source="nvflare.private.fed.utils.site_config:project_site_config",
)
SUBMIT = Reach(
    "nvflare.private.fed.client.communicator:Communicator.submit_update",
    "replaced",
    SITE,
    "FLARE's events of a result come before its last changes, and cannot stop it.",
    {"07fa37a830bf521704a97ca77fef66ab7e4ad835226443d7ff23418c537477c2": _ALL},
)
QUESTION = Reach(
    "nvflare.private.aux_runner:AuxRunner._send_to_cell",
    "replaced",
    SITE,
    "Auxiliary requests are streams, whose contents filters do not see.",
    {"8fdbc827e048466c4ac1bbb7cbdc019b28b9a8f9394beba875baefb077d0c4f1": _ALL},
)
PROCESSORS = Reach(
    "nvflare.private.fed.client.client_req_processors:ClientRequestProcessors.request_processors",
    "written",
    SITE,
    "FLARE registers commands of its own, such as a shell, with every client.",
    {"13ed003d856ba283bb5f1d7a1fd5fd8ca000602f8dbdec107e3748fb2e3ffc7c": _ALL},
    source="nvflare.private.fed.client.client_req_processors:ClientRequestProcessors",
)
DISPATCH = Reach(
    "nvflare.private.fed.client.admin:FedAdminAgent.register_cell_cb",
    "relied on",
    SITE,
    "Administrative requests come on one channel, past the filters of requests.",
    {"ceb8eb8a081cced46440909e0c2a857c64aedeaa0a4303a578eb2a0eb37377db": _ALL},
)

REACHES = tuple(row for row in list(globals().values()) if isinstance(row, Reach))
"""All rows, in the order of this file."""

PRIVATE_MODULES = frozenset(
    {
        *("nvflare.private.admin_defs", "nvflare.private.defs", "nvflare.private.privacy_manager"),
        "nvflare.private.fed.client.client_engine_executor_spec",
        "nvflare.private.fed.client.client_req_processors",
        *("nvflare.private.fed.simulator.simulator_const", "nvflare.private.fed.utils.app_authz"),
    }
)
"""Modules of `nvflare.private` that are imported for classes and names, and not changed."""


def problem(party: str) -> str | None:
    """Why a process of the party, `site` or `server`, must not start with the installed FLARE; None if it may."""
    unknown = [reach.name for reach in REACHES if party in reach.parties and not reach.has_tested_source()]
    if not unknown:
        return None
    others = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
    return (
        f"NVIDIA FLARE {nvflare.__version__} is installed, whose {unknown[0]}{others} this release was not tested with"
    )


def missing(party: str) -> list[str]:
    """Functions of FLARE that are to be replaced in the party's processes, and are not."""
    rows = (reach for reach in REACHES if party in reach.parties and reach.kind == "replaced")
    return [reach.name for reach in rows if not reach.replaced()]


def is_tested() -> bool:
    """Whether all tests have run with the version that is installed, and not only its reached code is known."""
    return nvflare.__version__ in TESTED
