"""What a lying server's job process loads in tests only: in the place of the honest workflow it plays an attack.

The file `attack` in `folder` names it; what came of it is written to `outcome.json` beside it.
"""

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from taps import HostileServer

if TYPE_CHECKING:
    from lying_server import Liar

ATTACK, OUTCOME = "attack", "outcome.json"
PATIENCE = 240.0
"""Seconds after which a site that does not answer hangs."""


class LyingWorkflow(HostileServer):
    """Plays the attack that the file names."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        # After the guard was put out of the way, whose check the module takes over when it is imported.
        from medfedvqa.federation.flare.controller import FederationController

        def control_flow(controller: Controller, abort_signal: Signal, fl_ctx: FLContext) -> None:
            # FLARE's processes wait for each other, not for ever: what imports torch is imported with the first task.
            from server_lies import LIES

            lie = LIES[(Path(folder) / ATTACK).read_text()]
            sites = tuple(sorted(client.name for client in fl_ctx.get_engine().get_clients()))
            outcome = lie.play(_liar(controller, fl_ctx), sites)
            (Path(folder) / OUTCOME).write_text(json.dumps(outcome))

        FederationController.control_flow = control_flow


def _liar(controller: Any, fl_ctx: FLContext) -> "Liar":
    from lying_server import Answer, Liar

    from medfedvqa.federation.job import JobSpec

    class FlareLiar(Liar):
        """Sends tasks of its own making through FLARE, and reads the answers itself."""

        job = JobSpec.from_dict(controller.job)

        def ask(self, task: str, round: int, messages: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, Answer]:
            answers: dict[str, Answer] = {}
            changed = threading.Condition()

            def received(client_task: ClientTask, fl_ctx: FLContext) -> None:
                with changed:
                    result = client_task.result
                    code = result.get("medfedvqa_reason", "")
                    answers[client_task.client.name] = Answer(result.get("medfedvqa_tensors") or {}, code)
                    changed.notify_all()

            for site, tensors in messages.items():
                message = Shareable()
                message["medfedvqa_round"], message["medfedvqa_tensors"] = round, dict(tensors)
                sent = Task(name=task, data=message, result_received_cb=received)
                controller.send(sent, fl_ctx, targets=[site])
            with changed:
                assert changed.wait_for(lambda: len(answers) == len(messages), PATIENCE), f"a site hangs in {task}"
            return {site: answers[site] for site in messages}

    return FlareLiar()
