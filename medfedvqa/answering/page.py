"""A page on this machine that sends a picture and a question to the model, and shows its answers and attention.

It uses the server of the audit pages: loopback only, a random token, no script, no log. Pictures and questions stay in
memory for one request.
"""

import base64
import threading
from collections.abc import Mapping
from http import HTTPStatus

from audits import AuditError
from audits.escaping import Child, Html, tag
from audits.ui.local_server import Answer, LocalServer, Upload, html_answer
from audits.ui.widgets import framed, table
from medfedvqa.answering.answerer import (
    MOST_BYTES,
    MOST_CHARACTERS,
    UNCALIBRATED,
    WARNING,
    Answerer,
    RankedAnswers,
    tested_sentence,
)
from medfedvqa.errors import ConfigError, MedfedvqaError
from medfedvqa.evaluation.picture_maps import draw_attention

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
