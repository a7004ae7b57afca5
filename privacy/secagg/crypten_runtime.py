"""CrypTen 0.4.1 made fit for hospitals; the only module that imports it.

What is changed, for the whole process, by importing this module:

- It imports on current torch, which lost a module that CrypTen looks for and that we do not need.
- Its state (communicator, tuple provider) is the calling thread's party's, so parties can share a process.
- Its random numbers came from torch generators seeded with 64 bits, and its zero shares from a ring of neighbours: the
  two neighbours of a party together see through its shares. Zero shares now come from ChaCha20 keyed for every pair of
  parties; everything else that asks for randomness is refused.
- Its truncation errs by 2^(64-bits) with probability |x|/2^64 for each element. Truncation now uses dealt pairs, is one
  exchange, and errs by at most one step, always.
- Its conversion to bits adds the parties' shares in circuits, one after another. A dealt number with its bits now makes
  it one exchange and one addition, whatever the number of parties.

Source: B. Knott et al., "CrypTen: Secure Multi-Party Computation Meets Machine Learning", 2021; D. Escudero et al.,
"Improved Primitives for MPC over Mixed Arithmetic-Binary Circuits", 2020, sections 4 and 5.
"""

import importlib
import sys
import threading
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np
import torch

from privacy.secagg.communicator import LinkCommunicator, Wire
from privacy.secagg.errors import MINIMUM, SecureAggregationError
from privacy.secagg.randomness import Stream, ZeroShares, secret_stream
from privacy.secagg.ring import Ring
from privacy.secagg.tuples import Tuples

_MAKERS = ("generate_random_ring_element", "generate_kbit_random_tensor")
_thread = threading.local()


