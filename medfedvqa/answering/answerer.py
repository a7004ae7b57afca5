"""Answers one question about one picture with the model that a site kept of a job. Every answer is logged first.

The answer depends on the site's training rows, and no report's epsilon covers that: answers are for the site's own
staff.
"""

import base64
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from io import BytesIO
from pathlib import Path
from types import TracebackType

import torch

from audits import AuditError, AuditLog, Event
from audits.escaping import Child, Html, tag
from audits.ui.local_server import Answer, LocalServer, Upload, html_answer
from audits.ui.widgets import framed, table
from medfedvqa.answering.kept_run import KeptRun
from medfedvqa.core import Answering, Site
from medfedvqa.core.kept_model import KEPT
from medfedvqa.core.scores import RIGHT
from medfedvqa.data import Examples, Pictures, Row, SiteData, Source
from medfedvqa.data.images import load_image, square
from medfedvqa.errors import ConfigError, DataError, MedfedvqaError
from medfedvqa.evaluation.accuracy import Proportion
from medfedvqa.evaluation.picture_maps import draw_attention
from medfedvqa.version import code_version

# A picture from outside a data set: the bytes of a PNG, a JPEG or a DICOM file.

MOST_BYTES = 1 << 27
"""The most bytes of a picture's file."""
_DICOM = (128, b"DICM")
_UNREADABLE = "the picture cannot be read: give a PNG, JPEG or DICOM file of one picture, at most 89 million pixels"


def picture_of(content: bytes, size: int, colour: bool = False) -> torch.Tensor:
    """The picture in a file's bytes, grey, float32 [1, size, size] in 0..1.

    With `colour` it is [3, size, size] if it has any.
    DICOM goes through the file's own window, as in ingestion; nothing is searched for text and nothing is stored.
    Raises `ConfigError`, which reveals nothing about the picture.
    """
    if len(content) > MOST_BYTES:
        raise ConfigError(_UNREADABLE)
    place, magic = _DICOM
    if content[place : place + len(magic)] == magic:
        return _from_dicom(content, size)
    try:
        return load_image(BytesIO(content), size, 0, colour)
    except DataError:
        raise ConfigError(_UNREADABLE) from None


def _from_dicom(content: bytes, size: int) -> torch.Tensor:
    # Reading DICOM takes a second to import.
    from medfedvqa.ingest.dicom_reading import check_picture, read_dicom
    from medfedvqa.ingest.image_options import Options
    from medfedvqa.ingest.image_rendering import render
    from medfedvqa.ingest.refusal_reasons import Quarantined

    try:
        dataset = read_dicom(content, Options())
        check_picture(dataset, Options())
        return square(render(dataset, Options()).grey, size) / 255.0
    except (Quarantined, MemoryError):
        raise ConfigError(_UNREADABLE) from None


WARNING = "Research software, not a medical device: no answer may guide the care of a patient."
UNCALIBRATED = "The probabilities are the model's own; nothing has calibrated them."
MOST_CHARACTERS = 1000
"""The most characters of a question."""


@dataclass(frozen=True)
class RankedAnswers:
    """The answers to one question, the most probable first."""

    answers: tuple[tuple[str, float], ...]
    """Each answer with its probability in 0..1."""
    picture: torch.Tensor
    """The picture as the backbone sees it, float32 [1, size, size] in 0..1."""
    look: Callable[[], torch.Tensor]
    """Computes the attention to each part of the picture, [parts]. Raises `ConfigError` if the model shows none."""


def tested_sentence(tested: Proportion) -> str:
    """The sentence on the model's accuracy on the site's test rows."""
    if not tested.rows:
        return "It was tested on no rows of this site."
    low, high = tested.wilson()
    share = tested.correct / tested.rows
    return f"It answered {share:.1%} [{low:.1%}, {high:.1%}] of this site's {tested.rows} test rows right."


