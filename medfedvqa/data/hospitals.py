"""Deals an organ's patients out to several hospitals, each patient whole, by a digest of the patient's key alone."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from medfedvqa.data.layouts import absent, of_reader
from medfedvqa.data.partition import Questions, Split
from medfedvqa.data.readers import read
from medfedvqa.data.schema import load_file
from medfedvqa.data.site_cuts import Cut, patient_digest
from medfedvqa.data.site_data import Examples, SiteData, build_site
from medfedvqa.errors import ConfigError, DataError

_NAME = re.compile(r"(?P<organ>.+)-(?P<number>[1-9][0-9]?)of(?P<count>[1-9][0-9]?)")


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
            raise ConfigError(f"the cut '{cut}' leaves '{site}' without training or test rows: name other sites alone")
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
    match = _NAME.fullmatch(site)
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
