"""The site that a command is about."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from medfedvqa.federation.site_config import SiteConfig

SiteFile = Annotated[Path, typer.Option("--site", help="The site's own site.yml.")]


def config_of(site: Path) -> "SiteConfig":
    """A startup kit keeps site.yml in its folder `local`, a run in the site's own."""
    from medfedvqa.federation.site_config import load_site_config

    folder = site.resolve().parent
    return load_site_config(site, (folder.parent if folder.name == "local" else folder).name)
