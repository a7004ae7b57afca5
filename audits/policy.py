"""A site's own allow-list and demands: whatever it does not name is refused, and a job may only be stricter."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from audits.errors import PolicyError, Refusal, ReleaseFault
from audits.exchange import SITES, Kind, Protection, TensorSpec, canonical

MOST_EPSILON = 10.0
"""The default limit of a site that requires differential privacy: a larger epsilon promises little."""


@dataclass(frozen=True)
class Offer:
    """The protection that a job offers its sites. `delta` and `unit` are those of its differential privacy, if any.

    With secure aggregation, at least `members` sites compute: those of the `committee`, if the job names one.
    `crypten_means`: they compute means with CrypTen; `masked_means`: the server computes means of masked uploads.
    `colluders`: if sites share the noise, how many may reveal their part to the server; None if each site's own noise
    suffices.
    """

    min_sites: int = 1
    secagg: bool = False
    delta: float | None = None
    unit: str | None = None
    members: int = 0
    committee: tuple[str, ...] = ()
    crypten_means: bool = False
    mixture_share: float = 0.0
    """The largest share of one site's values in another site's mixture."""
    colluders: int | None = None
    masked_means: bool = False


@dataclass(frozen=True)
class SitePolicy:
    """Which methods may run, which kinds of tensors may cross the site's border, and what a job must offer.

    Raises `PolicyError` if epsilon is limited but `require_dp` is false, or if two demands exclude each other.
    """

    methods: tuple[str, ...]
    kinds: tuple[Kind, ...]
    recipients: tuple[str, ...] = ("server", SITES)
    """The peers that may receive tensors. Other sites receive shares only."""
    require_dp: bool = False
    """Whether everything that depends on data must leave under differential privacy."""
    max_epsilon: float | None = None
    """The most that all jobs may cost any patient, in nats at a delta of `delta` or less: see `epsilon_limit`."""
    max_epsilon_per_job: float | None = None
    """The most that one job may cost any patient, in nats."""
    delta: float = 1e-5
    """The largest delta that a job may use."""
    unit: str = "patient"
    """The privacy unit."""
    colluders: int | None = None
    """How many other sites may reveal their part of shared noise to the server: the limits of epsilon hold even if all
    of these do. None trusts no other site, so jobs whose sites share noise are refused."""
    require_secagg: bool = False
    """Whether contributions must be aggregated without the server seeing them one by one."""
    min_sites: int = 1
    """The fewest sites that a job must ask for."""
    committee: tuple[str, ...] = ()
    """The sites that compute in every job with secure aggregation; none: all or drawn ones, never named by the job."""
    min_committee: int = 3
    """The fewest sites that must compute."""
    require_masks: bool = False
    """Whether means on shares must be computed under masks, not by members with CrypTen."""
    require_crypten: bool = False
    """Whether means on shares must be computed by members with CrypTen, not under masks."""
    min_difference: int = 2
    """The fewest sites whose combined inputs may follow from this site's sums without differential privacy."""
    min_count: int = 10
    """The fewest patients about whom a count, or a share of one, may leave in clear: see `withholds`."""
    allowed_backbones: tuple[str, ...] = ()
    """Names of backbones that jobs may use beside those that ship with the project or lie in the site's own files."""
    submitters: tuple[str, ...] = ()
    """SHA-256 fingerprints of the certificates of those who may submit jobs; none: whoever the federation admits."""
    revoked_submitters: tuple[str, ...] = ()
    """SHA-256 fingerprints of certificates whose jobs the site refuses, though the federation still admits them."""
    require_fresh: bool = True
    """Whether a job under differential privacy must be signed with a nonce and an expiry."""
    repeats: int = 3
    """How often within a day one definition without a nonce may run."""
    data_refusals: int = 3
    """How many jobs within a day may fail at the site's data before it refuses new jobs."""
    allow_export: bool = False
    """Whether the site's own users may write a trained model to a folder that can be carried away."""
    max_mixture_share: float = 1.0
    """The largest share that one site's values may have in the mixture that another receives; 1: it may be all."""
    require_audited_methods: bool = False
    """Whether a method from outside that trains privately must have passed `medfedvqa audit neighbours` here."""

    @property
    def epsilon_limit(self) -> float | None:
        """The most that all jobs together may cost; a site that requires differential privacy always has a limit."""
        return self.max_epsilon or (MOST_EPSILON if self.require_dp else None)

    def __post_init__(self) -> None:
        if not self.require_dp and (self.max_epsilon is not None or self.max_epsilon_per_job is not None):
            raise PolicyError("a policy that limits epsilon must set 'require_dp: true': other jobs have no epsilon")
        if self.require_masks and self.require_crypten:
            raise PolicyError("a policy cannot demand both masks and CrypTen: demand one, or leave it to the job")

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any]) -> "SitePolicy":
        """Reads a site's configuration. Only `methods` and `kinds` are required; other settings have defaults.

        Raises `PolicyError` for a missing or unknown key and for a value of another type or range.
        """
        declared = {field.name: field for field in fields(cls)}
        if not isinstance(settings, Mapping) or not settings.keys() <= declared.keys():
            raise PolicyError(f"the policy must be a table with the keys {', '.join(declared)} and no others")
        for key, field in declared.items():
            if field.default is MISSING and key not in settings:
                raise PolicyError(f"the policy lacks '{key}': give the list of what the site allows")
        return cls(**{key: _read_value(key, value) for key, value in settings.items()})

    def digest(self) -> str:
        """SHA-256 of the settings, in hex. The order within a list does not matter.

        Logs name policies by it, so a setting that version 0.1.0 lacked counts only if it differs from `UNCOUNTED`.
        """
        values = {name: value for name, value in vars(self).items() if (name, value) not in UNCOUNTED.items()}
        content = {name: sorted(set(value)) if isinstance(value, tuple) else value for name, value in values.items()}
        return hashlib.sha256(canonical(content)).hexdigest()

    def allows(self, method: str, spec: TensorSpec) -> str | None:
        """`None` if the method's tensor may cross the border to all of its declared peers, else the reason."""
        if method not in self.methods:
            return ReleaseFault.METHOD.format(method=method)
        if spec.kind not in self.kinds:
            return ReleaseFault.KIND.format(kind=spec.kind, name=spec.name)
        if not set(spec.recipients) <= set(self.recipients):
            return ReleaseFault.RECIPIENT.format(name=spec.name)
        if SITES in spec.recipients and not spec.protection.masked:
            return ReleaseFault.OPEN.format(name=spec.name)
        return None

    def withholds(self, spec: TensorSpec, patients: int) -> bool:
        """Whether a figure stays at the site: exact, and about fewer than `min_count` patients (1 is no limit)."""
        in_clear = spec.kind is Kind.STATISTIC and spec.protection is Protection.NONE
        return in_clear and patients < self.min_count > 1

    def refusal(self, job: Offer) -> tuple[Refusal, str] | None:
        """`None` if a job offers all that the site demands, else the code and the reason of its refusal."""
        if self.require_dp and job.delta is None:
            return Refusal.PRIVACY, ReleaseFault.DP
        if job.delta is not None and job.delta > self.delta:
            return Refusal.PRIVACY, ReleaseFault.DELTA
        if job.unit is not None and job.unit != self.unit:
            return Refusal.PRIVACY, ReleaseFault.UNIT.format(unit=self.unit)
        if job.colluders is not None and (self.colluders is None or job.colluders < self.colluders):
            return Refusal.NOISE, Refusal.NOISE.sentence
        if self.require_secagg and not job.secagg:
            return Refusal.SECAGG, ReleaseFault.SECAGG
        if job.min_sites < self.min_sites:
            return Refusal.SITES, ReleaseFault.SITES.format(count=self.min_sites)
        if job.secagg and set(job.committee) != set(self.committee):
            return Refusal.COMMITTEE, ReleaseFault.COMMITTEE
        if job.secagg and job.members < self.min_committee:
            return Refusal.COMMITTEE, ReleaseFault.MEMBERS.format(count=self.min_committee)
        if self.require_masks and job.crypten_means:
            return Refusal.MASKS, Refusal.MASKS.sentence
        if self.require_crypten and job.masked_means:
            return Refusal.CRYPTEN, Refusal.CRYPTEN.sentence
        if job.mixture_share > self.max_mixture_share:
            return Refusal.MIXTURE, Refusal.MIXTURE.sentence
        return None


