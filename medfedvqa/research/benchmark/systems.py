"""The systems of the benchmark: methods with options, under the names that tables print."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from medfedvqa.core import method_names, method_type, stepwise
from medfedvqa.core.averaging import Averaging
from medfedvqa.core.registry import is_built_in
from medfedvqa.core.trunk_options import TrunkName
from medfedvqa.errors import ConfigError
from privacy import Secagg

WITHOUT = " without the picture"
"""The end of a label: the same system on black pictures."""


@dataclass(frozen=True)
class System:
    """A method with options. `label` names it in tables and, reduced to letters and digits, its folder."""

    label: str
    method: str
    options: dict[str, Any] = field(default_factory=dict)
    baseline: bool = True
    """Whether the founding papers compare themselves with it; false for a system that no federation can run."""
    centralised: bool = False
    """Whether the method trains on the rows of all sites at once, which the benchmark can and a job cannot."""
    secagg: Secagg = False
    """Whether the job aggregates on secret shares, for methods that require it."""

    alone: str = ""
    """The label of the same model without the other sites, trained for equal steps; empty if there is none."""
    family: str = ""
    """The label of the system with the same tuned part that it takes searched options from; empty for its own."""
    pictures: bool = True
    """Whether it sees the pictures. If not, it trains and tests on black ones."""

    @property
    def without_picture(self) -> str:
        """The label of the same system without the picture; empty for that system itself."""
        return self.label + WITHOUT if self.pictures else ""

    @property
    def folder(self) -> str:
        """The name of the system's folder."""
        return "".join(character if character.isalnum() else "-" for character in self.label.lower()).strip("-")

    def with_budget(self, budget: dict[str, Any]) -> dict[str, Any]:
        """The method's options, with those options of the common budget that the method has.

        For split learning the budget's decay becomes a list of rounds.
        """
        if {"rounds", "decay_every"} <= budget.keys():
            every = budget["decay_every"]
            budget = {"decay_after": tuple(range(every, budget["rounds"], every))} | budget
        fields = method_type(self.method).config_type.model_fields
        return {name: value for name, value in budget.items() if name in fields} | self.options


PM = "prompt_pfl (PM)"
ABLATIONS = {
    "AS1": "no prompts; not shared",
    "AS2": "not shared",
    "AS3": "no image prompt",
    "AS4": "no text prompt",
}
"""The ablations of the prompt paper, with the options that each changes."""
AS2_FIVE = "prompt_pfl AS2 (five heads; not shared)"
PROMPT_PFL: dict[str, Any] = {"learning_rate": 0.002, "local_baseline": False, "optimizer": "adamw"}
"""The paper names no optimiser; AdamW decouples weight decay from the gradient, as in all other lines."""
BUDGET: dict[str, Any] = {"rounds": 10, "local_epochs": 2, "batch_rows": 32, "decay": 0.3, "decay_every": 4}
"""The options of every system, unless its row sets another value."""
COMMON = (*BUDGET, "keep")
"""Options that apply to all systems of one table that have such an option."""

MANY_WEIGHTS = 3e-4
"""The learning rate where whole blocks are tuned. At the papers' 1e-4 a new head still gives the majority answer after
so few passes; of 1e-4, 3e-4 and 1e-3 this is the smallest that does better on VQA-RAD's validation rows."""
FEDP3: dict[str, Any] = {"tuning": "blocks", "blocks": 3, "learning_rate": MANY_WEIGHTS}
"""The last three blocks, as in the paper, for FedP3 and the methods that it is compared with."""
WEIGHT = 0.03
"""FedP3's lambda. The paper's 1 is for a VQA model that is trained already; it keeps a model with a new head where it
began (docs/methods/fedp3.md)."""

