"""The systems of the benchmark: methods with options, under the names that tables print."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from medfedvqa.core import method_names, method_type
from medfedvqa.core.registry import BUILT_IN
from medfedvqa.errors import ConfigError


@dataclass(frozen=True)
class System:
    """A method with options. `label` names it in tables and, reduced to letters and digits, its folder."""

    label: str
    method: str
    options: dict[str, Any] = field(default_factory=dict)
    baseline: bool = True
    """Whether the founding papers compare themselves with it; a system that no federation can run is no baseline."""
    centralised: bool = False
    """Whether the method trains on the rows of all sites at once, which the benchmark can and a job cannot."""
    secagg: bool = False
    """Whether the job aggregates on shares, for methods that do not run without."""

    @property
    def folder(self) -> str:
        """The name of the system's folder."""
        return "".join(character if character.isalnum() else "-" for character in self.label.lower()).strip("-")

    def with_budget(self, budget: dict[str, Any]) -> dict[str, Any]:
        """The method's options under the budget of all systems, of which it takes the options that it has."""
        fields = method_type(self.method).config_type.model_fields
        return {name: value for name, value in budget.items() if name in fields} | self.options


PROMPT_PFL: dict[str, Any] = {"learning_rate": 0.002, "local_baseline": False}
BUDGET: dict[str, Any] = {"rounds": 10, "local_epochs": 2, "batch_rows": 32, "decay": 0.3, "decay_every": 4}
"""The options of every system, unless its row sets another value."""

MANY_WEIGHTS = 3e-4
"""The learning rate where whole blocks are tuned. At the papers' 1e-4 a new head still gives the majority answer after
so few passes; of 1e-4, 3e-4 and 1e-3 this is the smallest that does better on VQA-RAD's validation rows."""
FEDP3: dict[str, Any] = {"tuning": "blocks", "blocks": 3, "learning_rate": MANY_WEIGHTS}
"""The last three blocks, as in the paper, for FedP3 and the methods that it is compared with."""
WEIGHT = 0.03
"""FedP3's lambda. The paper's 1 is for a VQA model that is trained already; it keeps a model with a new head where it
began (docs/methods/fedp3.md)."""

UNICON: dict[str, Any] = {"decay_after": (4, 8)}
"""The common budget's decay, which UniCon states in another form."""


_LISTED = (
    # Systems that need no federation, and one that none can reach.
    System("local (DT)", "local", {"tuning": "adapter"}),
    System("local LoRA", "local", {"tuning": "lora"}),
    System("local prompt", "local", {"tuning": "prompt"}),
    System("local bias", "local", {"tuning": "bias"}),
    System("local classifier", "local", {"tuning": "classifier"}),
    System("local full", "local", {"tuning": "full", "learning_rate": MANY_WEIGHTS}),
    System("centralised", "local", {"tuning": "adapter"}, baseline=False, centralised=True),
    System("SAN", "san"),
    System("MEVF-style", "mevf"),
    System("PubMedCLIP-style", "pubmedclip"),
    # Averaging, by what is tuned.
    System("FedAvg adapter", "fedavg", {"tuning": "adapter"}),
    System("FedAvg LoRA", "fedavg", {"tuning": "lora"}),
    System("FedAvg prompt", "fedavg", {"tuning": "prompt"}),
    System("FedAvg bias", "fedavg", {"tuning": "bias"}),
    System("FedAvg classifier", "fedavg", {"tuning": "classifier"}),
    System("FedAvg full", "fedavg", {"tuning": "full", "learning_rate": MANY_WEIGHTS}),
    System("FedAvg last 3 blocks", "fedavg", FEDP3),
    # Other federated baselines.
    System("FedProx adapter", "fedprox", {"tuning": "adapter"}),
    System("MOON adapter", "moon", {"tuning": "adapter"}),
    System("FedKD adapter", "fedkd", {"tuning": "adapter"}),
    System("FedDC adapter", "feddc", {"tuning": "adapter"}),
    System("soft targets", "soft_targets", FEDP3),
    System("SP", "sp", FEDP3),
    System("CRD", "crd", FEDP3),
    System("DKD", "dkd", FEDP3),
    # The prompt paper.
    System("prompt_pfl (PM)", "prompt_pfl", PROMPT_PFL, baseline=False),
    System("prompt_pfl AS1 (no prompts; not shared)", "prompt_pfl", PROMPT_PFL | {"ablation": "AS1"}, baseline=False),
    System("prompt_pfl AS2 (not shared)", "prompt_pfl", PROMPT_PFL | {"ablation": "AS2"}, baseline=False),
    System("prompt_pfl AS3 (no image prompt)", "prompt_pfl", PROMPT_PFL | {"ablation": "AS3"}, baseline=False),
    System("prompt_pfl AS4 (no text prompt)", "prompt_pfl", PROMPT_PFL | {"ablation": "AS4"}, baseline=False),
    # FedP3: its own rows; "Eq. 11" and "Eq. 12" are two ways to choose answers.
    System("FedP3", "fedp3", FEDP3 | {"weight": WEIGHT}, baseline=False),
    System("FedP3 all answers", "fedp3", FEDP3 | {"weight": WEIGHT, "filter": "all"}, baseline=False),
    System("FedP3 random filter", "fedp3", FEDP3 | {"weight": WEIGHT, "filter": "random"}, baseline=False),
    System("FedP3 student filter", "fedp3", FEDP3 | {"weight": WEIGHT, "filter": "student"}, baseline=False),
    System("FedP3 teacher filter", "fedp3", FEDP3 | {"weight": WEIGHT, "filter": "teacher"}, baseline=False),
    System("FedP3 Eq. 11 filter", "fedp3", FEDP3 | {"weight": WEIGHT, "filter": "eq11"}, baseline=False),
    System("FedP3 lambda = 1", "fedp3", FEDP3 | {"weight": 1.0}, baseline=False),
    # FedDAT: without parts of the teacher, and with other parts tested.
    System("FedDAT", "feddat", baseline=False),
    System("FedDAT without frozen", "feddat", {"ablation": "frozen"}, baseline=False),
    System("FedDAT without local", "feddat", {"ablation": "local"}, baseline=False),
    System("FedDAT without MKD", "feddat", {"ablation": "mkd"}, baseline=False),
    System("FedDAT: local adapter tested", "feddat", {"inference": "local"}, baseline=False),
    System("FedDAT: both adapters tested", "feddat", {"inference": "both"}, baseline=False),
    # Exchange of knowledge without weights, and split learning, which counts batches instead of passes.
    System("CreamFL", "creamfl", baseline=False),
    System("UniCon", "unicon", UNICON, baseline=False, secagg=True),
)


def _not_listed() -> Iterator[System]:
    """A baseline for each of the project's methods without a line above, with its class's name and default options."""
    for name in method_names():
        kind = method_type(name)
        if name not in {system.method for system in _LISTED} and kind.__module__.startswith(f"{BUILT_IN}."):
            yield System(kind.__name__, name)


SYSTEMS = (*_LISTED, *_not_listed())


def systems_named(names: Sequence[str]) -> tuple[System, ...]:
    """The systems with these labels or methods; all systems if there are no names. Raises `ConfigError`."""
    if not names:
        return SYSTEMS
    systems: dict[str, System] = {}
    for name in names:
        matches = {s.label: s for s in SYSTEMS if name == s.label or (name == s.method and not s.centralised)}
        if not matches:
            raise ConfigError(f"there is no system '{name}'; there is: {', '.join(s.label for s in SYSTEMS)}")
        systems |= matches
    return tuple(systems.values())
