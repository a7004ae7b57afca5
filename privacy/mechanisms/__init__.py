"""Mechanisms that add noise, one file each: sampling of noise, sensitivity, event, accounting, and words for reports.

A new mechanism is a new file of this package: every class in it that derives from `DPEvent` and has a `mechanism` is
registered under that name, and ledger, log, accountants and reports find it there.
"""

from importlib import import_module
from pkgutil import iter_modules

from privacy.mechanisms.base import CountsMechanism, DPEvent, Use, counts_mechanisms, merge_steps

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["CountsMechanism", "DPEvent", "Use", "counts_mechanisms", "merge_steps"]
