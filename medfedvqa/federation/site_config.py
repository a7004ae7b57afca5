"""`site.yml`: a hospital's own settings, which no job can name or change."""

import math
import os
from pathlib import Path
from typing import Any, Literal, Self, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from audits import SitePolicy
from audits.bounded_files import MAX_TEXT, read_bounded
from medfedvqa.atomic_files import require_none_pending
from medfedvqa.bounds import PUBLIC_FOLDER, OrganName
from medfedvqa.checking import checked
from medfedvqa.devices import Precision
from medfedvqa.errors import ConfigError
from medfedvqa.federation.proxies import refuse_settings
from medfedvqa.plugins import checked_list, read_passed
from medfedvqa.public_answers import ListName, bundled_list, public_list
from privacy.settings import Governance

TEMPLATE = """\
# What this hospital brings to a federation, and what it allows. Paths are relative to this file.

# Which data this site holds: reader vqa-rad, slake, store or phantom (no root), or one of an allowed
# distribution; the organ is one of its.
data:
  reader: {reader}
  root: {root}
  organ: {organ}
  # The answers that a model of this site alone may give: `closed` or `public` for the project's lists, or one of your
  # own that you write without looking at the rows, in lower case and with "yes" and "no" in quotes. null: the answers
  # of the rows to train on; then the list itself depends on the patients, and differential privacy does not cover it.
  answers: {answers}
  # Of a store: whether nothing is trained here before a person has accepted every picture in `medfedvqa ingest review`.
  require_review: {require_review}

# cpu, cuda, cuda:NUMBER or auto (cuda where torch can use a card), and how many processor threads training may use.
device: {device}
threads: {threads}

# How the part of a backbone that no training reaches is computed: float32, or bfloat16, which is faster on processors
# and cards that have it. Jobs under differential privacy compute in float32 always.
precision: {precision}

# How many MiB of memory pictures and what the frozen backbone makes of them may take; what does not fit lies in a
# nameless file in `state`, of at most this many MiB of disk, that is gone when the process ends.
pictures: {pictures}

# Where the site's own models and test results rest, the log of everything that left, and the privacy ledger:
# what jobs have spent of each patient's budget. Log and ledger outlive jobs: back them up together. All sites of a
# store name the ledger that the store is bound to: STORE.ledger beside it, as `medfedvqa ingest` makes it.
state: {state}
audit: {audit}
ledger: {ledger}

# The site's own key for secure aggregation (never sent), and the other sites' fingerprints by their names in the
# federation. `provisioned_peers` came with the kit, and whoever made the kits could have made them up: compare each by
# phone (`medfedvqa peers verify`), and write it into `peers`, which counts first, by `medfedvqa peers add`.
identity: {identity}
peers: {peers}
provisioned_peers: {provisioned_peers}

# The key with which the site signs its log (made at first use, never sent), and verifier keys of other sites and the
# server by their names, if they were compared by phone: `medfedvqa audit key` shows this site's own. Others' keys are
# taken as they are first seen.
audit_key: {audit_key}
audit_peers: {audit_peers}

# How the process that reads the rows must be kept from the network: kernel (by a name space, a service or container
# without network, or a filter of sockets: whichever this machine permits), or none, if it may have one.
isolation: {isolation}

# How many jobs may work here at once, each with about 1 GB of memory; further ones wait in the vault.
jobs: {jobs}

# The socket of the machine's own log, as in /dev/log (syslog, journald), which receives refused jobs and findings
# by their codes; null: it receives nothing.
system_log: {system_log}

# Local checkpoints by name, as in ViT-B-32@hospital: /models/vit.safetensors
backbones: {backbones}

# The folder with the public pictures of jobs that learn from a set of their users' own (-O public=DIGEST); null: none.
public_set: {public_set}

# Distributions from outside that bring methods, readers or backbones, each with the digest of the code that you looked
# at: `medfedvqa plugins` prints both. Nothing of any other is loaded.
plugins: {plugins}

# Who of the site must approve each job before it runs (`medfedvqa jobs pending`): the lines that `medfedvqa jobs
# approver NAME --key FILE` prints, each of one person's own key. []: jobs run without.
approvers: {approvers}

# What reports print as the site's own words, each optional: purpose, controller, contact, legal_basis, retention,
# epsilon_decided_by, epsilon_reason, permitted_use, review_date. As in {{purpose: "...", contact: "..."}}
governance: {governance}

# What may leave, and what a job must offer. Everything else is refused; a job may only be stricter.
policy:
  methods: {methods}
  kinds: {kinds}
  # Whether all that depends on data must be under differential privacy; what all jobs together, and one job, may
  # cost any patient (epsilon, in nats; null: 10 for all jobs together if differential privacy is required, else no
  # limit); the largest delta, below 1 over the number of patients.
  require_dp: {require_dp}
  max_epsilon: {max_epsilon}
  max_epsilon_per_job: {max_epsilon_per_job}
  delta: {delta}
  unit: patient
  # Under masks, sites may share the noise of a sum: each adds a part, and what the others tell the server of theirs
  # protects nobody. How many other sites may do so: the limits above count against the server and all of these.
  # null trusts none of the others, and refuses such jobs; 0 counts against the server and outsiders alone.
  colluders: {colluders}
  # Whether the server may see single sites' contributions, and the fewest sites that a job must ask for.
  require_secagg: {require_secagg}
  min_sites: {min_sites}
  # The sites that compute in secure aggregation, by name, or [] if the job may have all do so or draw some for each
  # round; and the fewest that must compute.
  committee: {committee}
  min_committee: {min_committee}
  # Whether means must be computed under masks, which bear sites that die, and not by those sites with CrypTen.
  require_masks: {require_masks}
  # Or whether the members of the committee must compute means with CrypTen, and not the server under masks.
  require_crypten: {require_crypten}
  # Without differential privacy: the fewest sites whose sum may follow from sums over different sites, of this job and
  # all earlier ones that this site was in. 2: no single site's; 3: nor two sites', one of which could subtract itself.
  min_difference: {min_difference}
  # Without differential privacy: the fewest patients about whom a count or an accuracy may leave in clear. Test results
  # of fewer stay here; a job that needs such a figure in every round is refused. The phantom set has no patients.
  min_count: {min_count}
  # Backbones that jobs may use beside those that ship with the project and those named above; who may submit jobs, by
  # fingerprint of the certificate, as `medfedvqa doctor` shows it for an administrator's kit ([]: whoever the
  # federation admits).
  allowed_backbones: {allowed_backbones}
  submitters: {submitters}
  # Certificates, by fingerprint, whose jobs you refuse from now on, though the federation still admits them: for a
  # person who left, or a lost key. A run that has begun ends when it is next continued after a restart.
  revoked_submitters: {revoked_submitters}
  # A job signed with a nonce and an expiry runs once. Whether jobs under differential privacy must be so signed; how
  # often a day the same job without a nonce may run; and after how many jobs a day that failed at this site's data it
  # takes no new one.
  require_fresh: {require_fresh}
  repeats: {repeats}
  data_refusals: {data_refusals}
  # Whether your own users may write a model that was trained here to a folder that can be carried away.
  allow_export: {allow_export}
  # The largest share, from 0.5 to 1, that one site's values may have in the mixture that another site receives. 1: all,
  # so that a job may hand this site's prompts to another hospital as they are, where only these resemble its own.
  max_mixture_share: {max_mixture_share}
  # Whether a method from outside that trains under differential privacy must have passed `medfedvqa audit neighbours
  # METHOD --site` with this file.
  require_audited_methods: {require_audited_methods}
"""

