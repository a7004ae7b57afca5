"""Patches CrypTen 0.4.1 for use between hospitals; the only module that imports it.

Importing this module makes these changes for the whole process:

- It imports with current torch, which lacks a module that CrypTen imports and this project does not need.
- Its state (communicator, tuple provider) belongs to the calling thread's party, so parties can share a process.
- Its random numbers came from torch generators seeded with 64 bits, and its zero shares from a ring of neighbours: the
  two neighbours of a party together see through its shares. Zero shares now come from ChaCha20 keyed for every pair of
  parties; everything else that asks for randomness is refused.
- Its truncation errs by 2^(64-bits) with probability |x|/2^64 for each element: it is refused. That of
  `privacy.secagg.reliability` uses dealt pairs, is one exchange, and errs by at most one step, always.
- Its comparison converts to bits, adds the parties' shares in circuits and converts back: 8 exchanges, each of which is
  a message through a server. That of `privacy.secagg.reliability` takes two.
- Its products of numbers that must first be truncated take two exchanges; those of `privacy.secagg.reliability` take
  one.

- Its encoder cuts off what is below a step, so that every mean would be a little too short, turns a number that is not
  finite into an integer, and lets large ones wrap. `privacy.secagg.ring.FixedPoint` makes the same integers, rounds to
  the nearest and refuses these values; CrypTen gets integers only (`precision=0`).

What stays: its shared tensors, how they are added up and opened, its multiplication (D. Beaver, 1991) and the interface
of its communicator.

Source: B. Knott et al., "CrypTen: Secure Multi-Party Computation Meets Machine Learning", 2021.
"""

import importlib
import operator
import sys
import threading
import types
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, NoReturn

import numpy as np
import torch

from privacy.secagg.communicator import LinkCommunicator, PeerWire
from privacy.secagg.errors import MINIMUM, SecureAggregationError
from privacy.secagg.ring import Ring, Stream, ZeroShares, secret_stream
from privacy.secagg.tuples import Tuples

_MAKERS = ("generate_random_ring_element", "generate_kbit_random_tensor")
_thread = threading.local()


class Party:
    """One member's part of a computation on shares; all members call the same methods in the same order.

    Every method that exchanges messages raises `SiteError`.
    """

    def __init__(self, rank: int, wires: Mapping[int, PeerWire], zero: ZeroShares, tuples: Tuples) -> None:
        """`wires`: to each other member, by rank. Raises `SecureAggregationError` with fewer than 3 members."""
        if len(wires) + 1 < MINIMUM:
            raise SecureAggregationError(f"fewer than {MINIMUM} sites would reveal each other: wait for more sites")
        self.rank, self.size, self.zero, self.tuples = rank, len(wires) + 1, zero, tuples
        self.communicator = LinkCommunicator(rank, wires)
        self.provider = _Provider(tuples)
        self.secret: Stream = secret_stream()

    def public(self, values: Ring) -> Ring:
        """This member's share of public values."""
        return values if self.rank == 0 else np.zeros_like(values)

    def share(self, mine: Ring) -> torch.Tensor:
        """Shares of the sum of all members' `mine`, [the same shape]; costs no message."""
        return tensor(mine + self.zero.additive(mine.shape))

    def sum(self, shares: Iterable[Ring]) -> Ring:
        """Shares of the sum of these secrets, all of one shape; costs no message."""
        with self._at_work():
            first, *rest = (_wrapped(tensor(each)) for each in shares)
            return _plain(reduce(operator.add, rest, first))

    def wait_for_all(self) -> None:
        """Returns once every member has called it; one exchange of 8 bytes."""
        self.communicator.barrier()

    def open(self, *shares: Ring) -> list[Ring]:
        """Opens secrets to every member; one exchange for all."""
        with self._at_work():
            tensors = [_wrapped(tensor(each)) for each in shares]
            return [ring(values) for values in _crypten.mpc.primitives.ArithmeticSharedTensor.reveal_batch(tensors)]

    def open_bits(self, shares: Ring) -> Ring:
        """Opens secrets that are shared by exclusive or; one exchange."""
        with self._at_work():
            return ring(_binary(tensor(shares)).reveal())

    def multiply(self, left: Ring, right: Ring) -> Ring:
        """Shares of the elementwise products, shapes broadcast; one exchange."""
        with self._at_work():
            return _plain(_crypten.mpc.primitives.beaver.mul(_wrapped(tensor(left)), _wrapped(tensor(right))))

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        _thread.party = self
        try:
            yield
        finally:
            del _thread.party


