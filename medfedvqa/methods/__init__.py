"""Federated methods, one file each, and the registry that knows them by name."""

from medfedvqa.methods import fedavg as fedavg
from medfedvqa.methods import fedprox as fedprox
from medfedvqa.methods import prompt_pfl as prompt_pfl
from medfedvqa.methods import unicon as unicon
from medfedvqa.methods.base import (
    ACCURACY,
    EPSILON,
    FAULT,
    SHARED_BYTES,
    Hub,
    Method,
    MethodConfig,
    MixOnShares,
    Site,
    State,
    Tensors,
    checked,
    create,
    method_names,
    method_type,
    mixing,
    register,
)

__all__ = [
    "ACCURACY",
    "EPSILON",
    "FAULT",
    "SHARED_BYTES",
    "Hub",
    "Method",
    "MethodConfig",
    "MixOnShares",
    "Site",
    "State",
    "Tensors",
    "checked",
    "create",
    "method_names",
    "method_type",
    "mixing",
    "register",
]
