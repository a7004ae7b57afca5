"""An account without rights for tests of what the kernel keeps from a process."""

import os
import sys
from typing import Any

ACCOUNT: Any = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
"""The superuser's own processes read everything, and need no user name space."""
PYTHON = "/usr/bin/python3" if os.geteuid() == 0 else sys.executable
"""An interpreter that such an account may start."""
