"""The budget ledger: what composes with what, what is refused, and what survives."""

import contextlib
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiers import examples

from privacy import DPEvent, SampledGaussian
from privacy.accounting import PrivacyCost, fitting, spent
from privacy.ledger import Account, BudgetRefused, ChargeState, JobAccount, Ledger, Limits, PlannedTask

DELTA = 1e-3
LIMITS = Limits(max_epsilon=10, delta=DELTA)
Opener = Callable[..., Ledger]


def steps(number: int) -> tuple[DPEvent, ...]:
    """A task's events; under the simple accountant, a step costs epsilon 1."""
    return (SampledGaussian(rate=0.1, noise=1.0, steps=number),)


def rounds(*sizes: int) -> list[PlannedTask]:
    return [PlannedTask("train", number, steps(size)) for number, size in enumerate(sizes, start=1)]


def spend(ledger: Ledger, job: str, patients: Iterable[str], *sizes: int) -> None:
    """Reserves, begins and settles a job's rounds."""
    ledger.reserve(job, "prompt_pfl", patients, rounds(*sizes), LIMITS)
    for number in range(1, len(sizes) + 1):
        ledger.begin(job, "train", number, LIMITS)
        ledger.settle(job, "train", number)


def epsilons(ledger: Ledger) -> list[tuple[float, float]]:
    """PrivacyCost and authorised, by cohort."""
    return [(account.spent.epsilon, account.authorised.epsilon) for account in ledger.accounts(DELTA)]


# Composition and refusal


def test_jobs_on_a_cohort_compose_and_the_third_is_refused(ledger: Ledger) -> None:
    """The refusal says what it would cost, how many rounds fit, and which job spent what; nothing is reserved."""
    spend(ledger, "a", ["p", "q"], 2, 2)
    ledger.reserve("b", "fedavg", ["q", "p"], rounds(1, 1), LIMITS)
    ledger.begin("b", "train", 1, LIMITS)
    with pytest.raises(BudgetRefused) as error:
        ledger.reserve("c", "prompt_pfl", ["p", "q"], rounds(2, 2, 2), LIMITS)
    assert str(error.value) == (
        "job 'c' with those before it would spend epsilon 12.000 of the 10 that the site allows at delta 0.001; "
        "2 of 3 rounds would fit. So far: job 'a' (prompt_pfl) has spent 4.000; "
        "job 'b' (fedavg) has spent 1.000 (tasks reserved: 1)"
    )
    assert epsilons(ledger) == [(5, 6)]
    ledger.reserve("c", "prompt_pfl", ["p", "q"], rounds(2, 2), LIMITS)
    assert epsilons(ledger) == [(5, 10)]


def test_disjoint_cohorts_have_budgets_of_their_own(ledger: Ledger) -> None:
    """What was spent on other patients costs these nothing."""
    spend(ledger, "a", ["p"], 10)
    spend(ledger, "b", ["q"], 10)
    assert epsilons(ledger) == [(10, 10), (10, 10)]


def test_an_overlapping_cohort_is_charged_too(ledger: Ledger) -> None:
    """One shared patient carries both jobs, and is the worst of both cohorts; a third cohort without it is not."""
    spend(ledger, "a", ["p", "q"], 6)
    spend(ledger, "b", ["q", "r"], 3)
    assert epsilons(ledger) == [(9, 9), (9, 9)]
    with pytest.raises(BudgetRefused, match=r"0 of 1 rounds .* 'a' \(prompt_pfl\) has spent 6.* 'b' .* spent 3"):
        ledger.reserve("c", "prompt_pfl", ["q", "s"], rounds(2), LIMITS)
    spend(ledger, "d", ["r", "s"], 7)