LOCAL_HEAD: dict[str, Any] = {"own": "head"}
FROZEN: dict[str, Any] = {"tuning": "classifier"} | LOCAL_HEAD
TUNED = {"adapter": "local (DT)", "LoRA": "local LoRA", "prompt": "local prompt", "bias": "local bias"}
"""The label of the system that trains alone, by what is tuned."""
ADAPTER: dict[str, Any] = {"tuning": "adapter"}
PROXIMAL = {"FedProx": "fedprox", "MOON": "moon", "FedKD": "fedkd", "FedDC": "feddc"}
BLOCKS_ALONE = "local last 3 blocks"
PUBLIC: dict[str, Any] = {"answers": "public"}
"""All training answers of the published sets, as a list for every site. FedP3 has it, so that its filter leaves most
answers out, as the paper's 20 of 1,642 do; what FedP3 is compared with has the same list."""
BLOCKS_ALONE_PUBLIC = f"{BLOCKS_ALONE} (public answers)"
OWN_HEAD_ALONE = f"{TUNED['adapter']} local head"
FIVE: dict[str, Any] = {"heads": 5}
"""Five heads that answer together."""
FEDP3_VARIANTS: dict[str, dict[str, Any]] = {
    "FedP3": {},
    "FedP3 all answers": {"filter": "all"},
    "FedP3 random filter": {"filter": "random"},
    "FedP3 student filter": {"filter": "student"},
    "FedP3 teacher filter": {"filter": "teacher"},
    "FedP3 Eq. 11 filter": {"filter": "eq11"},
    "FedP3 lambda = 1": {"weight": 1.0},
}
FEDDAT_VARIANTS: dict[str, dict[str, Any]] = {
    "FedDAT": {},
    "FedDAT without frozen": {"ablation": "frozen"},
    "FedDAT without local": {"ablation": "local"},
    "FedDAT without MKD": {"ablation": "mkd"},
    "FedDAT: local adapter tested": {"inference": "local"},
    "FedDAT: both adapters tested": {"inference": "both"},
}


def _fedp3(label: str, changes: dict[str, Any]) -> System:
    """A line with FedP3's teacher, and the list of answers that its filter needs."""
    options = FEDP3 | PUBLIC | {"weight": WEIGHT} | changes
    return System(label, "fedp3", options, baseline=False, alone=BLOCKS_ALONE_PUBLIC, family=BLOCKS_ALONE)


def _tuned(kind: str) -> dict[str, Any]:
    return {"tuning": kind.lower()}


