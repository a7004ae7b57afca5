"""A cell of FLARE's with its hooks set and no network: messages are handed to it, and what it would send is kept."""

from collections.abc import Callable
from typing import Any

import pytest
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType
from nvflare.fuel.f3.cellnet.utils import encode_payload
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.stats_pool import StatsPoolManager


class LoneCell:
    """One cell; FLARE's classes are put back after the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, prepare: Callable[[], object]) -> None:
        """`prepare` asks for hooks, as the guard of a process does."""
        flare_decomposers.register()
        monkeypatch.setattr(CoreCell, "ALL_CELLS", {})
        monkeypatch.setattr(StatsPoolManager, "pools", {})
        monkeypatch.setattr(CoreCell, "start", lambda cell: None)
        self.name, self.sent = name, list[Message]()
        self.cell = CoreCell(name, "tcp://localhost:1", secure=False, credentials={})
        monkeypatch.setattr(self.cell, "_send_to_endpoint", lambda endpoint, message: self.sent.append(message) or "")
        self._prepare = prepare

    def start(self) -> None:
        """Start the cell, which sets the hooks."""
        self._prepare()
        self.cell.start()

    def take(self, origin: str, channel: str, topic: str, payload: Any = None, to: str = "", **headers: Any) -> Message:
        """Hand the cell a request; returns it as the cell leaves it. Its answers are in `sent`."""
        headers |= {MessageHeaderKey.CHANNEL: channel, MessageHeaderKey.TOPIC: topic}
        headers |= {MessageHeaderKey.ORIGIN: origin, MessageHeaderKey.DESTINATION: to or self.name}
        headers |= {MessageHeaderKey.MSG_TYPE: MessageType.REQ, MessageHeaderKey.REPLY_EXPECTED: True}
        message = Message(headers, payload)
        encode_payload(message, fobs_ctx=self.cell.get_fobs_context())
        self.cell.process_message(Endpoint(origin), None, CoreCell.APP_ID, message)
        return message