def test_one_job_may_not_spend_more_than_its_share(ledger: Ledger) -> None:
    """The limit per job holds beside the limit for all, also for a task that is repeated."""
    limits = Limits(max_epsilon=10, delta=DELTA, max_epsilon_per_job=4)
    with pytest.raises(BudgetRefused, match="'a' alone would spend epsilon 6.000 of the 4 .* 2 of 3 rounds would fit"):
        ledger.reserve("a", "prompt_pfl", ["p"], rounds(2, 2, 2), limits)
    ledger.reserve("a", "prompt_pfl", ["p"], rounds(2, 2), limits)
    ledger.begin("a", "train", 1, limits)
    with pytest.raises(BudgetRefused, match="'a' alone would spend epsilon 6.000 of the 4"):
        ledger.begin("a", "train", 1, limits)
    ledger.begin("a", "train", 2, limits)
    ledger.reserve("b", "prompt_pfl", ["p"], rounds(4), limits)


def test_delta_must_suit_the_number_of_patients(ledger: Ledger) -> None:
    """Above one over the number of patients, delta would allow to give one away; the number itself is not told."""
    limits = Limits(max_epsilon=10, delta=0.3)
    with pytest.raises(BudgetRefused, match="delta is more than one over the number of patients") as error:
        ledger.reserve("a", "prompt_pfl", ["p", "q", "r", "s"], rounds(1), limits)
    assert not any(character.isdigit() for character in str(error.value))
    ledger.reserve("a", "prompt_pfl", ["p", "q", "r"], rounds(1), limits)


@pytest.mark.parametrize("wrong", [(0, 1e-3), (-1, 1e-3), (float("nan"), 1e-3), (float("inf"), 1e-3), (1, 0), (1, 1)])
def test_limits_that_limit_nothing_are_refused(wrong: tuple[float, float]) -> None:
    """No infinite, absent or undefined limit passes for one."""
    with pytest.raises(ValueError, match="positive and finite"):
        Limits(*wrong)
    with pytest.raises(ValueError, match="positive and finite"):
        Limits(1, wrong[1], wrong[0])


PATIENTS = st.frozensets(st.sampled_from("pqrstu"), min_size=1)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(jobs=st.lists(st.tuples(PATIENTS, st.lists(st.integers(1, 9), min_size=1, max_size=3)), max_size=7))
def test_a_cohort_has_spent_what_its_worst_patient_has(
    simple_accountant: None,
    tmp_path_factory: pytest.TempPathFactory,
    jobs: list[tuple[frozenset[str], list[int]]],
) -> None:
    """Against one account per patient, kept by hand: the same jobs are granted, and the same epsilons reported."""
    by_hand = dict.fromkeys("pqrstu", 0)
    with contextlib.closing(Ledger(tmp_path_factory.mktemp("ledger"), "chest")) as ledger:
        cohorts: dict[frozenset[str], None] = {}
        for number, (patients, sizes) in enumerate(jobs):
            fits = max(by_hand[patient] for patient in patients) + sum(sizes) <= LIMITS.max_epsilon
            with contextlib.nullcontext() if fits else pytest.raises(BudgetRefused):
                spend(ledger, str(number), patients, *sizes)
                cohorts[patients] = None
            for patient in patients if fits else ():
                by_hand[patient] += sum(sizes)
        worst = [max(by_hand[patient] for patient in patients) for patients in cohorts]
        assert epsilons(ledger) == [(epsilon, epsilon) for epsilon in worst]


def test_epsilon_is_the_accountants(opened: Opener) -> None:
    """With the real accountant: jobs compose as one run of all their steps, and the refusal names what fits."""
    ledger = opened()
    event = SampledGaussian(rate=0.05, noise=1.0, steps=20)
    plan = [PlannedTask("train", number, (event,)) for number in range(1, 4)]
    limits = Limits(spent([event] * 5, 1e-5).epsilon, 1e-5)
    ledger.reserve("a", "prompt_pfl", ["p"], plan, limits)
    charges = [ledger.begin("a", "train", number, limits) for number in (1, 2, 3)]
    assert [charge.epsilon_after for charge in charges] == [spent([event] * n, 1e-5).epsilon for n in (1, 2, 3)]
    assert [charge.epsilon_before for charge in charges] == [spent([event] * n, 1e-5).epsilon for n in (0, 1, 2)]
    fit = fitting(limits.max_epsilon, 1e-5, [event] * 3, [[event]] * 3)
    with pytest.raises(BudgetRefused, match=f"{fit} of 3 rounds would fit"):
        ledger.reserve("b", "prompt_pfl", ["p"], plan, limits)
    ledger.reserve("b", "prompt_pfl", ["p"], plan[:fit], limits)