class _Provider:
    """The tuple provider for CrypTen's multiplication, from dealt tuples."""

    def __init__(self, tuples: Tuples) -> None:
        self._tuples = tuples

    def generate_additive_triple(
        self, left: Any, right: Any, op: str, device: Any = None, **how: Any
    ) -> tuple[Any, ...]:
        a, b = self._tuples.random(left), self._tuples.random(right)
        # The shape of the product is that of the product of the shares.
        product = ring(getattr(torch, op)(tensor(a), tensor(b), **how))
        return tuple(_wrapped(tensor(x)) for x in (a, b, self._tuples.dependent(lambda: product, product.shape)))


def tensor(elements: Ring) -> torch.Tensor:
    """Ring elements as an int64 torch tensor, without a copy if they are contiguous."""
    return torch.from_numpy(np.ascontiguousarray(elements).view(np.int64))


def ring(shares: torch.Tensor) -> Ring:
    """Ring elements as a uint64 NumPy array, without a copy."""
    return shares.numpy().view(np.uint64)


def _zero_shares(binary: bool) -> Any:
    def PRZS(*size: Any, device: Any = None) -> Any:
        party, shape = _party(), size[0] if isinstance(size[0], Sequence) else size
        return _binary(tensor(party.zero.binary(shape))) if binary else _wrapped(tensor(party.zero.additive(shape)))

    return staticmethod(PRZS)


def _refuse_randomness(*_: Any, **__: Any) -> NoReturn:
    raise SecureAggregationError("CrypTen asked for its own random numbers: use operations on dealt tuples only")


def _refuse_truncation(*_: Any, **__: Any) -> NoReturn:
    raise SecureAggregationError("CrypTen's truncation fails at random: use privacy.secagg.reliability.truncate")


def _party() -> Party:
    party: Party | None = getattr(_thread, "party", None)
    if party is None:
        raise SecureAggregationError("no party is active in this thread: call CrypTen through a Party")
    return party


def _wrapped(shares: torch.Tensor) -> Any:
    return _crypten.mpc.primitives.ArithmeticSharedTensor.from_shares(shares, precision=0)


def _binary(shares: torch.Tensor) -> Any:
    return _crypten.mpc.primitives.BinarySharedTensor.from_shares(shares, precision=0)


def _plain(crypten_tensor: Any) -> Ring:
    return ring(crypten_tensor.share)


def _imported() -> Any:
    sys.modules.setdefault("torch.onnx.symbolic_registry", types.ModuleType("torch.onnx.symbolic_registry"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        crypten: Any = importlib.import_module("crypten")
    crypten.communicator.get = lambda: _party().communicator
    crypten.communicator.is_initialized = lambda: hasattr(_thread, "party")
    crypten.mpc.get_default_provider = lambda: _party().provider
    primitives = crypten.mpc.primitives
    primitives.beaver.truncate = _refuse_truncation
    primitives.ArithmeticSharedTensor.PRZS = _zero_shares(binary=False)
    primitives.BinarySharedTensor.PRZS = _zero_shares(binary=True)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "crypten":
            for maker in _MAKERS:
                if hasattr(module, maker):
                    setattr(module, maker, _refuse_randomness)
    return crypten


_crypten = _imported()
