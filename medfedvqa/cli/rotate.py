"""`medfedvqa rotate`: replaces a site's own keys, and says which cannot be replaced."""

from enum import StrEnum
from typing import Annotated

import typer

from medfedvqa.cli.sites import SiteFile, config_of
from medfedvqa.cli.terminal import Terminal
from medfedvqa.errors import ConfigError


class KeyName(StrEnum):
    """The keys of a site."""

    AUDIT = "audit"
    IDENTITY = "identity"
    COHORT = "cohort"
    STORE = "store"


_FIXED = {
    KeyName.COHORT: "the ledger knows patients by digests under this key alone: under another one, who has left the "
    "data since could not be recognised, and would get a second budget. Keep the ledger's folder closed to others",
    KeyName.STORE: "pseudonyms and dates of a store follow from this key, and its ledger is bound to it: under another "
    "one its patients would count as new. Keep the key apart from the store",
}


def rotate(
    key: Annotated[KeyName, typer.Argument(help="The key to replace. It refuses `cohort` and `store`, and says why.")],
    site: SiteFile,
) -> None:
    """Replace a stopped site's key of its audit log or of secure aggregation; old signatures still verify."""
    from medfedvqa.federation.rotate_keys import finish_rotation, rotate_audit_key, rotate_identity

    if key in _FIXED:
        raise ConfigError(f"this key cannot be replaced: {_FIXED[key]}")
    console = Terminal()
    if finish_rotation(site):
        console.print("An interrupted replacement was finished; no other key was made.", soft_wrap=True)
        return
    config = config_of(site)
    if key is KeyName.AUDIT:
        console.print(f"new key: {rotate_audit_key(config, site)}", highlight=False, soft_wrap=True)
        text = "The other parties follow it with the next job. Whoever pinned the old key can pin this one."
    else:
        console.print(f"new fingerprint: {rotate_identity(config, site)}", highlight=False, soft_wrap=True)
        text = "Read it to all other sites: `medfedvqa peers add --replace` pins it. Until then jobs on shares fail."
    console.print(f"{text} Make a new backup now.", highlight=False, soft_wrap=True)
