"""What a lying server's job process loads in tests only: in the place of the honest workflow it plays an attack.

The file `attack` in `folder` names it; what came of it is written to `outcome.json` beside it.
"""

import json
import threading
from collections.abc import Callable, Mapping
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
    from lying_server import Answer, Liar

ATTACK, OUTCOME = "attack", "outcome.json"
PATIENCE = 240.0
"""Seconds after which a site that does not answer hangs."""

Outcome = dict[str, Any]


class LyingWorkflow(HostileServer):
    """Plays the attack that the file names."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        # After the guard was put out of the way, whose check the module takes over when it is imported.
        from medfedvqa.federation.flare.controller import FederationController

        def control_flow(controller: Controller, abort_signal: Signal, fl_ctx: FLContext) -> None:
            attack = ATTACKS[(Path(folder) / ATTACK).read_text()]
            sites = tuple(sorted(client.name for client in fl_ctx.get_engine().get_clients()))
            outcome = attack(_liar(controller, fl_ctx), sites)
            (Path(folder) / OUTCOME).write_text(json.dumps(outcome))

        FederationController.control_flow = control_flow


def _liar(controller: Any, fl_ctx: FLContext) -> "Liar":
    # FLARE's processes wait for each other, not for ever: what imports torch is imported with the first task.
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


def codes(answers: "Mapping[str, Answer]") -> list[str]:
    """Of the answers, empty for one that is no refusal."""
    return [answer.code for _, answer in sorted(answers.items())]


def rewound_sum(server: "Liar", sites: tuple[str, ...]) -> Outcome:
    """Finding 1: `train` of round 2 over four sites, `evaluate`, `train` of round 2 again over three."""
    from lying_sums import ROWS, averaged_shapes, mean_of

    shapes = averaged_shapes(server.job)
    server.tell("start", 1, sites)
    first = server.mean("start", 1, sites, list(shapes), ROWS)
    assert first is not None
    down = mean_of(first, shapes)
    server.tell("train", 2, sites, down)
    four = server.mean("train", 2, sites, list(shapes), ROWS)
    assert four is not None
    server.tell("evaluate", 2, sites, mean_of(four, shapes))
    again = codes(server.tell("train", 2, sites[:3], down))
    three = server.mean("train", 2, sites[:3], list(shapes), ROWS)
    return {"again": again, "opened": three is not None}


def searched_number(server: "Liar", sites: tuple[str, ...]) -> Outcome:
    """Finding 2: a round whose number the server chose, in a job of two rounds."""
    return {"again": codes(server.tell("start", 35, sites))}


def rewound_mixture(server: "Liar", sites: tuple[str, ...]) -> Outcome:
    """Finding 3: mixtures of rounds 1, 2 and 1."""
    from lying_dealer import Deal

    rounds = (("start", 1), ("train", 2))
    mixed = []
    for task, round in rounds:
        server.tell(task, round, sites)
        mixed.append(Deal(server, task, round, sites, sites).play().completed)
    again = codes(server.tell("start", 1, sites))
    mixed.append(Deal(server, "start", 1, sites, sites).play().completed)
    return {"again": again, "mixed": [len(completed) for completed in mixed]}


def rewound_training(server: "Liar", sites: tuple[str, ...]) -> Outcome:
    """Finding 5: under differential privacy, `start` again after the last round, and then the last round."""
    start = server.tell("start", 1, sites)
    shared = {
        site: {name: answer.tensors[name] for name in ("prompt.image", "prompt.text")} for site, answer in start.items()
    }
    server.ask("train", 2, shared)
    again = codes(server.tell("start", 1, sites))
    return {"again": again + codes(server.ask("train", 2, shared))}


ATTACKS: dict[str, Callable[["Liar", tuple[str, ...]], Outcome]] = {
    attack.__name__: attack for attack in (rewound_sum, searched_number, rewound_mixture, rewound_training)
}
