"""Streams that have ended: forgotten in time, by one thread."""

import threading

import pytest
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from phantoms import wait_for

from medfedvqa.federation.flare import server_guard


@pytest.fixture(autouse=True)
def forgetting(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a site's processes; FLARE's own function is put back afterwards."""
    monkeypatch.setattr(RxTask, "_schedule_remove_task", RxTask._schedule_remove_task)
    monkeypatch.setattr(RxTask, "rx_task_map", {})
    server_guard.forget_ended_streams()


def ended(count: int, seconds: float) -> list[RxTask]:
    """So many streams of a sender that wishes them to be remembered so long, received to their end."""
    made = [RxTask(number, "server", None, reliable=True) for number in range(count)]  # type: ignore[arg-type]
    for task in made:
        RxTask.rx_task_map[task.origin, task.sid] = task
        task.completed_task_ttl = seconds
        task.seq_ack = task.seq
        task.stop()
    return made


def test_ended_streams_take_one_thread_and_are_forgotten_when_they_are_due() -> None:
    """FLARE alone takes a thread for each."""
    before = threading.active_count()
    ended(200, 0.5)
    assert len(RxTask.rx_task_map) == 200 and threading.active_count() <= before + 1
    wait_for(lambda: not RxTask.rx_task_map)


def test_a_sender_cannot_have_its_streams_remembered_for_long_or_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour, as FLARE allows, becomes the longest time that is set here; the number of streams is bounded too."""
    monkeypatch.setattr(server_guard, "_LONGEST", 0.5)
    monkeypatch.setattr(server_guard, "_MOST", 50)
    ended(200, 3600.0)
    assert len(RxTask.rx_task_map) <= 50
    wait_for(lambda: not RxTask.rx_task_map)