# The life of a charge


def test_a_charge_says_all_that_the_log_needs(ledger: Ledger) -> None:
    """Epsilon before and after, of all jobs and of this one, and where in the journal the charge began."""
    spend(ledger, "a", ["p"], 4)
    ledger.reserve("b", "prompt_pfl", ["p"], rounds(1, 2), LIMITS, void=True)
    ledger.begin("b", "train", 1, LIMITS)
    charge = ledger.begin("b", "train", 2, LIMITS)
    assert (charge.job, charge.task, charge.round, charge.attempt) == ("b", "train", 2, 1)
    assert (charge.events, charge.delta, charge.void) == (steps(2), DELTA, True)
    assert (charge.epsilon_before, charge.epsilon_after) == (5, 7)
    assert (charge.job_epsilon_before, charge.job_epsilon_after) == (1, 3)
    assert (charge.seq, charge.head) == ledger.head()
    settled = ledger.settle("b", "train", 2)
    assert settled == charge == ledger.charge_of("b", "train", 2)
    assert ledger.contains(charge.seq, charge.head) and ledger.head() != (charge.seq, charge.head)


def test_settling_again_changes_nothing(ledger: Ledger) -> None:
    """A site that does not know whether it settled settles again."""
    spend(ledger, "a", ["p"], 4)
    head = ledger.head()
    assert ledger.settle("a", "train", 1) == ledger.charge_of("a", "train", 1)
    assert ledger.head() == head


def test_only_what_began_is_settled(ledger: Ledger) -> None:
    """A result without a charge is an error, and a task that did not begin has no charge."""
    ledger.reserve("a", "prompt_pfl", ["p"], rounds(1), LIMITS)
    for job in ("a", "unknown"):
        assert ledger.charge_of(job, "train", 1) is None
        with pytest.raises(BudgetRefused, match="has not begun"):
            ledger.settle(job, "train", 1)


@pytest.mark.parametrize(("job", "task", "round"), [("b", "train", 1), ("a", "test", 1), ("a", "train", 2)])
def test_what_was_not_reserved_does_not_begin(ledger: Ledger, job: str, task: str, round: int) -> None:
    """A task outside the plan is refused whatever the budget."""
    ledger.reserve("a", "prompt_pfl", ["p"], rounds(1), LIMITS)
    with pytest.raises(BudgetRefused, match="holds no reservation"):
        ledger.begin(job, task, round, LIMITS)
    assert epsilons(ledger) == [(0, 1)]


def test_a_resumed_job_is_not_charged_twice(ledger: Ledger, opened: Opener) -> None:
    """The same job with the same plan and patients, after a restart and part done, keeps what it has."""
    ledger.reserve("a", "prompt_pfl", ["p", "q"], rounds(3, 3, 3), LIMITS)
    ledger.begin("a", "train", 1, LIMITS)
    ledger.close()
    ledger = opened()
    head = ledger.head()
    ledger.reserve("a", "prompt_pfl", ["q", "p", "q"], rounds(3, 3, 3), LIMITS)
    assert ledger.head() == head and epsilons(ledger) == [(3, 9)]


