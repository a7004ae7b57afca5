"""An archive with DICOMweb that answers what it likes, and one attempt to fetch an image from it."""

import csv
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from medfedvqa.dicomweb import FetchOutcome, fetch


def table(path: Path, *names: str) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("image", "question", "answer"))
        writer.writerows((name, f"Question {number}?", "yes") for number, name in enumerate(names))
    return path


@contextmanager
def liar(
    answer: Callable[[str], tuple[int, str, bytes]],
    asked: list[dict[str, str]] | None = None,
    pause: float | None = None,
) -> Iterator[str]:
    """A server on the loopback that answers each path as it likes: status, type and content; for a status of 302 the
    address to go to. `asked`: where it notes the headers that it gets. `pause`: seconds after each byte of content, of
    which it repeats the last for ever."""
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if asked is not None:
                asked.append(dict(self.headers))
            status, kind, content = answer(self.path)
            self.send_response(status)
            self.send_header(*(("Location", kind) if status == 302 else ("Content-Type", kind)))
            if pause is None:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if pause is None:
                self.wfile.write(content)
                return
            with suppress(OSError):
                for number in itertools.count():
                    self.wfile.write(content[min(number, len(content) - 1) :][:1])
                    if ended.wait(pause):
                        return

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            ended.set()
            server.shutdown()
            thread.join()


def attempt(url: str, folder: Path, name: str = "1.2.5", **settings: object) -> dict[FetchOutcome, int]:
    return fetch(url, table(folder / "q.csv", name), folder / "into", lambda *_: None, **settings)
