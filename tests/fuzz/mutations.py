"""Job folders as an attacker might write them: seeds, and random changes of bytes, values and files."""

import contextlib
import copy
import json
import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nvflare.lighter.tool_consts import NVFLARE_SIG_FILE

MARKER = "PLANTEDMARKER"
"""Stands in many of the changes; nothing that a site says may hold it."""
CONFIGS = ("config/config_fed_client.json", "config/config_fed_server.json")
Files = dict[str, bytes]

_HERE = Path(__file__).parent
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 0.5, 1e-9, 1e300, 2**63 - 1, 2**63, -(2**70), 10**400),
    *("", MARKER, "{$PLANTED_SECRET}", "{WORKSPACE}", "{@x:y=z}", "${secret:HOME}", "{", "}", "$", "a\x00b", "\ud800"),
    *("x" * 5000, MARKER * 20, "../" + MARKER, "official", "patient", "adapter", "medclip@random", "\u202e" + MARKER),
    *([], {}, [MARKER], {MARKER: MARKER}, [[]], [0.5, 0.25, 0.25], ["yes", "no"], ["yes"] * 11_000),
    *({"path": "os.system", "args": {"command": MARKER}}, {"epsilon": 1.0}, {"head": {"hidden": 4}}),
)
_OPTIONS = (
    *("rounds", "local_epochs", "batch_rows", "blocks", "length", "temperature", "hidden", "pixels", "width", "top"),
    *(
        "unseen",
        "models",
        "answers",
        "trunk",
        "decay_after",
        "local_unit",
        "optimizer",
        "head",
        "rank",
        "views",
        MARKER,
    ),
)
_RAW = (b"NaN", b"-Infinity", b"1e999", b"9" * 5000, b"[" * 3000, b'{"a":' * 3000, b'"\\ud800"', b"\xff\xfe", b"\x00")


def seeds(jobs: Path) -> tuple[list[Files], list[Files]]:
    """The apps of all folders of jobs; and that of one with each of the hostile changes."""
    apps = [folder / "app" for folder in sorted(jobs.iterdir()) if (folder / "app").is_dir()]
    found = [{name: (app / name).read_bytes() for name in CONFIGS} for app in apps]
    plain = next(files for app, files in zip(apps, found, strict=True) if app.parent.name == "fedavg")
    hostile = json.loads((_HERE / "hostile_jobs.json").read_text())
    return found, [changed(plain, changes) for changes in hostile.values()]


def changed(files: Files, changes: Mapping[str, Any]) -> Files:
    """The same job with other fields, in both configurations."""
    made = {}
    for name in CONFIGS:
        config = json.loads(files[name])
        arguments(config)["job"].update(changes)
        made[name] = json.dumps(config).encode()
    return made


def arguments(config: dict[str, Any]) -> dict[str, Any]:
    """Those of the executor, or of the controller."""
    holder = config["executors"][0]["executor"] if "executors" in config else config["workflows"][0]
    args: dict[str, Any] = holder["args"]
    return args


def mutated(files: Files, chance: random.Random) -> Files:
    """A copy after one to four changes of bytes or values; two in five differ in the job's fields and options only."""
    made = dict(files)
    changes = (_field,) if chance.random() < 0.4 else (_value, _value, _same_value, _bytes, _raw, _key_twice)
    for _ in range(chance.randint(1, 4)):
        with contextlib.suppress(RecursionError, OverflowError):  # from what an earlier change made
            chance.choice(changes)(made, chance)
    return made


def _places(value: Any) -> list[tuple[Any, Any]]:
    """All containers in a JSON value, each with each of its keys."""
    if not isinstance(value, dict | list):
        return []
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    return [(value, key) for key in keys] + [place for key in keys for place in _places(value[key])]


def _change(value: Any, chance: random.Random) -> None:
    places = _places(value)
    if not places:
        return
    container, key = chance.choice(places)
    what = chance.randrange(6)
    if what == 0:
        del container[key]
    elif what == 1 and isinstance(container, dict):
        container[chance.choice((MARKER, "path", "name", "", "{$HOME}", "a" * 300, "default_task_fetch_interval"))] = (
            container.pop(key)
        )
    elif what == 2 and isinstance(container[key], int | float) and not isinstance(container[key], bool):
        container[key] = container[key] * chance.choice((2, 10, 0.5, -1, 10**9)) + chance.choice((0, 1, -1))
    elif what == 3:
        container[key] = _nested(container[key], chance.choice((2, 20, 500)))
    elif what == 4 and isinstance(container, dict):
        container[chance.choice(("rounds", "blocks", "length", "temperature", "unseen", "models", MARKER))] = _any(
            chance
        )
    else:
        container[key] = _any(chance)