def test_a_job_cannot_change_its_terms(ledger: Ledger) -> None:
    """Another plan, cohort, method or kind of noise under a known id is refused."""
    ledger.reserve("a", "prompt_pfl", ["p"], rounds(1, 1), LIMITS)
    head = ledger.head()
    for method, patients, plan, void in (
        ("prompt_pfl", ["p"], rounds(1, 2), False),
        ("prompt_pfl", ["p"], rounds(1), False),
        ("prompt_pfl", ["p", "q"], rounds(1, 1), False),
        ("fedavg", ["p"], rounds(1, 1), False),
        ("prompt_pfl", ["p"], rounds(1, 1), True),
    ):
        with pytest.raises(BudgetRefused, match="give the new job a new id"):
            ledger.reserve("a", method, patients, plan, LIMITS, void)
    with pytest.raises(BudgetRefused, match="plans a task twice"):
        ledger.reserve("b", "prompt_pfl", ["p"], rounds(1) * 2, LIMITS)
    assert ledger.head() == head


def test_a_dead_attempt_stays_charged(ledger: Ledger, opened: Opener) -> None:
    """A task that runs again after its process died is a new attempt and a new charge, within the limits."""
    ledger.reserve("a", "prompt_pfl", ["p"], rounds(2, 3), LIMITS)
    ledger.begin("a", "train", 1, LIMITS)
    ledger.close()
    ledger = opened()
    again = ledger.begin("a", "train", 1, LIMITS)
    assert (again.attempt, again.epsilon_before, again.epsilon_after) == (2, 2, 4)
    assert ledger.settle("a", "train", 1) == again == ledger.charge_of("a", "train", 1)
    assert ledger.begin("a", "train", 1, LIMITS).epsilon_after == 6
    assert ledger.accounts(DELTA)[0].jobs[0].state is ChargeState.BEGUN
    assert epsilons(ledger) == [(6, 9)]
    with pytest.raises(BudgetRefused, match="epsilon 11.000 of the 10 .* 0 of 1 rounds would fit"):
        ledger.begin("a", "train", 1, LIMITS)
    assert ledger.begin("a", "train", 2, LIMITS).epsilon_after == 9


def test_a_lowered_limit_stops_a_reserved_job(ledger: Ledger) -> None:
    """What was granted under a higher limit goes on only as far as the site now allows."""
    ledger.reserve("a", "prompt_pfl", ["p"], rounds(3, 3, 3), LIMITS)
    lowered = Limits(max_epsilon=7, delta=DELTA)
    ledger.begin("a", "train", 1, lowered)
    ledger.begin("a", "train", 2, lowered)
    with pytest.raises(BudgetRefused, match="epsilon 9.000 of the 7"):
        ledger.begin("a", "train", 3, lowered)
    assert epsilons(ledger) == [(6, 9)]


def test_only_what_never_began_is_freed(ledger: Ledger) -> None:
    """Freeing gives the budget back for other jobs; what began stays, and freed tasks cannot begin."""
    ledger.reserve("a", "prompt_pfl", ["p"], rounds(3, 3, 3), LIMITS)
    ledger.begin("a", "train", 1, LIMITS)
    assert [ledger.free("a"), ledger.free("a"), ledger.free("unknown")] == [2, 0, 0]
    assert epsilons(ledger) == [(3, 3)]
    with pytest.raises(BudgetRefused, match="holds no reservation"):
        ledger.begin("a", "train", 2, LIMITS)
    ledger.settle("a", "train", 1)
    spend(ledger, "b", ["p"], 7)


def test_a_freed_job_that_comes_back_reserves_again(ledger: Ledger) -> None:
    """It gets back what it freed if that still fits, and is refused if it does not."""
    ledger.reserve("a", "prompt_pfl", ["p"], rounds(3, 3), LIMITS)
    ledger.begin("a", "train", 1, LIMITS)
    ledger.free("a")
    ledger.reserve("a", "prompt_pfl", ["p"], rounds(3, 3), LIMITS)
    assert epsilons(ledger) == [(3, 6)]
    ledger.free("a")
    spend(ledger, "b", ["p"], 5)
    with pytest.raises(BudgetRefused, match="epsilon 11.000 of the 10"):
        ledger.reserve("a", "prompt_pfl", ["p"], rounds(3, 3), LIMITS)


