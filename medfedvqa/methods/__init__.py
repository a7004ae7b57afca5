"""Federated methods, one file each, and the registry that knows them by name."""

from audits import Tensors
from medfedvqa.checking import checked
from medfedvqa.methods import creamfl as creamfl
from medfedvqa.methods import distillation as distillation
from medfedvqa.methods import fedavg as fedavg
from medfedvqa.methods import feddat as feddat
from medfedvqa.methods import feddc as feddc
from medfedvqa.methods import fedkd as fedkd
from medfedvqa.methods import fedp3 as fedp3
from medfedvqa.methods import fedprox as fedprox
from medfedvqa.methods import local as local
from medfedvqa.methods import medical as medical
from medfedvqa.methods import moon as moon
from medfedvqa.methods import prompt_pfl as prompt_pfl
from medfedvqa.methods import unicon as unicon
from medfedvqa.methods.base import (
    ACCURACY,
    EPSILON,
    Hub,
    Method,
    MethodConfig,
    Probe,
    State,
    create,
    method_names,
    method_type,
    register,
)
from medfedvqa.methods.on_shares import (
    FAULT,
    SHARED_BYTES,
    MeanOnShares,
    MixOnShares,
    OnShares,
    mixing,
)
from medfedvqa.training import Site

__all__ = [
    "ACCURACY",
    "EPSILON",
    "FAULT",
    "SHARED_BYTES",
    "Hub",
    "MeanOnShares",
    "Method",
    "MethodConfig",
    "MixOnShares",
    "OnShares",
    "Probe",
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