class Party:
    """One site's part of a computation on shares; all parties call the same methods in the same order.

    Shares are int64 tensors of torch, elements of the ring. Every method that exchanges messages raises `SiteError`.
    """

    def __init__(self, rank: int, wires: Mapping[int, Wire], zero: ZeroShares, tuples: Tuples) -> None:
        """`wires`: to each other party, by rank. Raises `SecureAggregationError` with fewer than 3 parties."""
        if len(wires) + 1 < MINIMUM:
            raise SecureAggregationError(f"fewer than {MINIMUM} sites would reveal each other: wait for more sites")
        self.rank, self.size, self.zero, self.tuples = rank, len(wires) + 1, zero, tuples
        self.communicator = LinkCommunicator(rank, wires)
        self.provider = _Provider(tuples)
        self.secret: Stream = secret_stream()

    def public(self, values: torch.Tensor) -> torch.Tensor:
        """This party's share of what everybody knows."""
        return values if self.rank == 0 else torch.zeros_like(values)

    def share(self, mine: Ring) -> torch.Tensor:
        """Shares of the sum of what each party puts in, [the same shape]; costs no message."""
        return tensor(mine + self.zero.additive(mine.shape))

    def open(self, shares: torch.Tensor) -> torch.Tensor:
        """The secret, to everybody; one exchange."""
        opened: torch.Tensor = self.communicator.all_reduce(shares)
        return opened

    def multiply(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Shares of the elementwise products, shapes broadcast; one exchange."""
        with self._at_work():
            return _plain(_crypten.mpc.primitives.beaver.mul(_wrapped(one), _wrapped(other)))

    def truncate(self, shares: torch.Tensor, bits: int) -> torch.Tensor:
        """Shares of the secret / 2^bits, rounded up or down at random, for secrets below 2^62; one exchange."""
        with self._at_work():
            return _plain(_wrapped(shares.clone()).div_(2**bits))

    def is_negative(self, shares: torch.Tensor) -> torch.Tensor:
        """Shares of 1 where the secret is below zero, of 0 elsewhere; eight exchanges."""
        with self._at_work():
            bits = _crypten.mpc.primitives.converters.convert(_wrapped(shares), _crypten.mpc.ptype.binary)
            bits.share >>= 63
            return _plain(_crypten.mpc.primitives.beaver.B2A_single_bit(bits & 1))

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        _thread.party = self
        try:
            yield
        finally:
            del _thread.party


class _Provider:
    """What CrypTen's protocols ask of a tuple provider, from dealt tuples."""

    def __init__(self, tuples: Tuples) -> None:
        self._tuples = tuples

    def generate_additive_triple(
        self, one: Any, other: Any, op: str, device: Any = None, **how: Any
    ) -> tuple[Any, ...]:
        a, b = self._tuples.random(one), self._tuples.random(other)
        # The shape of the product is that of the product of the shares.
        product = ring(getattr(torch, op)(tensor(a), tensor(b), **how))
        return tuple(_wrapped(tensor(x)) for x in (a, b, self._tuples.dependent(lambda: product, product.shape)))

    def square(self, size: Any, device: Any = None) -> tuple[Any, ...]:
        root = self._tuples.random(size)
        return tuple(_wrapped(tensor(x)) for x in (root, self._tuples.dependent(lambda: root * root, size)))

    def generate_binary_triple(self, one: Any, other: Any, device: Any = None) -> tuple[Any, ...]:
        a, b = self._tuples.random(one, binary=True), self._tuples.random(other, binary=True)
        c = self._tuples.dependent(lambda: a & b, np.broadcast_shapes(one, other), binary=True)
        return tuple(_binary(tensor(x)) for x in (a, b, c))

    def B2A_rng(self, size: Any, device: Any = None) -> tuple[Any, ...]:
        bit = self._tuples.random(size, binary=True) & np.uint64(1)
        return _wrapped(tensor(self._tuples.dependent(lambda: bit, size))), _binary(tensor(bit))

    def wrap_rng(self, size: Any, device: Any = None) -> NoReturn:
        _refuse_randomness()


def tensor(elements: Ring) -> torch.Tensor:
    """Ring elements as torch holds them, without a copy."""
    return torch.from_numpy(elements.view(np.int64))


def ring(shares: torch.Tensor) -> Ring:
    """Ring elements as numpy holds them, without a copy."""
    return shares.numpy().view(np.uint64)


def _truncate(x: Any, divisor: int) -> Any:
    """CrypTen's `truncate`: opens x + 2^62 + r for a dealt r; if that wrapped, r's top bit was set and its own not."""
    party, bits = _party(), np.uint64(divisor.bit_length() - 1)
    top = np.uint64(63)
    if divisor != 1 << int(bits):
        raise SecureAggregationError("shares are divided by powers of two only: scale the values accordingly")
    r = party.tuples.random(x.share.shape)
    r_high = party.tuples.dependent(lambda: r >> bits, r.shape)
    r_top = party.tuples.dependent(lambda: r >> top, r.shape)
    middle = party.public(torch.full_like(x.share, 1 << 62))
    opened = ring(party.open(x.share + middle + tensor(r)))
    wrapped = r_top * (np.uint64(1) - (opened >> top))
    known = (opened >> bits) - (np.uint64(1 << 62) >> bits)
    # 2^(64 - bits), in two factors, since 2^64 itself is no element.
    carried = wrapped * (np.uint64(1 << 63) >> bits) * np.uint64(2)
    x.share = party.public(tensor(known)) - tensor(r_high) + tensor(carried)
    return x


def _to_bits(x: Any) -> Any:
    """CrypTen's `_A2B`: opens x + r for a dealt r, and adds the dealt bits of -r in a circuit."""
    party = _party()
    r = party.tuples.random(x.share.shape)
    minus = party.tuples.dependent(lambda: np.uint64(0) - r, r.shape, binary=True)
    bits = _crypten.mpc.primitives.circuit.add(_binary(tensor(minus)), party.open(x.share + tensor(r)))
    bits.encoder = x.encoder
    return bits


def _zero_shares(binary: bool) -> Any:
    def PRZS(*size: Any, device: Any = None) -> Any:
        party, shape = _party(), size[0] if isinstance(size[0], Sequence) else size
        return _binary(tensor(party.zero.binary(shape))) if binary else _wrapped(tensor(party.zero.additive(shape)))

    return staticmethod(PRZS)


def _refuse_randomness(*_: Any, **__: Any) -> NoReturn:
    raise SecureAggregationError("CrypTen asked for its own random numbers: use operations on dealt tuples only")


def _party() -> Party:
    party: Party | None = getattr(_thread, "party", None)
    if party is None:
        raise SecureAggregationError("no party is at work in this thread: call CrypTen through a Party")
    return party


def _wrapped(shares: torch.Tensor) -> Any:
    return _crypten.mpc.primitives.ArithmeticSharedTensor.from_shares(shares, precision=0)


def _binary(shares: torch.Tensor) -> Any:
    return _crypten.mpc.primitives.BinarySharedTensor.from_shares(shares, precision=0)


def _plain(shared: Any) -> torch.Tensor:
    shares: torch.Tensor = shared.share
    return shares


def _imported() -> Any:
    sys.modules.setdefault("torch.onnx.symbolic_registry", types.ModuleType("torch.onnx.symbolic_registry"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        crypten: Any = importlib.import_module("crypten")
    crypten.communicator.get = lambda: _party().communicator
    crypten.communicator.is_initialized = lambda: hasattr(_thread, "party")
    crypten.mpc.get_default_provider = lambda: _party().provider
    primitives = crypten.mpc.primitives
    primitives.beaver.truncate = _truncate
    primitives.converters._A2B = _to_bits
    primitives.ArithmeticSharedTensor.PRZS = _zero_shares(binary=False)
    primitives.BinarySharedTensor.PRZS = _zero_shares(binary=True)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "crypten":
            for maker in _MAKERS:
                if hasattr(module, maker):
                    setattr(module, maker, _refuse_randomness)
    return crypten


_crypten = _imported()
