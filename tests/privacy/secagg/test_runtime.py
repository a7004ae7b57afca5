"""CrypTen's protocols over links between sites, with dealt tuples."""

import inspect
from collections.abc import Callable
from typing import Any

import crypten
import numpy as np
import pytest
import torch
from crypten.communicator import Communicator
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiers import examples
from torch.distributed import ReduceOp

from privacy.secagg import SecureAggregationError
from privacy.secagg.crypten_runtime import Party, ring, tensor
from privacy.secagg.reliability import below, open_masked, product, truncate

FEW = settings(max_examples=examples(10), suppress_health_check=[HealthCheck.function_scoped_fixture])
INT = torch.int64


def longs(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=INT)


def own(party: Party, values: np.ndarray) -> np.ndarray:
    """Shares of values that the last party puts in."""
    mine = values if party.rank == party.size - 1 else np.zeros_like(values)
    return ring(party.share(mine.view(np.uint64)))


def computed(everyone: Any, size: int, protocol: Callable[[Party], np.ndarray]) -> np.ndarray:
    """What a protocol opens, the same to every party."""

    def opened(party: Party) -> np.ndarray:
        return party.open(protocol(party))[0]

    results = [run.result for run in everyone(size, opened, protocol)]
    assert all(np.array_equal(result, results[0]) for result in results)
    return results[0].view(np.int64)


INNER = st.integers(-(2**62) + 2**33, 2**62 - 2**33)
numbers = st.lists(st.integers(-(2**62) + 1, 2**62 - 1), min_size=1, max_size=8)


@FEW
@given(st.integers(3, 5), numbers, st.integers(1, 61))
def test_truncation_errs_by_one_step_at_most_over_the_whole_range(
    everyone: Any, size: int, values: list[int], bits: int
) -> None:
    """Where CrypTen's own fails with probability |x|/2^64, this never does."""
    result = computed(everyone, size, lambda p: truncate(p, own(p, np.array(values)), bits))
    assert all(got - (value >> bits) in (0, 1) for got, value in zip(result.tolist(), values, strict=True))


@FEW
@given(st.integers(3, 5), st.lists(INNER, min_size=1, max_size=8), st.lists(INNER, min_size=1, max_size=4))
def test_comparisons_are_right_but_for_what_lies_within_two_to_the_33_of_a_limit(
    everyone: Any, size: int, values: list[int], limits: list[int]
) -> None:
    """Up to 2^33 from the ends of the range; at the limit itself either answer, and never anything but 0 or 1."""
    edges = [*values, *(limit + step for limit in limits for step in (2**33, -(2**33), 0))]

    def protocol(party: Party) -> np.ndarray:
        (opening,) = open_masked(party, own(party, np.array(edges)))
        return below(party, (opening, np.array(limits).view(np.uint64)))[0]

    result = computed(everyone, size, protocol)
    apart = np.abs(np.array(edges)[:, None] - np.array(limits)) >= 2**33
    assert result.shape == apart.shape and np.isin(result, (0, 1)).all()
    assert np.array_equal(result[apart], (np.array(edges)[:, None] < limits)[apart])


def test_several_comparisons_are_one_exchange(everyone: Any) -> None:
    """Of other shapes and with other limits, each answered by itself."""

    def protocol(party: Party) -> np.ndarray:
        some, other = open_masked(party, own(party, np.array([5 << 40])), own(party, np.array([[-1 << 40], [1 << 40]])))
        before = party.communicator.messages
        item, two = below(party, (some, np.array([4 << 40, 6 << 40], np.uint64)), (other, np.zeros(1, np.uint64)))
        assert party.communicator.messages == before + 2
        return np.concatenate([item.reshape(-1), two.reshape(-1)])

    assert computed(everyone, 3, protocol).tolist() == [0, 1, 1, 0]


@FEW
@given(st.integers(3, 5), st.lists(st.integers(-(2**20), 2**20), min_size=1, max_size=6), st.integers(1, 8))
def test_products_of_masked_secrets_cost_no_exchange_and_are_exact_but_for_truncation(
    everyone: Any, size: int, values: list[int], bits: int
) -> None:
    """A whole secret, a truncated one and a public number minus one, [n, 1] times [n]; each factor errs by a step."""
    x = np.array(values)

    def protocol(party: Party) -> np.ndarray:
        item, other = open_masked(party, own(party, x), own(party, x))
        before = party.communicator.messages
        result = product(party, item.whole()[:, None], other.truncated(bits), item.whole().subtracted_from(7)[:, None])
        assert party.communicator.messages == before
        return result

    result = computed(everyone, size, protocol)
    allowed = [x[:, None] * ((x >> bits) + step) * (7 - x[:, None]) for step in (0, 1)]
    assert ((result == allowed[0]) | (result == allowed[1])).all()


@FEW
@given(st.integers(3, 5), st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=8))
def test_products_are_exact_and_shapes_broadcast(everyone: Any, size: int, values: list[int]) -> None:
    """CrypTen's multiplication with dealt triples, [n, 1] times [n]."""
    x = np.array(values)
    result = computed(everyone, size, lambda p: p.multiply(own(p, x)[:, None], own(p, x)))
    assert np.array_equal(result, x[:, None] * x)


