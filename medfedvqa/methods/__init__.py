"""Federated methods, one file each, and the registry that knows them by name."""

from medfedvqa.methods import prompt_pfl as prompt_pfl
from medfedvqa.methods.base import (
    EPSILON,
    Hub,
    Method,
    MethodConfig,
    Site,
    State,
    Tensors,
    checked,
    create,
    method_names,
    method_type,
    register,
)

__all__ = [
    "EPSILON",
    "Hub",
    "Method",
    "MethodConfig",
    "Site",
    "State",
    "Tensors",
    "checked",
    "create",
    "method_names",
    "method_type",
    "register",
]
