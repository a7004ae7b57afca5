"""Cuts of a data set into sites: an organ's patients dealt out to hospitals by a digest of their keys, or a cut by
question type, by modality, at random, or by Dirichlet draws.

A patient is whole: it is at one site only. Where a site holds one kind of rows, a patient's other rows are left out.
Dirichlet draws follow T. Hsu, H. Qi and M. Brown, "Measuring the Effects of Non-Identical Data Distribution for
Federated Visual Classification", 2019, with organs for classes, and whole patients.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from medfedvqa.data.layouts import absent, of_reader
from medfedvqa.data.readers import read
from medfedvqa.data.schema import PARTS, Questions, Row, Split, VQAData, load_file, part_of
from medfedvqa.data.site_data import Examples, SiteData, build_site
from medfedvqa.errors import ConfigError, DataError

MOST_SITES = 99
DRAWS = 100
"""Dirichlet draws until one leaves no site empty; then the cut is refused."""
FORMS = "organ, hospital:N, question-type, modality, halves:N, dirichlet:ALPHA, quantity:ALPHA"
_KINDS = {"question-type": "type", "modality": "modality"}
_DEALT = ("halves", "dirichlet", "quantity")
_TEXT = re.compile(
    r"(organ|question-type|modality|(hospital|halves)(:[0-9]+)|(dirichlet|quantity)(:[0-9.]+)(:[0-9]+)?)"
)
_NAME = re.compile(r"(halves|dirichlet|quantity)(?:-([0-9]+(?:p[0-9]+)?))?-[1-9][0-9]?of([1-9][0-9]?)")


@dataclass(frozen=True)
class Cut:
    """A cut of a set into sites. `sites`: the number of sites, or of hospitals for each organ; 0: as many as organs."""

    kind: str = "organ"
    sites: int = 0
    alpha: float = 0.0
    """The concentration of Dirichlet draws: the smaller, the more unlike are the sites."""

    @classmethod
    def of(cls, text: str) -> "Cut":
        """The cut that an option's text names. Raises `ConfigError`."""
        match = _TEXT.fullmatch(text)
        words = text.split(":")
        try:
            if match is None:
                raise ValueError
            alpha = float(words[1]) if words[0] in ("dirichlet", "quantity") else 0.0
            number = int(words[-1]) if len(words) > 1 + (alpha > 0) else 0
            if words[0] in ("dirichlet", "quantity") and not 0.001 <= alpha <= 1000:
                raise ValueError
        except ValueError:
            raise ConfigError(f"'{text}' is not a cut of data into sites: write one of {FORMS}") from None
        if len(words) > 1 + (alpha > 0) and not 1 <= number <= MOST_SITES:
            raise ConfigError(f"a cut must have 1 to {MOST_SITES} sites: write another number than {words[-1]}")
        return cls(words[0], number, alpha)

    @classmethod
    def of_site(cls, site: str) -> "Cut | None":
        """The cut whose site has this name; None for an organ and a hospital of one."""
        if match := _NAME.fullmatch(site):
            return cls(match[1], int(match[3]), float((match[2] or "0").replace("p", ".")))
        return next((cls(kind) for kind, prefix in _KINDS.items() if site.startswith(f"{prefix}-")), None)

    def __str__(self) -> str:
        numbers = [f"{self.alpha:g}"] * (self.alpha > 0) + [str(self.sites)] * (self.sites > 0)
        return ":".join([self.kind, *numbers])

    def names(self, data: VQAData, split: Split) -> tuple[str, ...]:
        """The names of the sites that have questions of the split.

        Raises `ConfigError` for a set whose rows lack the property by which they are cut.
        """
        if self.kind in _DEALT:
            stem, count = self.kind + (f"-{self.alpha:g}".replace(".", "p") if self.alpha else ""), self._count(data)
            return tuple(f"{stem}-{number}of{count}" for number in range(1, count + 1))
        names = sorted({name for row in data.rows if split.asks(row) and (name := self._kind_of(row))})
        if not names:
            raise ConfigError(f"no row of {data.name} names its {self.kind}: cut the set in another way")
        return tuple(names)

    def divided(self, data: VQAData, split: Split) -> VQAData:
        """The split's rows as a data set whose organs are these sites' names. Raises `ConfigError`."""
        if self.kind == "hospital":
            raise ConfigError("only the rows of a single organ can be cut into hospitals")
        rows_asked = [
            replace(row, split=part_of(row, split, data.validates(row.organ)))
            for row in data.rows
            if split.asks(row) and (self.kind in _DEALT or self._kind_of(row))
        ]
        names = self.names(data, split)
        place = self._by_kind(rows_asked) if self.kind in _KINDS else self._dealt(names, rows_asked, split.seed)
        rows = [
            replace(row, organ=place[row.patient])
            for row in rows_asked
            if self.kind in _DEALT or self._kind_of(row) == place[row.patient]
        ]
        return replace(data, organs=names, rows=rows, publishes_validation=True)

    def _count(self, data: VQAData) -> int:
        return self.sites or len(data.organs)

    def _kind_of(self, row: Row) -> str:
        text = row.question_type if self.kind == "question-type" else row.modality
        slug = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
        return f"{_KINDS[self.kind]}-{slug}"[:32] if slug else ""

    def _by_kind(self, rows: Sequence[Row]) -> dict[str, str]:
        """Each patient's site: among the kinds of the patient's rows, the one with the fewest rows so far."""
        place, sizes = dict[str, str](), defaultdict[tuple[str, str], int](int)
        for part, patients in _patients(rows).items():
            for patient, own in patients:
                kinds = sorted({self._kind_of(row) for row in own})
                place[patient] = min(kinds, key=lambda kind: (sizes[part, kind], kind))
                sizes[part, place[patient]] += sum(self._kind_of(row) == place[patient] for row in own)
        return place

    def _dealt(self, names: Sequence[str], rows: Sequence[Row], seed: int) -> dict[str, str]:
        """Each patient's site. Patients of each part are dealt out apart, so that a site has its share of each part."""
        by_class: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            by_class[row.organ if self.kind == "dirichlet" else ""].append(row)
        wanted = {(name, part) for name in names for part in ("train", "test")}
        for draw in range(DRAWS if self.alpha else 1):
            generator, place = np.random.default_rng([seed, draw]), dict[str, str]()
            for _, own in sorted(by_class.items()):
                shares = generator.dirichlet([self.alpha] * len(names)) if self.alpha else [1 / len(names)] * len(names)
                for patients in _patients(own).values():
                    ends = np.round(np.cumsum(shares) * len(patients)).astype(int)
                    sites = np.searchsorted(ends, np.arange(len(patients)), side="right").clip(max=len(names) - 1)
                    place |= {key: names[site] for (key, _), site in zip(patients, sites.tolist(), strict=True)}
            if wanted <= {(place[row.patient], row.split) for row in rows}:
                return place
        times = f" in {DRAWS} draws" if self.alpha else ""
        raise ConfigError(f"the cut '{self}' leaves a site without training or test rows{times}: ask for fewer sites")