def _nested(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


def _any(chance: random.Random) -> Any:
    return copy.deepcopy(chance.choice(VALUES))


def _loaded(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _value(files: Files, chance: random.Random) -> None:
    name = chance.choice(CONFIGS)
    config = _loaded(files[name])
    _change(config, chance)
    if config is not None:
        files[name] = _dumped(config)


def _dumped(value: Any) -> bytes:
    try:
        return json.dumps(value).encode()
    except ValueError:
        return b"{}"


def _same_value(files: Files, chance: random.Random) -> None:
    """In the job that both configurations hold."""
    configs = [_loaded(files[name]) for name in CONFIGS]
    try:
        job = copy.deepcopy(arguments(configs[0])["job"])
    except (KeyError, IndexError, TypeError, RecursionError):
        return
    _change(job, chance)
    for name, config in zip(CONFIGS, configs, strict=True):
        try:
            arguments(config)["job"] = job
        except (KeyError, IndexError, TypeError):
            return
        files[name] = _dumped(config)


def _field(files: Files, chance: random.Random) -> None:
    """A value that the schema may pass, so that the job's own check has something to do."""
    job = copy.deepcopy(arguments(json.loads(files[CONFIGS[0]]))["job"])
    holder = chance.choice(
        [job, *(value for value in (job.get("options"), job.get("split")) if isinstance(value, dict))]
    )
    names = _OPTIONS if holder is job.get("options") else [*holder, MARKER]
    holder[chance.choice(names)] = chance.choice((_any(chance), chance.randint(-2, 300), chance.random(), "adapter"))
    for name in CONFIGS:
        config = json.loads(files[name])
        arguments(config)["job"] = job
        files[name] = _dumped(config)


def _bytes(files: Files, chance: random.Random) -> None:
    name = chance.choice(CONFIGS)
    content = bytearray(files[name])
    for _ in range(chance.randint(1, 8)):
        if content:
            place = chance.randrange(len(content))
            what = chance.randrange(3)
            if what == 0:
                content[place] ^= 1 << chance.randrange(8)
            elif what == 1:
                del content[place : place + chance.randint(1, 40)]
            else:
                content[place:place] = chance.randbytes(chance.randint(1, 8))
    files[name] = bytes(content)


def _raw(files: Files, chance: random.Random) -> None:
    name = chance.choice(CONFIGS)
    text = files[name]
    place = text.find(b": ", chance.randrange(len(text) + 1)) + 2
    files[name] = text[:place] + chance.choice(_RAW) + text[place:]


def _key_twice(files: Files, chance: random.Random) -> None:
    name = chance.choice(CONFIGS)
    files[name] = files[name].replace(b'"method":', b'"method": "' + MARKER.encode() + b'", "method":', 1)


def _link(app: Path) -> None:
    (app / CONFIGS[0]).unlink()
    (app / CONFIGS[0]).symlink_to("/dev/zero")


def _link_folder(app: Path) -> None:
    (app / "config").rename(app.with_name("elsewhere"))
    (app / "config").symlink_to(app.with_name("elsewhere"))


def _pipe(app: Path) -> None:
    (app / CONFIGS[1]).unlink()
    os.mkfifo(app / CONFIGS[1])


def _folder(app: Path) -> None:
    (app / CONFIGS[1]).unlink()
    (app / CONFIGS[1]).mkdir()


def _large(app: Path) -> None:
    with (app / CONFIGS[0]).open("ab") as file:
        file.truncate(1 << 30)


def _missing(app: Path) -> None:
    (app / CONFIGS[0]).unlink()


def _file(app: Path) -> None:
    (app / "config" / MARKER).write_text(MARKER)


def _code(app: Path) -> None:
    (app / "custom").mkdir()
    (app / "custom" / f"{MARKER}.py").write_text(MARKER)


def _shadow(app: Path) -> None:
    (app / "config" / "comm_config.json").write_text('{"allow_adhoc_conns": true}')


def _hocon(app: Path) -> None:
    (app / "config" / "config_fed_client.conf").write_text(f"a = ${{?HOME}} {MARKER}")


def _odd_name(app: Path) -> None:
    Path(os.fsdecode(os.fsencode(app / "config") + b"/\xff\n")).write_text(MARKER)


def _signature(app: Path) -> None:
    (app / NVFLARE_SIG_FILE).write_text(MARKER)


FILE_CHANGES: tuple[Callable[[Path], None], ...] = (
    *(_link, _link_folder, _pipe, _folder, _large, _missing, _file, _code, _shadow, _hocon, _odd_name, _signature),
)
"""Of an app's folder on disk; all but the last make it one that no site takes."""