def test_every_collective_of_crypten_s_communicator_works(everyone: Any) -> None:
    """All that `Communicator` declares, on 3 parties, against what torch.distributed would give."""
    declared = {n for n, v in vars(Communicator).items() if inspect.isfunction(v) and not n.startswith("_")}

    def work(party: Party) -> dict[str, Any]:
        comm, me = party.communicator, party.rank
        mine = longs(me + 1, 10 * (me + 1))
        assert all(callable(getattr(comm, name)) for name in declared)
        result: dict[str, Any] = {
            "all_gather": comm.all_gather(mine),
            "gather": comm.gather(mine, 1),
            "all_reduce": comm.all_reduce(mine),
            "xor": comm.all_reduce(mine, op=ReduceOp.BXOR),
            "batched": comm.all_reduce([mine, longs(me)], batched=True),
            "reduce": comm.reduce(mine, 2),
            "broadcast": comm.broadcast(mine.clone(), 1),
            "object": comm.broadcast_obj([me, 2] if me == 0 else None, 0),
            "scatter": comm.scatter([longs(5), longs(6), longs(7)] if me == 0 else [], 0, size=(1,)),
        }
        comm.barrier()
        request, box = comm.isend(mine, (me + 1) % 3), torch.zeros(2, dtype=INT)
        waited = comm.irecv(box, (me - 1) % 3)
        for each in (request, waited):
            each.wait()
            assert each.is_completed()
        comm.set_name(f"party {me}")
        return {**result, "ring": box, "who": (comm.get_rank(), comm.get_world_size(), comm.get_name())}

    for me, run in enumerate(everyone(3, work)):
        result, rows = run.result, [longs(1, 10), longs(2, 20), longs(3, 30)]
        assert all(torch.equal(a, b) for a, b in zip(result["all_gather"], rows, strict=True))
        assert result["gather"] == [None] if me != 1 else torch.equal(torch.stack(result["gather"]), torch.stack(rows))
        assert result["all_reduce"].tolist() == [6, 60] and result["xor"].tolist() == [1 ^ 2 ^ 3, 10 ^ 20 ^ 30]
        assert [part.tolist() for part in result["batched"]] == [[6, 60], [3]]
        assert result["reduce"] is None if me != 2 else result["reduce"].tolist() == [6, 60]
        assert result["broadcast"].tolist() == [2, 20] and result["object"] == [0, 2]
        assert result["scatter"].tolist() == [5 + me] and result["ring"].tolist() == rows[(me - 1) % 3].tolist()
        assert result["who"] == (me, 3, f"party {me}")
        assert run.party.communicator.get_communication_stats()["bytes"] > 0


def test_crypten_s_own_randomness_is_refused(everyone: Any) -> None:
    """Whatever would read a torch generator raises instead."""

    def work(party: Party) -> None:
        with party._at_work(), pytest.raises(SecureAggregationError, match="its own random numbers"):
            crypten.mpc.primitives.ArithmeticSharedTensor.PRSS((2,))
        with party._at_work(), pytest.raises(SecureAggregationError, match="its own random numbers"):
            crypten.rand(2)

    everyone(3, work)


def test_crypten_s_own_truncation_is_refused(everyone: Any) -> None:
    """It fails at random; nothing of ours may reach it by a division."""

    def work(party: Party) -> None:
        shared = crypten.mpc.primitives.ArithmeticSharedTensor.from_shares(longs(8), precision=0)
        with party._at_work(), pytest.raises(SecureAggregationError, match="fails at random"):
            shared.div_(2)

    everyone(3, work)


def test_crypten_s_zero_shares_are_ours(everyone: Any) -> None:
    """A tensor that CrypTen shares by itself is masked by the streams of all pairs."""

    def work(party: Party) -> Any:
        with party._at_work():
            shared = crypten.mpc.primitives.ArithmeticSharedTensor(tensor(np.arange(3).view(np.uint64)), precision=0)
            return shared.share, shared.reveal().tolist()

    runs = everyone(3, work)
    assert all(run.result[1] == [0, 1, 2] for run in runs)
    assert all(min(abs(share) for share in run.result[0].tolist()) > 2**20 for run in runs)


def test_crypten_outside_a_party_is_refused() -> None:
    """A thread that is no party's has no communicator, whatever other threads do."""
    with pytest.raises(SecureAggregationError, match="no party is active"):
        crypten.communicator.get()
    assert not crypten.communicator.is_initialized()


def test_tuples_for_another_computation_are_refused(everyone: Any) -> None:
    """The party that reads corrections runs out of them instead of using wrong ones."""

    def shorter(party: Party) -> Any:
        return party.multiply(np.zeros(1, np.uint64), np.zeros(1, np.uint64))

    def work(party: Party) -> str:
        if party.rank != 2:
            return ""
        with pytest.raises(SecureAggregationError, match="another computation"):
            party.multiply(np.zeros(2, np.uint64), np.zeros(2, np.uint64))
        return "refused"

    assert everyone(3, work, shorter)[2].result == "refused"


def test_a_sum_needs_nothing_dealt(everyone: Any) -> None:
    """Shares of zero from keys of pairs are enough."""

    def work(party: Party) -> list[int]:
        return party.open(ring(party.share(np.array([party.rank + 1], np.uint64))))[0].tolist()

    assert [run.result for run in everyone(3, work)] == [[6]] * 3


def test_two_parties_are_refused(everyone: Any) -> None:
    """Each could subtract its own part from the result."""
    with pytest.raises(SecureAggregationError, match="fewer than 3 sites"):
        everyone(2, lambda party: None)