class Answerer:
    """A site's model of one job, ready for questions. Close it: that signs the log."""

    def __init__(self, kept: KeptRun) -> None:
        """Raises `ConfigError` if the job left no model that answers, `BackboneError`, `DataError` or `LogError`."""
        self._kept, self._method = kept, kept.job.build()
        declared = kept.config.data.answers or self._method.public_answers
        # The site's rows are read only if the answer space comes from them.
        self._answers = declared or kept.own_data().answers
        self._empty = kept.site(_asked(kept.config.data.organ, self._answers))
        self._answering = self._method.answering(self._empty, kept.state)
        self._log = kept.open_log()

    @property
    def answering(self) -> Answering:
        """The model with its trained values in place."""
        return self._answering

    @property
    def site(self) -> Site:
        """The site with its backbone, and without rows."""
        return self._empty

    @property
    def log(self) -> AuditLog:
        """The site's audit log."""
        return self._log

    @property
    def image_size(self) -> int:
        """The side of the pictures that the model takes, pixels."""
        return self._answering.model.image_size or self._empty.backbone.shape.image_size

    @property
    def tested(self) -> Proportion:
        """The share of the site's test rows that this model answers right."""
        state = self._kept.state
        right: torch.Tensor = state[KEPT][RIGHT][state[KEPT]["model"]] if KEPT in state else state[RIGHT]
        return Proportion(int(right.sum()), len(right))

    def probabilities(self, grey: torch.Tensor, question: str) -> torch.Tensor:
        """The probability of each answer, for a grey picture [height, width] in 0..255.

        Nothing is logged: use `ask` for answers that anybody will see.
        """
        picture = square(grey.numpy(), self.image_size) / 255.0
        site = self._site_with(question, picture, picture)
        return self._answering.probabilities(site, site.data.test)[0]

    def ask(self, content: bytes, question: str, most: int) -> RankedAnswers:
        """At most `most` answers to a question about the picture in a file's bytes.

        The entry in the log has neither question nor answer nor picture. Raises `ConfigError`; `LogError` if the
        log cannot be written, and then nothing is answered.
        """
        question = " ".join(question.split())
        if not question or len(question) > MOST_CHARACTERS:
            raise ConfigError(f"a question must have words, and at most {MOST_CHARACTERS} characters")
        backbone = self._empty.backbone
        picture, coloured = (picture_of(content, self.image_size, colour) for colour in (False, True))
        site = self._site_with(question, picture, coloured)
        self._log.append(
            Event.ANSWERED,
            job=self._kept.job_id,
            method=self._kept.job.method,
            code_version=code_version(),
            model_digest=backbone.digest,
        )
        shares = self._answering.probabilities(site, site.data.test)[0]
        best = shares.topk(min(most, len(shares)))
        named = tuple((self._answering.answers[i], float(p)) for p, i in zip(*best, strict=True))
        return RankedAnswers(named, picture, lambda: self._answering.attention(site, site.data.test)[0].float().cpu())

    def _site_with(self, question: str, grey: torch.Tensor, coloured: torch.Tensor) -> Site:
        """The site with one row."""
        empty = self._empty
        data = _asked(empty.data.organ, self._answers, question, (grey, coloured))
        return Site(empty.name, data, empty.backbone, empty.device, empty.seed)

    def close(self) -> None:
        """Signs the log and closes it."""
        self._log.close()

    def __enter__(self) -> "Answerer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _asked(
    organ: str,
    answers: tuple[str, ...],
    question: str | None = None,
    picture: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> SiteData:
    """A site whose only row is this question about this picture, grey and coloured; without a question it has none."""
    empty = torch.zeros(0, dtype=torch.int64)
    none = Examples((), empty, empty, empty)
    if question is None or picture is None:
        return SiteData("asked", organ, answers, none, none, none, Pictures([]), frozenset(), ())
    first = torch.zeros(1, dtype=torch.int64)
    row = Row(0, organ, "test", False, question, "", "asked", Path())
    pictures = Pictures([Source(row, lambda row, size: picture[0], lambda row, size: picture[1])])
    test = Examples((question,), first - 1, first, first)
    return SiteData("asked", organ, answers, none, none, test, pictures, frozenset(), ("asked",))