_LISTED = (
    # What is cheap: no picture, and heads on frozen features.
    System("bag of words", "bag_of_words"),
    System("question alone", "local", FROZEN | {"fusion": "text"}),
    System("frozen features", "local", FROZEN),
    System("frozen features (two-layer head)", "local", FROZEN | {"fusion": "concat", "question_input": "tower"}),
    System("frozen features (attending head)", "local", FROZEN | {"fusion": "attend"}),
    System("frozen features (five heads)", "local", FROZEN | FIVE, family="frozen features"),
    System(
        "frozen features (rows of all sites)",
        "local",
        FROZEN,
        baseline=False,
        centralised=True,
        family="frozen features",
    ),
    System("ridge", "ridge", alone="ridge (not shared)"),
    System("ridge (not shared)", "ridge", {"mixes": (0.0,)}),
    System("ridge (all sites' mean)", "ridge", {"mixes": (1.0,)}, alone="ridge (not shared)"),
    # Systems that need no federation, and one that none can reach.
    *(System(label, "local", _tuned(kind)) for kind, label in TUNED.items()),
    *(System(f"{label} local head", "local", _tuned(kind) | LOCAL_HEAD, family=label) for kind, label in TUNED.items()),
    System("local classifier", "local", {"tuning": "classifier"}, family="FedAvg classifier"),
    System("local full", "local", {"tuning": "full", "learning_rate": MANY_WEIGHTS}),
    System(BLOCKS_ALONE, "local", FEDP3),
    System(BLOCKS_ALONE_PUBLIC, "local", FEDP3 | PUBLIC, family=BLOCKS_ALONE),
    System("centralised", "local", ADAPTER, baseline=False, centralised=True, family=TUNED["adapter"]),
    System("SAN", "san"),
    System("MEVF-style", "mevf"),
    System("PubMedCLIP-style", "pubmedclip"),
    # Averaging, by what is tuned, with a shared head and with each site's own.
    *(System(f"FedAvg {kind}", "fedavg", _tuned(kind), alone=label, family=label) for kind, label in TUNED.items()),
    *(
        System(
            f"FedAvg {kind} local head", "fedavg", _tuned(kind) | LOCAL_HEAD, alone=f"{label} local head", family=label
        )
        for kind, label in TUNED.items()
    ),
    System("FedAvg classifier", "fedavg", {"tuning": "classifier"}, alone="local classifier"),
    System(
        "FedAvg full",
        "fedavg",
        {"tuning": "full", "learning_rate": MANY_WEIGHTS},
        alone="local full",
        family="local full",
    ),
    System("FedAvg last 3 blocks", "fedavg", FEDP3, alone=BLOCKS_ALONE, family=BLOCKS_ALONE),
    System(
        "FedAvg last 3 blocks (public answers)",
        "fedavg",
        FEDP3 | PUBLIC,
        alone=BLOCKS_ALONE_PUBLIC,
        family=BLOCKS_ALONE,
    ),
    # Other federated baselines: on FedAvg's adapters, and on the blocks that FedP3's paper tunes for all.
    *(
        System(f"{name} adapter", method, ADAPTER, alone=TUNED["adapter"], family=TUNED["adapter"])
        for name, method in PROXIMAL.items()
    ),
    *(
        System(f"{name} last 3 blocks", method, FEDP3, alone=BLOCKS_ALONE, family=BLOCKS_ALONE)
        for name, method in PROXIMAL.items()
    ),
    System("soft targets", "soft_targets", FEDP3, alone=BLOCKS_ALONE, family=BLOCKS_ALONE),
    System("SP", "sp", FEDP3, alone=BLOCKS_ALONE, family=BLOCKS_ALONE),
    System("CRD", "crd", FEDP3, alone=BLOCKS_ALONE, family=BLOCKS_ALONE),
    System("DKD", "dkd", FEDP3, alone=BLOCKS_ALONE, family=BLOCKS_ALONE),
    # The prompt paper.
    System(PM, "prompt_pfl", PROMPT_PFL, baseline=False, alone="prompt_pfl AS2 (not shared)"),
    *(
        System(f"prompt_pfl {kind} ({what})", "prompt_pfl", PROMPT_PFL | {"ablation": kind}, baseline=False, family=PM)
        for kind, what in ABLATIONS.items()
    ),
    System("prompt_pfl (five heads)", "prompt_pfl", PROMPT_PFL | FIVE, baseline=False, alone=AS2_FIVE, family=PM),
    System(AS2_FIVE, "prompt_pfl", PROMPT_PFL | FIVE | {"ablation": "AS2"}, baseline=False, family=PM),
    # FedP3: its own rows; "Eq. 11" and "Eq. 12" are two ways to choose answers. FedDAT: without parts of the
    # teacher, and with other parts tested.
    *(_fedp3(label, changes) for label, changes in FEDP3_VARIANTS.items()),
    *(
        System(label, "feddat", changes, baseline=False, alone=OWN_HEAD_ALONE, family="FedDAT")
        for label, changes in FEDDAT_VARIANTS.items()
    ),
    # Exchange of knowledge without weights, and split learning, which counts batches instead of passes.
    System("CreamFL", "creamfl", baseline=False),
    System("UniCon", "unicon", baseline=False, secagg=True),
    System("split learning", "split_learning", secagg=True),
)


def _not_listed() -> Iterator[System]:
    """A baseline, with its class's name and default options, for each of the project's methods not listed above."""
    for name in method_names():
        kind = method_type(name)
        if name not in {system.method for system in _LISTED} and is_built_in(name):
            adapter = kind.config_type.model_fields.get("tuning")
            averages = issubclass(kind, Averaging) and adapter is not None and adapter.default == "adapter"
            same = TUNED["adapter"] if averages else ""
            yield System(kind.__name__, name, alone=same, family=same)


def without_picture(system: System) -> System:
    """The same system on black pictures. It is compared with nothing but the system itself."""
    return replace(system, label=system.label + WITHOUT, baseline=False, alone="", pictures=False)


_SIGHTED = (*_LISTED, *_not_listed())
_BLIND = ("frozen features", "local (DT)", "FedAvg full", PM, "FedDAT")
"""The systems that the whole table also shows without pictures."""

SYSTEMS = (*_SIGHTED, *(without_picture(system) for system in _SIGHTED if system.label in _BLIND))


