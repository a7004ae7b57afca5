"""Which uploads of a method the sites aggregate on shares, and the tasks in which they do."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from audits import Kind, Protection, TaskSpec, Tensors, TensorSpec
from audits.exchange import SITES
from medfedvqa.errors import FederationError
from privacy import Secagg, Unit
from privacy.secagg import TensorLayout
from privacy.secagg.layout import NARROW_BITS, NARROW_WORD, WEIGHT_BITS, WIDE, SumCode

MOST_SITES = 512
"""The most sites in one mixture: the sums of more would overflow the ring."""
FAULT = TensorSpec(
    "fault", (), "int64", Kind.PUBLIC, "rank of the site that broke the attempt, or -1", bounds=(-1, MOST_SITES - 1)
)
SHARED_BYTES = TensorSpec(
    "shared_bytes", (), "int64", Kind.PUBLIC, "bytes of shares that the site sent to the others", bounds=(0, 2**50)
)
"""`FAULT` and `SHARED_BYTES` are all that the server learns of an attempt on shares, beside a masked upload."""

LEAST_EXPONENT = 40
"""Weights that add up to 2^50 are scaled down by this power of two."""
LARGEST_GROUP = 256
"""The most sites of one mean: the message that opens the mean has a row for each."""

MASK_SECRETS = TensorSpec(
    "mask_secrets", (8,), "int64", Kind.PUBLIC, "random keys of this attempt's masks", (SITES,), Protection.MASKED
)
MASK_KEY = TensorSpec("mask_key", (4,), "int64", Kind.PUBLIC, "public key of this attempt's masks")
EQUAL_WEIGHT = TensorSpec("weight", (), "int64", Kind.PUBLIC, "one: all sites weigh the same", bounds=(1, 1))
CONTRIBUTORS = TensorSpec("contributors", (), "int64", Kind.PUBLIC, "one: the sum counts the sites")
OPENED = TensorSpec(
    "opened", (), "int64", Kind.PUBLIC, "one if the member has sent its part of an opening", bounds=(0, 1)
)
OPENING = TensorSpec(
    "opening", (LARGEST_GROUP, 4), "int64", Kind.PUBLIC, "shares of keys of masks, of which enough open one sum"
)

TUPLE_SEED = TensorSpec(
    "tuple_seed", (4,), "int64", Kind.PUBLIC, "random seed of the tuples that are dealt to this member"
)
COIN_COMMITMENT = TensorSpec("coin_commitment", (4,), "int64", Kind.PUBLIC, "hash of a random coin")
COIN = TensorSpec("coin", (4,), "int64", Kind.PUBLIC, "the coin, once the dealer has committed to what it deals")

COMMIT, OPEN, CHECK = "committee/commit", "committee/open", "committee/check"
COMMITMENT = TensorSpec("commitment", (4,), "int64", Kind.PUBLIC, "hash of a random nonce")
NONCE = TensorSpec("nonce", (4,), "int64", Kind.PUBLIC, "the nonce, once all sites have committed to theirs")
BEACON = TensorSpec("beacon", (4,), "int64", Kind.PUBLIC, "hash of all nonces, as the site found them to be right")
DRAWING = (TaskSpec(COMMIT, (COMMITMENT,), ()), TaskSpec(OPEN, (NONCE,), ()), TaskSpec(CHECK, (BEACON,), ()))
"""The tasks in which sites draw a committee."""


@dataclass(frozen=True)
class MixOnShares:
    """A task whose uploads the sites mix on shares, by reliability. Each site learns only its own mixture."""

    unit: Unit = "prompt"
    most_share: float = 1.0
    """See `Reliability`."""

    @property
    def beside(self) -> tuple[TensorSpec, ...]:
        """The tensors that go to the server with the reply to the task."""
        return TUPLE_SEED, COIN_COMMITMENT

    def layout(self, task: TaskSpec) -> TensorLayout:
        """The layout of the mixed part of the upload: everything but the accuracy."""
        shapes = {spec.name: spec.shape for spec in task.up if spec.kind is Kind.PARAMETERS}
        return TensorLayout.of(shapes, self.unit)

    def by(self, secagg: Secagg) -> "OnShares":
        """This aggregation itself: a mixture is always computed with CrypTen."""
        return self

    def joint(self, task: str) -> tuple[str, ...]:
        """The tasks in which sites talk to each other, and so must run at the same time."""
        return (mixing(task),)

    def kept(self, task: TaskSpec) -> set[str]:
        """Names of the tensors whose aggregate only sites have."""
        return {name for name, _ in self.layout(task).shapes}

    def tasks(self, task: TaskSpec) -> Iterator[TaskSpec]:
        """The tasks that replace the task's upload."""
        shared = tuple(
            replace(spec, recipients=(SITES,), protection=_masked(spec))
            for spec in task.up
            if spec.kind is not Kind.PUBLIC
        )
        result = tuple(
            replace(spec, meaning=f"{spec.meaning}: the others' mixture")
            for spec in shared
            if spec.kind is Kind.PARAMETERS
        )
        yield TaskSpec(seeding(task.name), self.beside, ())
        yield TaskSpec(tossing(task.name), (COIN,), ())
        yield TaskSpec(mixing(task.name), (*shared, FAULT, SHARED_BYTES), result, task.most_norm)


