"""CrypTen's communicator over links between sites: each collective operation consists of point-to-point messages."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol

import numpy as np
import torch
from torch.distributed import ReduceOp

from privacy.secagg.channel import Session


class PeerWire(Protocol):
    """An ordered two-way connection to one peer."""

    def send(self, message: bytes) -> None: ...

    def receive(self, nbytes: int) -> bytes: ...


class Peer(PeerWire, Protocol):
    """A wire with a session of secrets that its two ends share."""

    @property
    def session(self) -> Session: ...


@dataclass
class MeteredWire:
    """A wire to a peer that counts messages and bytes sent."""

    link: Peer
    messages: int = 0
    nbytes: int = 0

    @property
    def session(self) -> Session:
        return self.link.session

    def send(self, message: bytes) -> None:
        self.link.send(message)
        self.messages += 1
        self.nbytes += len(message)

    def receive(self, nbytes: int) -> bytes:
        return self.link.receive(nbytes)


class SilentWire:
    """A wire without a peer: drops sent messages and receives zeros. For the dealer, who runs protocols alone."""

    def send(self, message: bytes) -> None: ...

    def receive(self, nbytes: int) -> bytes:
        return bytes(nbytes)


@dataclass(frozen=True)
class _Request:
    """A pending transfer, as CrypTen waits for it."""

    finish: Callable[[], None]

    def wait(self) -> None:
        self.finish()

    def is_completed(self) -> bool:
        return True


class LinkCommunicator:
    """Implements CrypTen's `Communicator` for int64 tensors. The protocol fixes all shapes, so they are never sent.

    Everything is sent before anything is received, so no two parties wait for each other. Receiving raises `SiteError`.
    """

    def __init__(self, rank: int, wires: Mapping[int, PeerWire]) -> None:
        self.rank, self.world_size = rank, len(wires) + 1
        self._wires, self._name = wires, f"rank{rank}"
        self.reset_communication_stats()

    # From one party to one other.

    def send(self, tensor: torch.Tensor, dst: int) -> None:
        self._send(dst, tensor.contiguous().numpy().astype("<i8", copy=False).tobytes())

    def recv(self, tensor: torch.Tensor, src: int) -> torch.Tensor:
        """Receives a tensor with the shape of the given one, which is not changed."""
        values = np.frombuffer(bytearray(self._receive(src, 8 * tensor.numel())), dtype="<i8")
        return torch.from_numpy(values.reshape(tensor.shape))

    def isend(self, tensor: torch.Tensor, dst: int) -> _Request:
        self.send(tensor, dst)
        return _Request(lambda: None)

    def irecv(self, tensor: torch.Tensor, src: int) -> _Request:
        """After `wait`, the tensor holds the received values."""

        def finish() -> None:
            tensor.copy_(self.recv(tensor, src))

        return _Request(finish)

    def send_obj(self, obj: Any, dst: int) -> None:
        """Sends plain JSON: nothing from a peer is ever unpickled."""
        content = json.dumps(obj).encode()
        self._send(dst, len(content).to_bytes(8, "big"))
        self._send(dst, content)

    def recv_obj(self, src: int) -> Any:
        return json.loads(self._receive(src, int.from_bytes(self._receive(src, 8), "big")))

    # Among all parties.

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The tensors of all parties, by rank."""
        return self.exchange([tensor] * self.world_size)

    def exchange(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Sends each party its tensor, all of one shape; returns the received ones by rank, with this party's own."""
        for peer in self._wires:
            self.send(tensors[peer], peer)
        mine = tensors[self.rank]
        return [self.recv(mine, peer) if peer in self._wires else mine.clone() for peer in range(self.world_size)]

    def gather(self, tensor: torch.Tensor, dst: int) -> list[torch.Tensor] | list[None]:
        if self.rank != dst:
            self.send(tensor, dst)
            return [None]
        return [self.recv(tensor, peer) if peer in self._wires else tensor.clone() for peer in range(self.world_size)]

    def all_reduce(self, input: Any, op: ReduceOp.RedOpType = ReduceOp.SUM, batched: bool = False) -> Any:
        return _batch(lambda tensor: _reduced(self.all_gather(tensor), op), input, batched)

    def reduce(self, input: Any, dst: int, op: ReduceOp.RedOpType = ReduceOp.SUM, batched: bool = False) -> Any:
        def one(tensor: torch.Tensor) -> torch.Tensor | None:
            tensors = self.gather(tensor, dst)
            return _reduced(tensors, op) if self.rank == dst else None

        return _batch(one, input, batched)

    def broadcast(self, input: Any, src: int, group: None = None, batched: bool = False) -> Any:
        def one(tensor: torch.Tensor) -> torch.Tensor:
            if self.rank != src:
                return tensor.copy_(self.recv(tensor, src))
            for peer in self._wires:
                self.send(tensor, peer)
            return tensor

        return _batch(one, input, batched)

    def broadcast_obj(self, obj: Any, src: int, group: None = None) -> Any:
        if self.rank != src:
            return self.recv_obj(src)
        for peer in self._wires:
            self.send_obj(obj, peer)
        return obj

    def scatter(
        self, scatter_list: list[torch.Tensor], src: int, size: Any = None, device: None = None
    ) -> torch.Tensor:
        if self.rank != src:
            shape = scatter_list[self.rank].shape if size is None else size
            return self.recv(torch.empty(shape, dtype=torch.int64), src)
        for peer in self._wires:
            self.send(scatter_list[peer], peer)
        return scatter_list[self.rank]

    def barrier(self) -> None:
        self.all_gather(torch.zeros(1, dtype=torch.int64))

    # About this party.

    def get_world_size(self) -> int:
        return self.world_size

    def get_rank(self) -> int:
        return self.rank

    def set_name(self, name: str) -> None:
        self._name = name

    def get_name(self) -> str:
        return self._name

    def reset_communication_stats(self) -> None:
        self.messages = self.nbytes = 0

    def get_communication_stats(self) -> dict[str, int]:
        """Messages and bytes that this party sent."""
        return {"messages": self.messages, "bytes": self.nbytes}

    def print_communication_stats(self) -> None:
        print(json.dumps(self.get_communication_stats()))

    def _send(self, peer: int, message: bytes) -> None:
        self._wires[peer].send(message)
        self.messages += 1
        self.nbytes += len(message)

    def _receive(self, peer: int, nbytes: int) -> bytes:
        return self._wires[peer].receive(nbytes)


def _reduced(tensors: list[Any], op: ReduceOp.RedOpType) -> torch.Tensor:
    total: torch.Tensor = reduce(torch.bitwise_xor if op == ReduceOp.BXOR else torch.add, tensors)
    return total


def _batch(apply: Callable[[torch.Tensor], Any], input: Any, batched: bool) -> Any:
    """Applies an operation to several tensors joined into one, so a batch of any length is one exchange."""
    if not batched:
        return apply(input)
    result = apply(torch.cat([tensor.reshape(-1) for tensor in input]))
    if result is None:
        return None
    parts = result.split([tensor.numel() for tensor in input])
    return [part.reshape(tensor.shape) for part, tensor in zip(parts, input, strict=True)]
