"""Federated learning for visual question answering over medical images.

```python
import medfedvqa as mv

data = mv.load("vqa-rad", "/data/vqa-rad")
results = mv.run(mv.Job("prompt_pfl", rounds=10), data, progress=True)
print(results.table())
```

Every name is imported at its first use, so that `import medfedvqa` itself takes milliseconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from medfedvqa.errors import MedfedvqaError
    from medfedvqa.library.data_set import Data, SiteCounts, load
    from medfedvqa.library.method_options import Option, method_names, options
    from medfedvqa.library.run_job import run
    from medfedvqa.library.run_results import Results
    from medfedvqa.library.site_results import SiteResults
    from medfedvqa.library.training_job import Job
    from medfedvqa.version import VERSION as __version__

__all__ = [
    "Data",
    "Job",
    "MedfedvqaError",
    "Option",
    "Results",
    "SiteCounts",
    "SiteResults",
    "__version__",
    "load",
    "method_names",
    "options",
    "run",
]

_PLACES = {
    "Data": "library.data_set",
    "Job": "library.training_job",
    "MedfedvqaError": "errors",
    "Option": "library.method_options",
    "Results": "library.run_results",
    "SiteCounts": "library.data_set",
    "SiteResults": "library.site_results",
    "load": "library.data_set",
    "method_names": "library.method_options",
    "options": "library.method_options",
    "run": "library.run_job",
}
"""The module of each public name."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("medfedvqa.version").VERSION
    if name not in _PLACES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(f"medfedvqa.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
