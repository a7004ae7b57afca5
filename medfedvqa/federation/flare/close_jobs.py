"""`python -m medfedvqa.federation.flare.close_jobs KIT JOB...`: closes ended jobs of a site, but not the named ones."""

import sys
from pathlib import Path

from audits.escaping import SENTENCE, for_terminal
from medfedvqa.federation.error_codes import ACTIONABLE
from medfedvqa.federation.job_closing import close_ended
from medfedvqa.federation.site_config import load_site_config


def main(kit: Path, running: list[str]) -> int:
    """The exit status: 0 if all is closed."""
    try:
        close_ended(load_site_config(kit / "local" / "site.yml", kit.name), running)
    except ACTIONABLE as error:
        print(for_terminal(str(error), SENTENCE), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