MEMORY_MB, DISK_MB = 512, 32768
"""Default MiB of memory and disk for a site's pictures: with 10,000 of 224 pixels a process takes at most 2 GB."""

DEFAULTS: dict[str, Any] = {
    "root": None, "answers": None, "require_review": False, "device": "cpu", "threads": 1, "precision": "float32",
    "pictures": {"memory_mb": MEMORY_MB, "disk_mb": DISK_MB},
    "state": "state", "audit": "audit", "ledger": "ledger", "backbones": {}, "public_set": None, "plugins": {},
    "approvers": [],
    "governance": None,
    "require_dp": False, "max_epsilon": None, "max_epsilon_per_job": None, "delta": 1e-5,
    "colluders": None,
    "require_secagg": False, "min_sites": 1, "identity": "identity.key", "peers": {}, "provisioned_peers": {},
    "committee": [], "audit_key": "audit.key", "audit_peers": {}, "isolation": "kernel", "jobs": 4, "system_log": None,
    "min_committee": 3, "require_masks": False, "require_crypten": False, "min_difference": 2, "min_count": 10,
    "allowed_backbones": [], "submitters": [], "revoked_submitters": [],
    "require_fresh": True, "repeats": 3, "data_refusals": 3, "allow_export": False,
    "max_mixture_share": 1.0, "require_audited_methods": False,
    "kinds": ["parameters", "statistic", "public"],
}  # fmt: skip

_PLACES = ("state", "audit", "ledger", "identity", "audit_key")
"""The settings that are paths, relative to `site.yml`."""


class _Data(BaseModel, frozen=True, extra="forbid"):
    reader: str
    root: Path | None = None
    organ: OrganName
    answers: tuple[str, ...] | None = None
    """The declared answer space; None means the answers of the train rows."""
    require_review: bool = False
    """Whether the site trains only on a store whose pictures a person has reviewed."""

    @model_validator(mode="after")
    def _can_be_reviewed(self) -> Self:
        if self.require_review and self.reader != "store":
            raise ValueError("only a store is reviewed: set require_review to false for other readers")
        return self

    @field_validator("answers", mode="before")
    @classmethod
    def _are_public(cls, answers: Any) -> tuple[str, ...] | None:
        if answers is None:
            return None
        if answers in get_args(ListName):
            return bundled_list(answers)
        if not isinstance(answers, (list, tuple)) or not all(isinstance(answer, str) for answer in answers):
            raise ValueError("write 'closed', 'public' or a list of texts; yes, no and numbers need quotes")
        return public_list(answers)