def patient_digest(key: str) -> bytes:
    """A digest of a patient's key. Patients are sorted by it, so that their order reveals nothing about them."""
    return hashlib.sha256(f"medfedvqa study {key}".encode("utf-8", "surrogatepass")).digest()


def _patients(rows: Iterable[Row]) -> dict[str, list[tuple[str, list[Row]]]]:
    """Patients with their rows, in order of key digests, grouped by `test`, else `validate`, else `train`."""
    own: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        own[row.patient].append(row)
    grouped: dict[str, list[tuple[str, list[Row]]]] = {part: [] for part in reversed(PARTS)}
    for patient in sorted(own, key=patient_digest):
        parts = {row.split for row in own[patient]}
        grouped[next(part for part in grouped if part in parts)].append((patient, own[patient]))
    return grouped


_DEALT_NAME = re.compile(r"(?P<organ>.+)-(?P<number>[1-9][0-9]?)of(?P<count>[1-9][0-9]?)")


@dataclass(frozen=True)
class Hospital:
    """One of several hospitals of an organ."""

    organ: str
    number: int
    """From 1 to `count`."""
    count: int

    @property
    def name(self) -> str:
        """The name of the hospital as a site, as `lung-1of2`."""
        return f"{self.organ}-{self.number}of{self.count}"


