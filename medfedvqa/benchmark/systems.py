"""What is compared: methods with options, under the names that tables print."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from medfedvqa.errors import ConfigError
from medfedvqa.methods import method_names, method_type


@dataclass(frozen=True)
class System:
    """A method with options; `label` names it in tables and, made fit, its folder."""

    label: str
    method: str
    options: dict[str, Any] = field(default_factory=dict)
    baseline: bool = True
    """Whether it is what the founding papers compare themselves with."""

    @property
    def folder(self) -> str:
        """A file name."""
        return "".join(character if character.isalnum() else "-" for character in self.label.lower()).strip("-")

    def with_budget(self, budget: dict[str, Any]) -> dict[str, Any]:
        """The method's options under a budget that all systems have; only what the method knows of it."""
        known = method_type(self.method).config_type.model_fields
        return {name: value for name, value in budget.items() if name in known} | self.options


PROMPT_PFL: dict[str, Any] = {"learning_rate": 0.002, "local_baseline": False}
BUDGET: dict[str, Any] = {"rounds": 10, "local_epochs": 2, "batch_rows": 32, "decay": 0.3, "decay_every": 4}
"""Of every system, unless its row says otherwise."""

SYSTEMS = (
    System("prompt_pfl", "prompt_pfl", PROMPT_PFL, baseline=False),
    System("prompt_pfl AS1 (no prompts, not shared)", "prompt_pfl", PROMPT_PFL | {"ablation": "AS1"}, baseline=False),
    System("prompt_pfl AS2 (not shared)", "prompt_pfl", PROMPT_PFL | {"ablation": "AS2"}, baseline=False),
    System("prompt_pfl AS3 (no image prompt)", "prompt_pfl", PROMPT_PFL | {"ablation": "AS3"}, baseline=False),
    System("prompt_pfl AS4 (no text prompt)", "prompt_pfl", PROMPT_PFL | {"ablation": "AS4"}, baseline=False),
    System("FedAvg adapter", "fedavg", {"tuning": "adapter"}),
    System("FedAvg LoRA", "fedavg", {"tuning": "lora"}),
    System("FedAvg prompt", "fedavg", {"tuning": "prompt"}),
    System("FedAvg bias", "fedavg", {"tuning": "bias"}),
    System("FedAvg classifier", "fedavg", {"tuning": "classifier"}),
    System("FedAvg full", "fedavg", {"tuning": "full", "learning_rate": 1e-4}),
    System("FedProx adapter", "fedprox", {"tuning": "adapter"}),
)


def chosen(names: Sequence[str]) -> tuple[System, ...]:
    """The systems with these labels, or of these methods; all without names. Raises `ConfigError`."""
    if not names:
        return SYSTEMS
    found: dict[str, System] = {}
    for name in names:
        own = [system for system in SYSTEMS if name in (system.label, system.method)]
        if not own and name in method_names():
            own = [System(name, name)]
        if not own:
            raise ConfigError(f"there is no system '{name}'; there is: {', '.join(s.label for s in SYSTEMS)}")
        found |= {system.label: system for system in own}
    return tuple(found.values())