@dataclass(frozen=True)
class MeanOnShares:
    """A task whose uploads are averaged under masks. Either the server learns the mean, or only the sites do.

    `weight`: the name of the scalar in each upload that is its weight in the mean; None weighs all sites equally.
    """

    hiding: ClassVar[str] = "under masks"
    """How the log says that a site's own value is hidden."""
    weight: str | None = None
    to: Literal["server", "sites"] = "server"
    lasting: bool = False
    """Whether sites keep keys of the first mean for the masks of later ones. Then a later upload is the answer to the
    task itself, and no sum opens unless every site of the first mean got the same message and sent its part."""
    alike: bool = False
    """Whether the server sends all sites of a mean the same. Then sites refuse a job in which it did not."""
    whole: bool = False
    """Whether uploads are whole numbers, which keep all their bits. Otherwise lasting masks hide differences from the
    values that the site received, in fewer bytes."""

    @property
    def beside(self) -> tuple[TensorSpec, ...]:
        """The tensors that go to the server with the reply to the task."""
        return ()

    def code(self, exponent: int) -> SumCode:
        """How sums under lasting masks are written. Raises `FederationError` for an exponent that no job needs."""
        if self.whole:
            return WIDE
        if not -LEAST_EXPONENT <= exponent <= self.most_exponent:
            raise FederationError("the server asks for numbers that are too fine or too coarse for this job")
        return SumCode(NARROW_BITS, NARROW_WORD, exponent)

    @property
    def most_exponent(self) -> int:
        """The largest power of two that the sites' weights may be multiplied by, see `SumCode`."""
        return 0 if self.weight else WEIGHT_BITS

    @property
    def hidden(self) -> bool:
        """Whether the server must not read the mean."""
        return self.to == "sites"

    def by(self, secagg: Secagg) -> "OnShares":
        """The aggregation by the protocol that the job asks for."""
        return CommitteeMean(self.weight, self.to, alike=self.alike) if secagg == "crypten" else self

    def layout(self, task: TaskSpec) -> TensorLayout:
        """The layout of the averaged part of the upload: everything but the weight."""
        averaged = (spec for spec in task.up if spec.kind is not Kind.PUBLIC and spec.name != self.weight)
        return TensorLayout.of({spec.name: spec.shape for spec in averaged})

    def joint(self, task: str) -> tuple[str, ...]:
        """The tasks in which sites talk to each other, and so must run at the same time."""
        return averaging(task), unmasking(task)

    def kept(self, task: TaskSpec) -> set[str]:
        """Names of the tensors whose aggregate only sites have."""
        return {name for name, _ in self.layout(task).shapes} if self.hidden else set()

    def summands(self, task: TaskSpec) -> tuple[TensorSpec, ...]:
        """The tensors of one site's input to the sum, in order: those to average, the weight, and a 1 that counts the
        site.
        """
        declared = {spec.name: spec for spec in task.up}
        averaged = [declared[name] for name, _ in self.layout(task).shapes]
        weight = self._weight(task)
        weighted = [replace(spec, meaning=f"{spec.meaning}, times the weight") for spec in averaged]
        # A masked value or a sum may be any number, so the bounds hold only for what a site puts in.
        return tuple(
            replace(
                spec, dtype="int64", protection=_masked(spec), meaning=f"{spec.meaning}, {self.hiding}", bounds=None
            )
            for spec in (*weighted, weight, CONTRIBUTORS)
        )

    def in_words(self, task: TaskSpec) -> tuple[TensorSpec, ...]:
        """`summands` as they leave under lasting masks: each number is a word, and its bytes the last dimension."""
        if self.whole:
            return self.summands(task)
        parts = self.summands(task)
        return tuple(replace(spec, shape=(*spec.shape, NARROW_WORD), dtype="uint8") for spec in parts)

    def weight_bounds(self, task: TaskSpec) -> tuple[float, float] | None:
        """The bounds of one site's weight."""
        return self._weight(task).bounds

    def _weight(self, task: TaskSpec) -> TensorSpec:
        return next(spec for spec in task.up if spec.name == self.weight) if self.weight else EQUAL_WEIGHT

    def tasks(self, task: TaskSpec) -> Iterator[TaskSpec]:
        """The tasks that replace the task's upload."""
        up = (MASK_SECRETS, *self.summands(task), MASK_KEY, SHARED_BYTES)
        yield TaskSpec(averaging(task.name), up, self._result(task))
        if self.lasting:
            names = {spec.name for spec in up}
            public = tuple(spec for spec in task.up if spec.kind is Kind.PUBLIC and spec.name not in names)
            yield TaskSpec(masked(task.name), (*self.in_words(task), *public), ())
        yield TaskSpec(broken(task.name), up=(FAULT, SHARED_BYTES), down=())
        yield TaskSpec(unmasking(task.name), up=(OPENING,), down=())

    def replied(self, asked: str, tensors: Tensors) -> str:
        """The name of the task that declares an answer to `asked`: to a step of a mean, `broken` if the answer names
        the site at fault; to the aggregated task itself, `masked` if the answer is an upload.
        """
        task, _, step = asked.rpartition("/")
        if not task:
            return masked(step) if CONTRIBUTORS.name in tensors else asked
        return broken(task) if FAULT.name in tensors else asked

    def _result(self, task: TaskSpec) -> tuple[TensorSpec, ...]:
        """The tensors of a mean that only sites know."""
        return tuple(
            replace(spec, recipients=(SITES,), protection=_masked(spec), meaning=f"{spec.meaning}: the mean")
            for spec in task.up
            if spec.name in self.kept(task)
        )


