"""The FLARE controller that runs a job's loop at the server."""

from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.private.fed.simulator.simulator_const import SimulatorConstants

from medfedvqa.federation.flare.server_guard import require_server_guard


class FederationController(Controller):
    """Runs one job. All of its sites must answer every task that they are sent."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__()
        self.job = job

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Require the server's guard before the first task, except in FLARE's simulator."""
        if fl_ctx.get_job_id() != SimulatorConstants.JOB_NAME:
            require_server_guard()

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to do after the last task."""

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """Drop a late answer to a task that is over."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """See `serve_on_flare`."""
        # FLARE's processes wait for each other, not for ever, until they have made their components; torch takes
        # seconds to import, or minutes on a busy machine.
        from medfedvqa.federation.flare.server_side import serve_on_flare

        serve_on_flare(self, self.job, fl_ctx, abort_signal)
