"""A reader from outside that fetches the rows over the network: what the site's own people see of it."""

import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from example_plug_in import pictures as pictures
from plug_in import built, forget_plug_ins, unpacked
from vaults import JOB, place_of, processes, sites_of

from audits import Event, Refusal, read
from medfedvqa import plugins
from medfedvqa.federation.flare import doctor
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import load_site_config
from medfedvqa.vault.courier import JobCourier
from medfedvqa.vault.place import JOB_FILE

READER, NAME, RANDOM = "remote-rows", "own-late", "medclip@random"
SOURCE = b"""
import csv
import socket

from medfedvqa.data import Row, VQAData
from medfedvqa.errors import DataError


def read(root):
    try:
        with socket.create_connection(("127.0.0.1", int((root / "port").read_text())), 20) as connection:
            with connection.makefile(encoding="utf-8", newline="") as file:
                table = list(csv.DictReader(file))
    except OSError:
        raise DataError("the hospital's server does not answer") from None
    rows = [
        Row(i, row["organ"], row["split"], True, row["question"], row["answer"], row["patient"], root / row["picture"])
        for i, row in enumerate(table)
    ]
    return VQAData("remote", ("chest", "head"), rows, publishes_validation=True)
"""


@pytest.fixture
def root(tmp_path: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The pictures' folder; a server on this machine sends the table to everybody. The reader is installed, allowed."""
    wheel = built(tmp_path, "1.0", {"remote_rows.py": SOURCE}, f"[medfedvqa.readers]\n{READER} = remote_rows:read")
    folder = unpacked(wheel, tmp_path / "target")
    forget_plug_ins(monkeypatch, folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])))
    plugins.allow(plugins.pinned(NAME))
    with socket.create_server(("127.0.0.1", 0)) as server:
        table = (pictures / "rows.csv").read_bytes()
        (pictures / "port").write_text(str(server.getsockname()[1]))

        def serve() -> None:
            while True:
                with server.accept()[0] as connection:
                    if connection.getpeername()[1] == stop.getsockname()[1]:
                        return
                    connection.sendall(table)

        with socket.socket() as stop:
            stop.bind(("127.0.0.1", 0))
            thread = threading.Thread(target=serve)
            thread.start()
            yield pictures
            stop.connect(server.getsockname())
            thread.join()
    sys.modules.pop("remote_rows", None)


@pytest.mark.slow
def test_who_reads_over_the_network_learns_to_mount_the_folder(
    tmp_path: Path, root: Path, random_backbone: Path
) -> None:
    """The rows come where a process has a network, and `doctor` says beforehand that the vault's has none. A job is
    refused for its data, and the site's log says why."""
    job = JobSpec.from_dict({"method": "fedavg", "options": {"hidden": 8, "rounds": 2}, "data": "phantom"})
    job = job.model_copy(update={"backbone": RANDOM})
    data = {"reader": READER, "root": str(root), "organ": "chest"}
    pinned = plugins.pinned(NAME)
    path = sites_of(tmp_path, job, {RANDOM: random_backbone}, data=data, plugins=pinned)["chest"]
    config = load_site_config(path, "chest")
    *_, check = doctor._data(config)
    assert not check.ok and "opens a connection" in check.problem and "mount" in check.remedy
    *_, check = doctor._data(config.model_copy(update={"isolation": "none"}))
    assert check.ok

    place = place_of(path)
    courier = JobCourier(place, JOB, {JOB_FILE: job.model_copy(update={"data": READER}).model_dump_json().encode()})
    try:
        frame = courier.ask("task", task="start", round=1)
    finally:
        courier.close()
        for process in processes(place):
            process.kill()
    assert (frame.kind, frame.fields.get("code")) == ("refused", Refusal.DATA.value)
    (finding,) = [entry for entry in read(config.audit) if entry.event is Event.FINDING]
    assert "the network: folders of a network must be mounted" in str(finding.reason)
