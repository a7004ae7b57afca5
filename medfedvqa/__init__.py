"""Federated learning for visual question answering over medical images.

```python
import medfedvqa as mv

data = mv.load("vqa-rad", "/data/vqa-rad")
results = mv.run(mv.Job("prompt_pfl", rounds=10), data, progress=True)
print(results.table())
```

Every name is imported at its first use, so that `import medfedvqa` itself takes milliseconds.
"""

from typing import TYPE_CHECKING

from audits.lazy_imports import at_first_use

if TYPE_CHECKING:
    from medfedvqa.errors import MedfedvqaError
    from medfedvqa.library.data_set import Data, SiteCounts, load
    from medfedvqa.library.run_job import run
    from medfedvqa.library.run_results import Results, SiteResults
    from medfedvqa.library.training_job import Job, Option, method_names, options
    from medfedvqa.models.picture_networks import register_network
    from medfedvqa.version import VERSION as __version__

__getattr__, __dir__ = at_first_use(__name__, __file__)

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
    "register_network",
    "run",
]