# A page on this machine that sends a picture and a question to the model, and shows its answers and attention.
#
# It uses the server of the audit pages: loopback only, a random token, no script, no log. Pictures and questions stay
# in memory for one request.

SHOWN = 5
"""The number of answers that the page shows."""
_NAME = "Trained model"
_NOTE = "On this machine only. Each answer is counted in the site's audit log, without its question."
_LOOKS = (
    "Where the model looks in the picture: the picture alone, and under the attention to each of its parts. It shows "
    "where the model looks, not why it answers."
)


class AnswerServer(LocalServer):
    """The page at `url`, once `serve_forever` runs. Port 0 takes a free one. Raises `LogError` if the port is taken."""

    content_policy = f"{LocalServer.content_policy}; img-src data:"
    most_upload = MOST_BYTES + (1 << 16)

    def __init__(self, answerer: Answerer, port: int = 0) -> None:
        self._answerer, self._turn = answerer, threading.Lock()
        super().__init__(port)

    def page(self, name: str, query: Mapping[str, str], upload: Upload | None) -> Answer:
        if name:
            return html_answer(self._framed("Not found", tag("p", "There is no such page.")), HTTPStatus.NOT_FOUND)
        if upload is None:
            return html_answer(self._framed("Ask the trained model", _form("")))
        question = upload.get("question", b"").decode(errors="replace")
        try:
            with self._turn:  # one question at a time: the model takes all threads
                reply = self._answerer.ask(upload.get("picture", b""), question, SHOWN)
                looks = _attention(reply, question)
        except (MedfedvqaError, AuditError) as error:
            told = tag("p", f"Not answered: {error}.", class_="finding", role="alert")
            return html_answer(self._framed("Ask the trained model", told, _form(question)), HTTPStatus.BAD_REQUEST)
        return html_answer(self._framed("The model\u2019s answer", *self._answered(question, reply), looks, _form("")))

    def _framed(self, title: str, *content: Child) -> Html:
        warning = tag("p", WARNING, class_="finding", role="note")
        return framed(title, _NAME, None, _NOTE, warning, *content)

    def _answered(self, question: str, reply: RankedAnswers) -> tuple[Child, ...]:
        rows = ((answer, f"{share:.1%}") for answer, share in reply.answers)
        answers = table("The most probable answers", ("Answer", "Probability"), rows)
        said = f"{tested_sentence(self._answerer.tested)} {UNCALIBRATED}"
        return tag("p", tag("strong", "Question: "), question), answers, tag("p", said)


def _attention(reply: RankedAnswers, question: str) -> Html:
    """The picture with the model's attention, or the reason why there is none."""
    try:
        drawn = draw_attention(reply.picture, reply.look(), "")
    except ConfigError as error:
        return tag("p", f"No attention is shown: {error}.")
    source = f"data:image/png;base64,{base64.b64encode(drawn).decode()}"
    return tag("figure", tag("img", src=Html(source), alt=_LOOKS), tag("figcaption", _LOOKS), class_="attention")


def _form(question: str) -> Html:
    picture = tag("input", type="file", id="picture", name="picture", required=True)
    text = tag(
        "input", type="text", id="question", name="question", required=True, maxlength=MOST_CHARACTERS, value=question,
        size=60, autocomplete="off",
    )  # fmt: skip
    fields = (
        tag("div", tag("label", "Picture (PNG, JPEG or DICOM)", for_="picture"), picture),
        tag("div", tag("label", "Question", for_="question"), text),
        tag("div", tag("button", "Ask", type="submit"), class_="do"),
    )
    return tag("form", *fields, method="post", action="./", enctype="multipart/form-data", aria_label="Ask the model")