class _Pictures(BaseModel, frozen=True, extra="forbid"):
    memory_mb: int = Field(default=MEMORY_MB, ge=0)
    """MiB of memory, or of the card's memory, for pictures and what is computed from them."""
    disk_mb: int = Field(default=DISK_MB, ge=0)
    """MiB of disk for what does not fit into memory."""


class SiteConfig(BaseModel):
    """One site's settings. `load_site_config` makes the paths absolute."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    name: str
    data: _Data
    device: str = "cpu"
    threads: int = Field(1, ge=1)
    precision: Precision = "float32"
    pictures: _Pictures = _Pictures()
    state: Path
    audit: Path
    ledger: Path
    identity: Path = Path("identity.key")
    peers: dict[str, str] = Field(default_factory=dict)
    """SHA-256 fingerprints of other sites' keys, 64 hex digits each, by name; people have compared them."""
    provisioned_peers: dict[str, str] = Field(default_factory=dict)
    """Fingerprints in the form of `peers` that came with the kit; `peers` may lack some of these sites."""
    audit_key: Path = Path("audit.key")
    audit_peers: dict[str, str] = Field(default_factory=dict)
    """Verifier keys of other sites' logs and of the server's, by name."""
    isolation: Literal["kernel", "none"] = "kernel"
    """Whether rows are read only by a process from which the kernel keeps the network: see `medfedvqa.vault`."""
    jobs: int = Field(4, ge=1)
    """The most jobs that work at once: by default as many as FLARE's server runs."""
    system_log: Path | None = None
    """The socket of the machine's log that receives refusals and findings."""
    backbones: dict[str, Path] = Field(default_factory=dict)
    public_set: Path | None = None
    """See `medfedvqa.data.public_sets`."""
    plugins: dict[str, str] = Field(default_factory=dict)
    """SHA-256 digests, in hex, of the outside distributions that may be loaded, by name: see `medfedvqa.plugins`."""
    policy: SitePolicy
    approvers: tuple[str, ...] = ()
    """Verifier keys of the persons one of whom must approve each job: see `medfedvqa.federation.approvals`."""
    governance: Governance | None = None
    """What reports print as the site's own words."""
    passed: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """From a file beside `site.yml`: see `medfedvqa.plugins.read_passed`. In `site.yml` it is ignored, like `name`."""
    repeatable_noise: int | None = None
    """A seed for repeatable noise, for tests. Such noise protects nobody, and its charges are marked void. Training on
    shares then follows from the job's seed alone."""

    @field_validator("plugins", mode="before")
    @classmethod
    def _are_a_list(cls, plugins: Any) -> dict[str, str]:
        return checked_list(plugins)

    @property
    def known_peers(self) -> dict[str, str]:
        """The fingerprints of other sites' keys, by site; those that people compared take precedence."""
        return {**self.provisioned_peers, **self.peers}


def load_site_config(path: Path, name: str) -> SiteConfig:
    """Read one site's file. Raises `ConfigError` or `PolicyError`; neither quotes the file's values.

    From then on this process uses the public set that the file names.
    """
    require_none_pending(path.parent)
    try:
        raw = yaml.safe_load(read_bounded(path, MAX_TEXT).decode())
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        raise ConfigError(f"site '{name}': site.yml is missing or is not valid YAML; the site does not start") from None
    if not isinstance(raw, dict) or "policy" not in raw:
        raise ConfigError(f"site '{name}': site.yml has no policy; the site does not start")
    refuse_settings(raw)
    raw["policy"] = SitePolicy.from_mapping(raw["policy"])
    passed = read_passed(path.parent)
    config = checked(SiteConfig, {**raw, "name": name, "passed": passed}, f"site '{name}', site.yml")
    folder = path.resolve().parent
    root = config.data.root and folder / config.data.root
    places = {field: folder / getattr(config, field) for field in _PLACES}
    backbones = {label: folder / file for label, file in config.backbones.items()}
    data = config.data.model_copy(update={"root": root})
    if config.public_set is not None:
        os.environ[PUBLIC_FOLDER] = str(folder / config.public_set)
    return config.model_copy(update={**places, "data": data, "backbones": backbones})


def site_yaml(**values: Any) -> str:
    """The commented `site.yml` with these values filled in."""
    drawn = {"min_count": 1} if values.get("reader") == "phantom" else {}
    filled = {**DEFAULTS, **drawn, **values}
    plain = {key: yaml.safe_dump(value, default_flow_style=True, width=math.inf) for key, value in filled.items()}
    plain = {key: text.removesuffix("\n").removesuffix("\n...") for key, text in plain.items()}
    seed = plain.get("repeatable_noise")
    return TEMPLATE.format(**plain) + (f"repeatable_noise: {seed}\n" if seed else "")
