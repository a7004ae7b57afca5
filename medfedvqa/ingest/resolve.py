"""Resolves questions, which name images, into rows of the store."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath
from typing import Self

from medfedvqa.ingest.identifier_search import identifiers_in, without
from medfedvqa.ingest.pseudonyms import Pseudonyms
from medfedvqa.ingest.questions import IngestedQuestion, contradictions, name_of_image, topic
from medfedvqa.ingest.refusal_reasons import RowReason
from medfedvqa.ingest.store import Image, Record, Split, StoredRow

PARTS: tuple[tuple[Split, float], ...] = (("train", 0.70), ("validate", 0.15), ("test", 0.15))
"""Shares of the parts among patients whose questions name no split. A patient's keyed digest chooses the part, so it
stays when other patients come."""


@dataclass(frozen=True)
class ImageNames:
    """The names that questions use for images."""

    names: frozenset[str]
    """The names as in the questions file, to compare with file names and paths."""
    keyed: frozenset[str]
    """Their digests, to compare with those of SOP instance UIDs and accession numbers."""

    @classmethod
    def of(cls, questions: Sequence[IngestedQuestion], keys: Pseudonyms) -> Self:
        names = frozenset(question.image for question in questions)
        return cls(names, frozenset(keys.digest("name", name) for name in names))

    def by_name(self, paths: Sequence[str]) -> bool:
        """Whether a question names one of these paths, in full or by its last part."""
        return not self.names.isdisjoint(names_of_paths(paths))

    def match(self, paths: Sequence[str], record: Record) -> bool:
        """Whether a question is about a file at these paths."""
        return self.by_name(paths) or not self.keyed.isdisjoint(record.found)


def names_of_paths(paths: Sequence[str]) -> set[str]:
    """The names that questions may use for a file at these paths: each path in full, and its last part."""
    names = [name_of_image(path) for path in paths]
    return {*names, *(PurePosixPath(name).name for name in names)}


class Resolver:
    """Finds the image of each question."""

    def __init__(
        self,
        paths: Mapping[str, Sequence[str]],
        records: Mapping[str, Record],
        keys: Pseudonyms,
        replace: bool = False,
    ) -> None:
        """`paths`: the paths of each source within the folder. `records`: the verdict on each source. `replace`: an
        identifier in a question or an answer becomes a placeholder; else the question is left out."""
        self._records, self._keys, self._replace = records, keys, replace
        self._secret = cache(lambda form: keys.digest("secret", form))
        self.replaced = list[int]()
        """The indices of questions in which something was replaced."""
        self.left_out = list[tuple[int, RowReason]]()
        """The indices of questions that are left out, with the reasons."""
        self._secrets: dict[str, set[str]] = defaultdict(set)
        """The digests of what identifies each patient, from the headers of all its pictures."""
        self._by_path: dict[str, list[str]] = defaultdict(list)
        self._by_file: dict[str, list[str]] = defaultdict(list)
        self._by_key: dict[str, list[str]] = defaultdict(list)
        for source, places in paths.items():
            for place in map(name_of_image, places):
                self._by_path[place].append(source)
                self._by_file[PurePosixPath(place).name].append(source)
        for source, record in records.items():
            for key in set(record.found):
                self._by_key[key].append(source)
            if record.image is not None:
                self._secrets[record.image.patient].update(record.secrets)

    def rows(self, questions: Sequence[IngestedQuestion]) -> Iterator[StoredRow]:
        """The rows, in order of the questions. `left_out` and `replaced` are complete once all rows are taken."""
        images = [self._image(question) for question in questions]
        with_image = [
            (image, question) for image, question in zip(images, questions, strict=True) if isinstance(image, Image)
        ]
        contradictory = contradictions((image.id, question) for image, question in with_image)
        named_splits = {image.patient: question.split for image, question in reversed(with_image) if question.split}
        index = 0
        for question, image in zip(questions, images, strict=True):
            texts = self._kept(question, image, contradictory)
            if isinstance(texts, RowReason):
                self.left_out.append((question.index, texts))
                continue
            assert isinstance(image, Image)
            yield StoredRow(
                index=index,
                image=image.id,
                organ=question.organ or image.organ,
                split=question.split or named_splits.get(image.patient) or part_of(image.patient, self._keys),
                question=texts[0],
                answer=texts[1],
            )
            index += 1

    def _kept(
        self, question: IngestedQuestion, image: Image | RowReason, contradictory: Collection[bytes]
    ) -> tuple[str, str] | RowReason:
        """Question and answer as they are stored, or why they are not."""
        if not isinstance(image, Image):
            return image
        if topic(image.id, question) in contradictory:
            return RowReason.CONTRADICTORY
        return self._texts(question, image) or RowReason.IDENTIFIER_IN_TEXT

    def _image(self, question: IngestedQuestion) -> Image | RowReason:
        """The one image that the question is about, or why there is none that may be stored."""
        keyed = self._keys.digest("name", question.image)
        places = (self._by_path.get(question.image), self._by_file.get(question.image), self._by_key.get(keyed))
        sources = set(next(filter(None, places), ()))
        if len(sources) != 1:
            return RowReason.SEVERAL_IMAGES if sources else RowReason.NO_SUCH_IMAGE
        record = self._records.get(sources.pop())
        return RowReason.IMAGE_QUARANTINED if record is None or record.image is None else record.image

    def _texts(self, question: IngestedQuestion, image: Image) -> tuple[str, str] | None:
        """Question and answer without identifiers; None if the question must be left out.

        An identifier in an answer is never replaced: a placeholder is no answer.
        """
        secrets = self._secrets[image.patient]

        def is_known(form: str) -> bool:
            return self._secret(form) in secrets

        in_question, in_answer = (identifiers_in(text, is_known) for text in (question.question, question.answer))
        if in_answer or (in_question and not self._replace):
            return None
        if in_question:
            self.replaced.append(question.index)
        return without(question.question, in_question), question.answer


def part_of(patient: str, keys: Pseudonyms) -> Split:
    """The part for a patient whose questions name no split."""
    position, reached = int(keys.digest("split", patient)[:8], 16) / 2**32, 0.0
    for part, share in PARTS:
        reached += share
        if position < reached:
            return part
    return PARTS[-1][0]
