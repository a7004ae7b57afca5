"""`medfedvqa identity`: the fingerprint that other sites pin."""

from medfedvqa.cli.sites import SiteFile, config_of
from medfedvqa.cli.terminal import Terminal, plain
from medfedvqa.federation.aggregation_attempt import load_identity


def identity(site: SiteFile) -> None:
    """Show the fingerprint of a site's key for secure aggregation; the key is made at first use and stays.

    The other sites write it into their own site.yml, under `peers`, after having compared it by phone.
    """
    config = config_of(site)
    Terminal().print(f"{plain(config.name)}: {load_identity(config).fingerprint}", highlight=False, soft_wrap=True)