def load_site(
    reader: str, root: Path | None, site: str, split: Split, seed: int = 0, answers: tuple[str, ...] | None = None
) -> SiteData:
    """The data of one site: an organ of a data set, one of several hospitals of it, as `lung-1of2`, or a site of a cut.

    `seed` draws the phantom set, `answers` is a declared answer space. Raises `DataError` as `read`, `partition` and
    `answer_space` do, for a list that `public_list` refuses, and for missing files of pictures, which are decoded
    later; and `ConfigError` as `hospitals` and `Cut.divided` do, or for a cut that leaves the site empty.
    """
    cut = Cut.of_site(site)
    hospital = None if cut else named(site)
    organ = hospital.organ if hospital else site
    data = read(reader, root, None if cut else organ, seed)
    if cut:
        data = cut.divided(data, split)
        if {"train", "test"} - {row.split for row in data.rows if row.organ == site}:
            raise ConfigError(f"the cut '{cut}' leaves '{site}' without training or test rows: choose other sites")
    built = build_site(data, organ, split, answers)
    if data.load is load_file and (missing := list(absent([row for row in data.rows if row.organ == organ]))):
        more = ": `medfedvqa data check` names all" if of_reader(reader) else ""
        raise DataError(f"row {missing[0].index}: its picture is missing or empty ({len(missing)} in all){more}")
    return replace(hospitals(built, hospital.count)[hospital.number - 1], organ=site) if hospital else built


def sites_of(cut: Cut, reader: str, root: Path | None, questions: Questions = "closed") -> tuple[str, ...]:
    """The names of the sites into which a cut divides a set's questions. Raises as `read` and `Cut.names` do."""
    data = read(reader, root)
    return (
        names(data.organs, cut.sites or 1)
        if cut.kind in ("organ", "hospital")
        else cut.names(data, Split(questions=questions))
    )


def names(organs: Sequence[str], count: int) -> tuple[str, ...]:
    """The names of `count` hospitals of each organ; the organs' own names if it is 1."""
    if count == 1:
        return tuple(organs)
    return tuple(Hospital(organ, number, count).name for organ in organs for number in range(1, count + 1))


def named(site: str) -> Hospital | None:
    """The hospital of this name; None for the name of an organ."""
    match = _DEALT_NAME.fullmatch(site)
    place = match and Hospital(match["organ"], int(match["number"]), int(match["count"]))
    return place if place and place.number <= place.count else None


def organ_of(site: str) -> str:
    """The organ of a site by its name: that of a hospital, or else the name itself."""
    hospital = named(site)
    return hospital.organ if hospital else site


def hospitals(data: SiteData, count: int) -> list[SiteData]:
    """The site's patients dealt out to this many hospitals, by digest. Each has the organ's list of answers.

    Patients with test rows, with validation rows and with neither are dealt out apart, so that each hospital has its
    part of each. Raises `ConfigError` if a hospital would have no training or no test rows.
    """
    tested, validating = (set(part.patients.tolist()) for part in (data.test, data.validate))
    owners = torch.cat([part.patients for part in data.parts])
    order = sorted(by_digest(data, owners), key=lambda patient: (patient in tested, patient in validating))
    dealt = [_only(data, order[number::count], f"{data.organ}-{number + 1}") for number in range(count)]
    if not all(len(each.train) and len(each.test) for each in dealt):
        raise ConfigError(f"the site '{data.organ}' has too few patients for {count} hospitals: choose fewer")
    return dealt


def _only(data: SiteData, patients: Sequence[int], organ: str) -> SiteData:
    """The site with the rows and pictures of these patients only. Patients keep their numbers."""
    parts = [rows_of(part, patients) for part in data.parts]
    numbers, places = torch.unique(torch.cat([part.pictures for part in parts]), return_inverse=True)
    pictures = places.split([len(part) for part in parts])
    train, validate, test = (replace(part, pictures=each) for part, each in zip(parts, pictures, strict=True))
    return replace(
        data,
        organ=organ,
        train=train,
        validate=validate,
        test=test,
        pictures=data.pictures.chosen(numbers.tolist()),
        trained_patients=data.trained_patients & {data.patients[patient] for patient in patients},
    )


def rows_of(rows: Examples, patients: Sequence[int]) -> Examples:
    """The rows of these patients."""
    return rows.chosen(torch.isin(rows.patients, torch.tensor(patients, dtype=torch.int64)).nonzero().flatten())


def by_digest(data: SiteData, patients: torch.Tensor) -> list[int]:
    """The distinct patients in order of the digests of their keys."""

    return sorted(set(patients.tolist()), key=lambda patient: patient_digest(data.patients[patient]))
