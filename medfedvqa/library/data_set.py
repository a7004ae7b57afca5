"""A data set whose organs are the sites of a federation. pandas is imported with the first frame."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from medfedvqa.data import SiteData, Split, VQAData, load_site, read, register_reader
from medfedvqa.data.data_roots import PHANTOM, find_root
from medfedvqa.data.layouts import expected, hint
from medfedvqa.data.site_cuts import Cut, sites_of
from medfedvqa.errors import ConfigError, DataError

if TYPE_CHECKING:
    from pandas import DataFrame


def frame_of(rows: Sequence[dict[str, Any]]) -> "DataFrame":
    """A pandas frame of these rows. Raises `ConfigError` if pandas is not installed."""
    try:
        import pandas
    except ImportError:
        raise ConfigError("a frame needs pandas, which is not installed here: pip install pandas") from None
    return pandas.DataFrame(list(rows))


@dataclass(frozen=True)
class SiteCounts:
    """Counts of one site's data: closed questions by part, patients, pictures and distinct answers."""

    patients: int
    pictures: int
    train: int
    """Questions to train on."""
    validate: int
    test: int
    answers: int
    """Distinct answers of the questions to train on."""


@dataclass(frozen=True)
class Data:
    """A data set and its cut into sites, by default one for each organ. Nothing is read before it is needed."""

    name: str
    """The reader's name, such as `vqa-rad`."""
    root: Path | None = None
    """The folder of the set; None for the phantom set, which is drawn at random."""
    cut: Cut = Cut()

    @cached_property
    def organs(self) -> tuple[str, ...]:
        """The names of the organs. Raises `DataError` if the files are malformed."""
        return read(self.name, self.root).organs

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of the sites: organs, hospitals such as `lung-1of2`, or the sites of another cut."""
        return sites_of(self.cut, self.name, self.root)

    def counts(self, split: Literal["official", "patient"] = "official", seed: int = 0) -> dict[str, SiteCounts]:
        """The counts of each site under this split. `seed` draws the split and the phantom set. Raises `DataError`."""
        return {site: _counts(load_site(self.name, self.root, site, Split(split, seed), seed)) for site in self.sites}

    def frame(self, split: Literal["official", "patient"] = "official", seed: int = 0) -> "DataFrame":
        """`counts` as a pandas frame, with one row per site."""
        return frame_of([{"site": site, **asdict(counts)} for site, counts in self.counts(split, seed).items()])


def _counts(site: SiteData) -> SiteCounts:
    return SiteCounts(
        patients=len(site.patients),
        pictures=len(site.pictures),
        train=len(site.train),
        validate=len(site.validate),
        test=len(site.test),
        answers=len(site.answers),
    )


def load(
    data: str | Callable[[Path], VQAData], root: str | Path | None = None, hospitals: int = 1, sites: str = "organ"
) -> Data:
    """The data set of this name, or the one that your own function reads.

    `data` is `vqa-rad`, `slake`, `store`, `image-classes`, `captions`, `table` or `phantom`, or several as in
    `vqa-rad+slake`; or a function from a folder to a `medfedvqa.data.VQAData`, which is then registered under the set's
    name. `root` is the set's folder, or the folder above it; by default `$MEDFEDVQA_DATA` is searched. The phantom set
    is drawn and has no folder. `hospitals`: the number of hospitals that share each organ's patients; each hospital is
    a site. `sites` cuts the set in another way: see `medfedvqa.data.site_cuts`.

    Raises `ConfigError` for an unknown name, `DataError` if the folder or the set in it is missing.
    """
    folder = None if root is None else Path(root)
    if folder is not None and not folder.is_dir():
        raise DataError(f"there is no folder '{folder}': give the folder of the data set")
    if callable(data):
        return replace(_read_by(data, folder), cut=cut_of(sites, hospitals))
    if data == PHANTOM and folder is not None:
        raise ConfigError("the phantom set is synthetic and has no folder: leave out 'root'")
    try:
        return Data(*find_root(data, folder), cut_of(sites, hospitals))
    except DataError:
        if not expected(data):
            raise
        where, more = (f"in '{folder}'", hint(folder)) if folder else ("there", "")
        wanted = f"give 'root', the folder that holds {expected(data)}{more}"
        raise DataError(f"no {data} data is {where}: {wanted}") from None


def cut_of(sites: str, hospitals: int = 1) -> Cut:
    """The cut by these options. Raises `ConfigError` for an unknown cut, or for both options at once."""
    if hospitals != 1 and sites != "organ":
        raise ConfigError(f"'hospitals' and 'sites' both cut the set: write sites as 'hospital:{hospitals}'")
    return Cut.of(sites if hospitals == 1 else f"hospital:{hospitals}")


def _read_by(function: Callable[[Path], VQAData], folder: Path | None) -> Data:
    if folder is None:
        raise DataError("the function needs a folder: give 'root'")
    data = function(folder)
    if not isinstance(data, VQAData):
        raise ConfigError("the function must return a medfedvqa.data.VQAData")
    register_reader(data.name, function)
    return Data(data.name, folder)