@dataclass(frozen=True)
class CommitteeMean(MeanOnShares):
    """A mean that members compute with CrypTen: they open the sum to each other, and each sends it to the server."""

    hiding = "as shares"

    def joint(self, task: str) -> tuple[str, ...]:
        """The tasks in which sites talk to each other, and so must run at the same time."""
        return (averaging(task),)

    def tasks(self, task: TaskSpec) -> Iterator[TaskSpec]:
        """The tasks that replace the task's upload."""
        parts = self.summands(task)
        shares = tuple(replace(spec, recipients=(SITES,)) for spec in parts)
        total = tuple(replace(spec, meaning=f"{spec.meaning}: the sum over all sites") for spec in parts)
        yield TaskSpec(averaging(task.name), shares, self._result(task))
        yield TaskSpec(summed(task.name), (*total, SHARED_BYTES), ())
        yield TaskSpec(handed_over(task.name), (SHARED_BYTES,), ())
        yield TaskSpec(broken(task.name), (FAULT, SHARED_BYTES, OPENED), ())

    def replied(self, asked: str, tensors: Tensors) -> str:
        """The name under which an answer is declared: see `CommitteeMeanSite.answer`."""
        task = asked.rpartition("/")[0]
        if FAULT.name in tensors:
            return broken(task)
        return summed(task) if CONTRIBUTORS.name in tensors else handed_over(task)


OnShares = MixOnShares | MeanOnShares


def mixing(task: str) -> str:
    """The name of the task in which sites mix the uploads of `task` on shares."""
    return f"{task}/mix"


def seeding(task: str) -> str:
    """The name of the task in which the members of a mixture send seeds of the tuples that are dealt to them."""
    return f"{task}/seed"


def tossing(task: str) -> str:
    """The name of the task in which members open coins, which choose the tuples to use and the tuples to check."""
    return f"{task}/coin"


def averaging(task: str) -> str:
    """The name of the task in which sites send the uploads of `task` under masks."""
    return f"{task}/mean"


def masked(task: str) -> str:
    """The name under which a site answers `task` itself with its upload under masks whose keys it has kept."""
    return f"{task}/masked"


def broken(task: str) -> str:
    """The name under which a site answers `averaging` with the site that broke the attempt instead of an upload."""
    return f"{task}/mean/broken"


def summed(task: str) -> str:
    """The name under which a member answers `averaging` with the sum that it has opened."""
    return f"{task}/mean/sum"


def handed_over(task: str) -> str:
    """The name under which a site that is not a member answers `averaging`, once it has sent its shares to the
    members.
    """
    return f"{task}/mean/shared"


def unmasking(task: str) -> str:
    """The name of the task in which members open the sum of masked uploads."""
    return f"{task}/unmask"


def _masked(spec: TensorSpec) -> Protection:
    return Protection.DP_MASKED if spec.protection.private else Protection.MASKED