def test_accounts_tell_each_jobs_part(ledger: Ledger) -> None:
    """State, epsilon, reservations and the void flag of every job that touched a cohort's patients."""
    spend(ledger, "done", ["p"], 2)
    ledger.reserve("waiting", "fedavg", ["p"], rounds(1, 1), LIMITS, void=True)
    ledger.reserve("running", "prompt_pfl", ["p", "q"], rounds(1, 1), LIMITS)
    ledger.begin("running", "train", 2, LIMITS)
    ledger.reserve("gone", "prompt_pfl", ["r"], rounds(1), LIMITS)
    ledger.free("gone")
    item, two, three = ledger.accounts(DELTA)
    done = JobAccount("done", "prompt_pfl", item.cohort, 2, 0, ChargeState.CHARGED, False, "chest", 2)
    waiting = JobAccount("waiting", "fedavg", item.cohort, 0, 2, ChargeState.RESERVED, True, "chest", 0)
    running = JobAccount("running", "prompt_pfl", two.cohort, 1, 1, ChargeState.BEGUN, False, "chest", 1)
    assert item == Account(item.cohort, 1, PrivacyCost(3, 3, 3, 3, DELTA), PrivacyCost(6, 6, 6, 6, DELTA), item.jobs)
    assert item.jobs == two.jobs == (done, waiting, running)
    assert three.jobs == (JobAccount("gone", "prompt_pfl", three.cohort, 0, 0, ChargeState.FREED, False, "chest", 0),)


def test_a_clock_that_is_set_back_changes_nothing(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Order is by position; the time in a record is for people."""

    class Past(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:
            return datetime(1999, 1, 1, tzinfo=UTC)

    ledger.reserve("a", "prompt_pfl", ["p"], rounds(3, 3), LIMITS)
    first = ledger.begin("a", "train", 1, LIMITS)
    monkeypatch.setattr("privacy.ledger.datetime", Past)
    second = ledger.begin("a", "train", 2, LIMITS)
    assert second.seq == first.seq + 1 and second.epsilon_after == 6
    ledger.verify()


# Threads, processes and other objects


def test_two_open_ledgers_see_each_other(ledger: Ledger, opened: Opener) -> None:
    """Every call goes by what is on disk at that moment."""
    other = opened()
    spend(ledger, "a", ["p"], 6)
    assert other.head() == ledger.head()
    with pytest.raises(BudgetRefused):
        other.reserve("b", "prompt_pfl", ["p"], rounds(5), LIMITS)
    other.reserve("b", "prompt_pfl", ["p"], rounds(4), LIMITS)
    assert ledger.begin("b", "train", 1, LIMITS).epsilon_after == 10


@pytest.mark.parametrize("shared", [True, False])
def test_threads_never_exceed_the_limit(ledger: Ledger, opened: Opener, shared: bool) -> None:
    """Check and reservation are one step, for threads that share a ledger and for threads with one each."""
    barrier = threading.Barrier(6)

    def reserve(worker: int) -> int:
        own = ledger if shared else opened()
        barrier.wait()
        granted = 0
        for number in range(4):
            with contextlib.suppress(BudgetRefused):
                own.reserve(f"{worker}-{number}", "prompt_pfl", ["p"], rounds(1), LIMITS)
                own.begin(f"{worker}-{number}", "train", 1, LIMITS)
                granted += 1
        return granted

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(reserve, range(6))) == 10
    assert epsilons(ledger) == [(10, 10)]


def test_only_the_jobs_own_charges_are_given_back(ledger: Ledger, opened: Opener) -> None:
    """What others spent on the same patients stays, also once the ledger is read again."""
    spend(ledger, "a", ["p", "q"], 2)
    spend(ledger, "b", ["p", "q"], 3)
    assert ledger.take_back("b") == 1 and epsilons(ledger) == [(2, 2)]
    assert epsilons(opened()) == [(2, 2)] and ledger.holds("a") and not ledger.holds("b")
