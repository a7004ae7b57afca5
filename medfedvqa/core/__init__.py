"""The parts of a federated method: a declared exchange, handlers on the sites, and a loop on the server."""

from audits import Tensors
from medfedvqa.checking import checked
from medfedvqa.core.hub import Hub
from medfedvqa.core.method import EPSILON, EVALUATE, Answering, Method, MethodConfig, Probe, State, withheld
from medfedvqa.core.on_shares import FAULT, SHARED_BYTES, CommitteeMean, MeanOnShares, MixOnShares, OnShares
from medfedvqa.core.registry import create, method_names, method_type, register
from medfedvqa.core.scores import ACCURACY
from medfedvqa.training import Site

__all__ = [
    "ACCURACY",
    "EPSILON",
    "EVALUATE",
    "FAULT",
    "SHARED_BYTES",
    "Answering",
    "Hub",
    "CommitteeMean",
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
    "register",
    "withheld",
]
