"""Serves pages about logs to a browser on the same machine. It answers only GET and HEAD."""

import sqlite3
import threading
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path

from audits.errors import LogError
from audits.html import tag
from audits.ui.index import Index
from audits.ui.local_server import Answer, LocalServer, Upload, html_answer
from audits.ui.pages import PAGES, BadQuery, Checks, Judge, Sight
from audits.ui.widgets import document


class AuditServer(LocalServer):
    """Pages on these logs (site: folder) at `url`, once `serve_forever` runs. Port 0 takes a free one.

    `judges` give the three verdicts on each of them whenever they are asked for.

    Raises `LogError` if a log cannot be read or the port is taken.
    """

    def __init__(self, logs: Mapping[str, Path], judges: Mapping[str, Judge], port: int = 0) -> None:
        self._turn = threading.Lock()
        self._sight = Sight(Index(logs), Checks(judges))
        self._sight.index.refresh()
        try:
            super().__init__(port)
        except LogError:
            self._sight.index.close()
            raise

    def server_close(self) -> None:
        """Stops listening and closes the index."""
        super().server_close()
        with self._turn:
            self._sight.index.close()

    def page(self, name: str, query: Mapping[str, str], upload: Upload | None) -> Answer:
        with self._turn:
            return self._page(name, query)

    def _page(self, name: str, query: Mapping[str, str]) -> Answer:
        try:
            self._sight.index.refresh()
            page = PAGES[name](self._sight, query) if name in PAGES else None
        except BadQuery as error:
            return _sentence(HTTPStatus.BAD_REQUEST, "This cannot be asked", f"In the address, {error}.")
        except sqlite3.Error:
            return _sentence(HTTPStatus.INTERNAL_SERVER_ERROR, "The log cannot be shown", "Its sums are too large.")
        except LogError as error:
            return _sentence(HTTPStatus.INTERNAL_SERVER_ERROR, "The log cannot be shown", f"{error}.")
        if page is None:
            return _sentence(HTTPStatus.NOT_FOUND, "Not found", "There is no such page or entry.")
        return html_answer(page)


def _sentence(status: HTTPStatus, title: str, text: str) -> Answer:
    return html_answer(document(title, "", tag("p", text)), status)