_FIRST = (
    *("methods", "kinds", "recipients", "require_dp", "max_epsilon", "max_epsilon_per_job", "delta", "unit"),
    *("require_secagg", "min_sites", "committee", "min_committee"),
)
UNCOUNTED: dict[str, Any] = {
    **{field.name: field.default for field in fields(SitePolicy) if field.name not in _FIRST},
    **{"min_difference": 2, "min_count": 10, "repeats": 3, "data_refusals": 3, "max_mixture_share": 1.0},
}
"""Settings that version 0.1.0 lacked, with the values that no digest counts. The numbers stay even if defaults change,
so that digests in signed logs still match their policies."""


def _read_value(key: str, value: Any) -> Any:
    reader, form = _READERS[key]
    try:
        return reader(value)
    except (TypeError, ValueError, OverflowError):
        raise PolicyError(f"the policy's '{key}' must be {form}") from None


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(text, str) and text for text in value):
        raise TypeError
    return tuple(value)


def _fingerprints(value: Any) -> tuple[str, ...]:
    if not all(len(text) == 64 and set(text) <= set("0123456789abcdef") for text in _texts(value)):
        raise ValueError
    return tuple(value)


def _kinds(value: Any) -> tuple[Kind, ...]:
    return tuple(Kind(kind) for kind in _texts(value))


