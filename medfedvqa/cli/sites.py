"""The option that names a site, and the site's settings."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from medfedvqa.federation.site_config import SiteConfig

SiteFile = Annotated[Path, typer.Option("--site", help="The site's own site.yml.")]


def config_of(site: Path) -> "SiteConfig":
    """The settings in a site.yml. Its folder has the site's name; in a startup kit, the folder above `local` has it."""
    from medfedvqa.federation.site_config import load_site_config

    folder = site.resolve().parent
    return load_site_config(site, (folder.parent if folder.name == "local" else folder).name)