TRUNKS: tuple[TrunkName, ...] = get_args(TrunkName)
"""The trunks of UniCon's paper."""
CONTRASTIVE, SUPERVISED = "centralised contrastive", "centralised"
"""The label prefixes of a trunk that is trained on the rows of all sites."""
ALONE: dict[str, Any] = {"aggregate": "none"}
"""The options of a split model when one site holds all rows, with nobody to average with."""


def _on_trunk(trunk: TrunkName) -> Iterator[System]:
    """The columns of UniCon's Tables 2 and 3 for one trunk, and the same trunk by averaging, alone and cut twice."""
    part: dict[str, Any] = {"trunk": trunk, "tuning": "full"}
    answered = part | {"fusion": "concat", "question_input": "tower"}
    yield System(f"{SUPERVISED} {trunk}", "local", answered, baseline=False, centralised=True)
    yield System(f"{CONTRASTIVE} {trunk}", "unicon", part | ALONE, baseline=False, centralised=True)
    yield System(f"UniCon {trunk}", "unicon", part, baseline=False, secagg=True)
    yield System(f"split learning {trunk}", "split_learning", part, secagg=True)
    yield System(f"FedAvg {trunk}", "fedavg", answered, alone=f"local {trunk}")
    yield System(f"local {trunk}", "local", answered)


CREAMFL_ABLATIONS: dict[str, dict[str, Any]] = {
    "CreamFL: server alone": {"kd": 0.0},
    "CreamFL: mean": {"gca": False, "inter": False, "intra": False},
    "CreamFL: GCA": {"inter": False, "intra": False},
    "CreamFL: mean + inter": {"gca": False, "intra": False},
    "CreamFL: mean + intra": {"gca": False, "inter": False},
    "CreamFL: mean + inter + intra": {"gca": False},
    "CreamFL: GCA + inter": {"intra": False},
    "CreamFL: GCA + intra": {"inter": False},
}
"""The paper's ablations: how the server combines representations, and which contrasts the sites have."""


PAPER_PROMPTS: dict[str, Any] = PROMPT_PFL | {
    **{"optimizer": "adam", "learning_rate": 0.01, "decay": 0.1, "decay_every": 10},
    **{"similarity": "paper", "fusion": "concat", "question_input": "tower"},
}
"""The prompt paper's own rate, decay, head, and one cosine over both prompts in L_d and in eta."""
MENDED_PROMPTS: dict[str, Any] = PROMPT_PFL | {"loss": "sum", "compared": "changes", "length": 16}
MENDED_PROMPTS |= {"prompt_norm": "states", "prompt_std": 1.0, "prompt_rate": 0.3}
"""Prompts that change answers: found on SLAKE's validation rows of seed 0 (docs/methods/prompt_pfl.md)."""


def _kl(temperature: float, weight: float = 1.0, tau_squared: bool = True) -> dict[str, Any]:
    return {"preserve": "kl", "temperature": temperature, "weight": weight, "tau_squared": tau_squared}


def _sweeps() -> Iterator[System]:
    """The variants in FedP3's Tables 4 and 6 and Figs. 4 and 7, and the prompt paper's choices of r."""
    yield System("centralised last 3 blocks", "local", FEDP3, baseline=False, centralised=True, family=BLOCKS_ALONE)
    for temperature in (1, 2, 3):
        yield _fedp3(f"KP T = {temperature}", _kl(temperature))
    for temperature in (2, 3):
        yield _fedp3(f"KP T = {temperature} without tau^2", _kl(temperature, tau_squared=False))
    for weight in (0.1, 0.5, 2.0):
        yield _fedp3(f"KP lambda = {weight:g}", _kl(2, weight))
        yield _fedp3(f"FedP3 lambda = {weight:g}", {"weight": weight})
    for top in (5, 10, 50, 100):
        yield _fedp3(f"FedP3 N = {top}", {"top": top})
    yield _fedp3("FedP3 with LayerNorm", {"normed": True})
    for blocks in (1, 2, 3, 6, 9):
        yield System(f"prompt_pfl r = {blocks}", "prompt_pfl", PROMPT_PFL | {"blocks": blocks}, False, family=PM)
    yield System("prompt_pfl as printed", "prompt_pfl", PAPER_PROMPTS, baseline=False)
    yield System("prompt_pfl mended", "prompt_pfl", MENDED_PROMPTS, baseline=False)