_MOST = 2**31 - 1
"""The largest number of sites that a policy may name."""


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


_LARGEST = 1e6
"""Limits are below this value."""


def _limit(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < _LARGEST:
        raise TypeError
    return float(value)


def _delta(value: Any) -> float:
    delta = _limit(value)
    if delta is None or delta >= 1:
        raise ValueError
    return delta


def _mixture_share(value: Any) -> float:
    share = _limit(value)
    if share is None or not 0.5 <= share <= 1:
        raise ValueError
    return share


def _unit(value: Any) -> str:
    if value != "patient":
        raise ValueError
    return "patient"


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
        raise TypeError
    return value


def _colluders(value: Any) -> int | None:
    return value if value is None or (type(value) is int and value == 0) else _count(value)


def _least_committee(value: Any) -> int:
    if _count(value) < 3:
        raise ValueError
    return int(value)


def _least_difference(value: Any) -> int:
    if _count(value) < 2:
        raise ValueError
    return int(value)


_READERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "methods": (_texts, "a list of names"),
    "recipients": (_texts, "a list of names"),
    "kinds": (_kinds, f"a list that may hold only {', '.join(Kind)}"),
    "require_dp": (_flag, "true or false"),
    "require_secagg": (_flag, "true or false"),
    "max_epsilon": (_limit, "a positive number"),
    "max_epsilon_per_job": (_limit, "a positive number"),
    "delta": (_delta, "a number between 0 and 1, as 1.0e-5"),
    "unit": (_unit, "'patient'"),
    "colluders": (_colluders, "a whole number, or null"),
    "min_sites": (_count, "a whole number, at least 1"),
    "committee": (_texts, "a list of names"),
    "min_committee": (_least_committee, "a whole number, at least 3"),
    "require_masks": (_flag, "true or false"),
    "require_crypten": (_flag, "true or false"),
    "min_difference": (_least_difference, "a whole number, at least 2"),
    "min_count": (_count, "a whole number, at least 1"),
    "allowed_backbones": (_texts, "a list of names"),
    "submitters": (_fingerprints, "a list of SHA-256 fingerprints, 64 hex digits each"),
    "revoked_submitters": (_fingerprints, "a list of SHA-256 fingerprints, 64 hex digits each"),
    "require_fresh": (_flag, "true or false"),
    "repeats": (_count, "a whole number, at least 1"),
    "data_refusals": (_count, "a whole number, at least 1"),
    "allow_export": (_flag, "true or false"),
    "max_mixture_share": (_mixture_share, "a number from 0.5 to 1"),
    "require_audited_methods": (_flag, "true or false"),
}
