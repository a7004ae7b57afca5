"""Measures an exchange among sites: each sends to every other, then receives from every other.

In one provisioned federation on loopback it compares single frames between FLARE's cells
(`medfedvqa.federation.flare.site_mail`) with FLARE's auxiliary messages, each with a receipt. Seconds per exchange at
the slowest site, messages unencrypted; training and CrypTen are not in it.
"""

import argparse
import contextlib
import json
import queue
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from nvflare.apis.controller_spec import Task
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.job_config.api import FedJob
from nvflare.recipe.spec import Recipe

from medfedvqa.federation.flare.loopback import LoopbackFederation
from medfedvqa.federation.flare.recipe import TASK_INTERVAL
from medfedvqa.federation.flare.server_side import RESULTS
from medfedvqa.federation.flare.site_mail import SiteMail
from medfedvqa.federation.site_config import site_yaml

SIZES = {"64 B": 64, "0.5 MB": 500_000, "5 MB": 5_000_000}
WAYS = ("receipts", "frames")
HOUR = 3600.0  # seconds


class Receipts:
    """Mail as auxiliary messages, each with a receipt, and with a thread for each peer."""

    def __init__(self, flare) -> None:
        self._flare, self._boxes = flare, defaultdict(queue.SimpleQueue)
        self._outgoing = {}
        flare.register_aux_message_handler("receipts", self._received)

    def send(self, to: str, message: bytes) -> None:
        if to not in self._outgoing:
            self._outgoing[to] = queue.SimpleQueue()
            threading.Thread(target=self._deliver, args=(to, self._outgoing[to]), daemon=True).start()
        self._outgoing[to].put(message)

    def receive(self, sender: str, timeout: float) -> bytes:
        return self._boxes[sender].get(timeout=timeout)

    def _deliver(self, to: str, outgoing: "queue.SimpleQueue[bytes]") -> None:
        while True:
            request = Shareable()
            request["bytes"] = outgoing.get()
            with self._flare.new_context() as context:
                while True:
                    replies = self._flare.send_aux_request([to], "receipts", request, 10.0, context, optional=True)
                    if to in replies and replies[to].get_return_code() == ReturnCode.OK:
                        break
                    time.sleep(0.2)

    def _received(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        self._boxes[fl_ctx.get_peer_context().get_identity_name()].put(request["bytes"])
        return make_reply(ReturnCode.OK)


class Exchanges(Executor):
    """A site of the benchmark."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.START_RUN:
            flare = fl_ctx.get_engine()
            frames = SiteMail(flare, fl_ctx.get_job_id()).attempt("benchmark")
            self.ways = {"receipts": Receipts(flare), "frames": frames}

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        me, relay = fl_ctx.get_identity_name(), self.ways[shareable["way"]]
        others = [site for site in shareable["sites"] if site != me]
        message, seconds = bytes(shareable["size"]), []
        for _ in range(shareable["count"]):
            began = time.monotonic()
            for other in others:
                relay.send(other, message)
            for other in others:
                assert len(relay.receive(other, 60)) == len(message)
            seconds.append(time.monotonic() - began)
        reply = make_reply(ReturnCode.OK)
        reply["seconds"] = seconds
        return reply


class Measurements(Controller):
    """The server of the benchmark."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to do."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to do."""

    def process_result_of_unknown_task(self, client, task_name, client_task_id, result, fl_ctx) -> None:
        """Nothing: there is no unknown task."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        flare, rows = fl_ctx.get_engine(), []
        sites = sorted(client.name for client in flare.get_clients())
        for size in SIZES:
            for way in WAYS:
                for count in (2, self.count):  # the first exchanges are slower
                    seconds = self._measure(sites, way, SIZES[size], count, fl_ctx, abort_signal)
                rows.append([size, way, seconds])
        out = Path(flare.get_workspace().get_run_dir(fl_ctx.get_job_id())) / RESULTS
        out.mkdir()
        (out / "mail.json").write_text(json.dumps(rows))

    def _measure(self, sites, way, size, count, fl_ctx, abort_signal) -> list[float]:
        """Seconds of each exchange at the slowest site."""
        message, by_site = Shareable(), []
        message.update({"sites": sites, "way": way, "size": size, "count": count})

        def received(client_task, fl_ctx) -> None:
            by_site.append(client_task.result["seconds"])

        task = Task(name="exchange", data=message, result_received_cb=received)
        self.broadcast_and_wait(task, fl_ctx, targets=sites, min_responses=len(sites), abort_signal=abort_signal)
        return [max(row) for row in zip(*by_site, strict=True)]


class Federation(LoopbackFederation):
    """Kits that also run the benchmark's classes."""

    def start(self, name: str) -> None:
        path = self.kits / name / "local" / "resources.json.default"
        resources = json.loads(path.read_text())
        resources["class_allow_list"].append("mail.")
        path.write_text(json.dumps(resources))
        super().start(name)


@contextlib.contextmanager
def federation(count: int, folder: Path) -> Iterator[Federation]:
    """A federation of this many sites without data."""
    sites = {f"site{number}": folder / f"site{number}.yml" for number in range(count)}
    places = {key: f"../{key}" for key in ("state", "audit", "ledger", "identity")}
    for path in sites.values():
        path.write_text(site_yaml(reader="phantom", organ="chest", methods=[], **places))
    with Federation(folder, sites, {"PYTHONPATH": ":".join(path for path in sys.path if path)}) as running:
        yield running


def export(folder: Path, count: int) -> None:
    """The benchmark as a job folder."""
    import mail  # FLARE names classes by their modules, and this one's name is __main__

    job = FedJob(name="mail", min_clients=1)
    job.set_app_packages(["mail"])
    job.to_server(mail.Measurements(count))
    job.to_clients(mail.Exchanges())
    recipe = Recipe(job)
    inline = {"np_download_chunk_size": 0, "tensor_download_chunk_size": 0}
    recipe.add_server_config({"server": {"task_request_interval": TASK_INTERVAL}, **inline})
    recipe.add_client_config(inline)
    recipe.export(str(folder))


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, nargs="+", default=[3, 5])
    parser.add_argument("--count", type=int, default=20, help="exchanges of each kind")
    arguments = parser.parse_args()
    print("sites | message | way      | ms per exchange: median, largest")
    for sites in arguments.sites:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder).resolve()
            export(path / "job", arguments.count)
            with federation(sites, path) as running:
                job_id = running.submit(path / "job" / "mail")
                running.wait(job_id, HOUR)
                rows = json.loads((running.results(job_id) / "mail.json").read_text())
        for size, way, seconds in rows:
            middle, worst = 1e3 * statistics.median(seconds), 1e3 * max(seconds)
            print(f"{sites:5} | {size:7} | {way:8} | {middle:23.1f}, {worst:7.1f}", flush=True)


if __name__ == "__main__":
    main()
