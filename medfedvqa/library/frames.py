"""Makes pandas frames. pandas is imported with the first frame."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from medfedvqa.errors import ConfigError

if TYPE_CHECKING:
    from pandas import DataFrame


def frame_of(rows: Sequence[dict[str, Any]]) -> "DataFrame":
    """A pandas frame of these rows. Raises `ConfigError` if pandas is not installed."""
    try:
        import pandas
    except ImportError:
        raise ConfigError("a frame needs pandas, which is not installed here: pip install pandas") from None
    return pandas.DataFrame(list(rows))