STEP: dict[str, Any] = {"schedule": "stepwise", **stepwise.DEFAULTS, "keep": "last", "tuning": "classifier"}
"""A stepwise job of an answer head, whatever the budget of the other lines. It ends after its last step: no site
chooses a round by its validation rows."""
EQUAL_STEPS: dict[str, Any] = FROZEN | {
    **{name: value for name, value in stepwise.DEFAULTS.items() if name != "decay_every"},
    **{"rounds": 20, "local_epochs": 10, "decay_every": 7, "keep": "last"},
}
"""The same number of steps of the same optimiser at one site. The optimiser is new after every tenth step."""
MIXED: dict[str, dict[str, Any]] = {
    "by organ": {"mixing": "organ"},
    "organ alone": {"mixing": "organ", "others": 0.0},
    "by reliability": {"mixing": "reliability"},
}
"""The gradients a site's model takes: its organ's and 0.3 of the others', its organ's only, or all by reliability."""
OWN_PARTS: dict[str, dict[str, Any]] = {"own bias": {"own": "bias"}, "own last layer": {"own": "last"}}
LONGER: dict[str, dict[str, Any]] = {
    "100 exchanges of 2 batches": {"rounds": 100, "local_epochs": 2, "decay_every": 34},
    "50 exchanges of 4 batches": {"rounds": 50, "local_epochs": 4, "decay_every": 17},
}


def _stepwise() -> Iterator[System]:
    """Stepwise training of a head on frozen features, varied by the part that stays at a site, the mixing of gradients
    and the batches per exchange; and with adapters."""
    alone = "frozen features"
    yield System("stepwise", "fedavg", STEP, baseline=False, alone=alone)
    for label, options in (MIXED | OWN_PARTS | LONGER | {"finished": {"finish_epochs": 10}}).items():
        yield System(f"stepwise ({label})", "fedavg", STEP | options, baseline=False, alone=alone)
    yield System("stepwise adapter", "fedavg", STEP | ADAPTER, baseline=False, alone=TUNED["adapter"])
    yield System("stepwise adapter (five heads)", "fedavg", STEP | ADAPTER | FIVE, baseline=False)
    yield System("frozen features (equal steps)", "local", EQUAL_STEPS)
    yield System("FedProx classifier", "fedprox", {"tuning": "classifier"}, alone="local classifier")


AT_REQUEST = (
    *_stepwise(),
    *(system for trunk in TRUNKS for system in _on_trunk(trunk)),
    *(
        System(label, "creamfl", options, baseline=False, family="CreamFL")
        for label, options in CREAMFL_ABLATIONS.items()
    ),
    *_sweeps(),
    System(CONTRASTIVE, "unicon", ALONE, baseline=False, centralised=True),
    System(
        "FedAvg full local head",
        "fedavg",
        {"tuning": "full", "learning_rate": MANY_WEIGHTS} | LOCAL_HEAD,
        alone="local full",
        family="local full",
    ),
)
"""Systems that stand in a table only if their labels are named: they take long, or are another paper's protocol."""


def systems_named(names: Sequence[str]) -> tuple[System, ...]:
    """The systems with these labels or methods; all of `SYSTEMS` if there are no names. Raises `ConfigError`.

    A name that is a label stands for that system alone, even if it is also a method's. Every label may
    end in `WITHOUT`, also where the whole table has no such line.
    """
    if not names:
        return SYSTEMS
    systems: dict[str, System] = {}
    for name in names:
        matches = {s.label: s for s in (*SYSTEMS, *AT_REQUEST) if name == s.label}
        # A method's name alone selects systems that see pictures and do not pool the rows.
        matches = matches or {s.label: s for s in SYSTEMS if name == s.method and s.pictures and not s.centralised}
        sighted = (*_SIGHTED, *AT_REQUEST)
        matches |= {blind.label: blind for s in sighted if (blind := without_picture(s)).label == name}
        if not matches:
            raise ConfigError(f"there is no system '{name}'; there is: {', '.join(s.label for s in SYSTEMS)}")
        systems |= matches
    return tuple(systems.values())
