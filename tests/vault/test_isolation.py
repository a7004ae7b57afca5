"""What a process that `isolate` has isolated can still reach: nothing but whoever connects to it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from accounts import ACCOUNT, PYTHON

PROGRAM = """
import ctypes, json, os, socket, sys
from medfedvqa.vault import isolation
how, place, parent = sys.argv[1:]
if how == "filter":
    isolation._enter_own_network = lambda: False
if how == "no kernel":
    isolation._enter_own_network, isolation.platform.machine = (lambda: False), (lambda: "another")
held = isolation.isolate(reaches_system_log=how == "system log") if how != "open" else None
libc = ctypes.CDLL(None, use_errno=True)
def unix(kind):
    with socket.socket(socket.AF_UNIX, kind) as client:
        client.connect(place)
def datagram():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        client.sendto(b"rows", place + ".log")
def call(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "")
def forked():
    child = os.fork()
    if not child:
        os._exit(len(isolation.reached()))
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        raise OSError(1, "")
params = ctypes.create_string_buffer(512)
ATTEMPTS = {
    "families": lambda: [socket.socket(family, socket.SOCK_DGRAM) for family in (2, 10, 16, 17, 40)],
    "unix": lambda: unix(socket.SOCK_STREAM),
    "datagram": datagram,
    "ring": lambda: call(425, 1, params),
    "trace": lambda: call({"x86_64": 101, "aarch64": 117}[os.uname().machine], 0x4206, int(parent), 0, 0),
    "memory": lambda: open(f"/proc/{parent}/mem", "rb").read(1),
    "a child": forked,
}
def fails(attempt):
    try:
        attempt()
    except OSError:
        return True
    return False
json.dump({"held": held, "reached": isolation.reached(),
           "open": [name for name, attempt in ATTEMPTS.items() if not fails(attempt)]}, sys.stdout)
"""


def outcome(how: str, folder: Path) -> Any:
    """What a new process reports: what holds, and which attempts succeeded. The other end of its sockets listens."""
    listen = (
        "import os, socket, subprocess, sys; one, other = socket.socket(1, 1), socket.socket(1, 2); "
        "one.bind(sys.argv[3]); one.listen(); other.bind(sys.argv[3] + '.log'); "
        "sys.exit(subprocess.run([sys.executable, '-c', *sys.argv[1:], str(os.getpid())]).returncode)"
    )
    command = [sys.executable, "-c", listen, PROGRAM, how, str(folder / "s")]
    return json.loads(subprocess.run(command, capture_output=True, check=True, text=True, timeout=60).stdout)


def test_an_isolated_process_reaches_no_socket_of_any_family_and_no_other_process(tmp_path: Path) -> None:
    """Sockets of the network, of Unix, rings of calls, tracing, another process's memory, and a child's own attempts;
    the same attempts succeed in a process that is not isolated, as far as its own rights reach."""
    isolated, free = outcome("isolated", tmp_path / "a"), outcome("open", tmp_path / "b")
    assert isolated == {"held": "namespace", "reached": [], "open": []}
    assert {"loopback", "netlink"} <= {*free["reached"]} and {"unix", "datagram", "trace", "a child"} <= {*free["open"]}


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser gives a process a network without a name of its own")
def test_a_network_that_a_service_manager_emptied_counts_as_one_of_its_own() -> None:
    """As systemd's PrivateNetwork and a container without network give it, loopback up, where further name spaces are
    refused: known from inside, without a socket; a network that others use is none."""
    program = (
        "import ctypes, subprocess; from medfedvqa.vault import isolation as i; i._enter_own_network = lambda: False; "
        "ctypes.CDLL(None).unshare(0x40000000); subprocess.run(['ip', 'link', 'set', 'lo', 'up'], check=True); "
        "i._filter_sockets(False); print(i._has_empty_network(), i.isolate())"
    )
    results = [
        subprocess.run([PYTHON, "-c", text], capture_output=True, check=True, text=True, timeout=60).stdout.split()
        for text in (program, program.replace("ctypes.CDLL(None).unshare(0x40000000)", "0"))
    ]
    assert results == [["True", "namespace"], ["False", "filter"]]


def test_an_account_without_rights_isolates_itself_and_keeps_its_name() -> None:
    """A user name space needs none; files that the process makes belong to the account, as do those that it reads."""
    program = (
        "from medfedvqa.vault.isolation import *; import os; print(isolate(), reached(), os.getuid(), os.getgid())"
    )
    result = subprocess.run([PYTHON, "-c", program], capture_output=True, check=True, text=True, timeout=60, **ACCOUNT)
    user, group = (ACCOUNT["user"], ACCOUNT["group"]) if ACCOUNT else (os.getuid(), os.getgid())
    assert result.stdout.split() == ["namespace", "[]", str(user), str(group)]


def test_the_filter_alone_holds_where_no_name_space_can_be_had(tmp_path: Path) -> None:
    """The kernel of many containers refuses name spaces; the sockets are refused all the same."""
    assert outcome("filter", tmp_path / "a") == {"held": "filter", "reached": [], "open": []}


def test_a_site_that_tells_the_machines_log_reaches_unix_sockets_only(tmp_path: Path) -> None:
    """`system_log` is a Unix socket: what listens at one can be reached then, and nothing else."""
    found = outcome("system log", tmp_path / "a")
    assert (found["held"], found["reached"]) == ("namespace", [])
    assert {*found["open"]} == {"unix", "datagram"}


def test_no_process_of_the_same_account_reads_an_isolated_ones_memory(tmp_path: Path) -> None:
    """A courier that was taken over runs beside the vault: the kernel gives it neither memory nor environment."""
    wait = "import sys; from medfedvqa.vault.isolation import isolate; isolate(); print(flush=True); sys.stdin.read()"
    spy = "import sys; open(f'/proc/{sys.argv[1]}/environ', 'rb').read(1)"
    results = {}
    for name, program in (("isolated", wait), ("open", wait.replace("isolate();", ""))):
        with subprocess.Popen(
            [PYTHON, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, **ACCOUNT
        ) as process:
            assert process.stdout and process.stdout.readline()
            command = [PYTHON, "-c", spy, str(process.pid)]
            results[name] = subprocess.run(command, capture_output=True, check=False, timeout=60, **ACCOUNT).returncode
            process.communicate()
    assert results == {"isolated": 1, "open": 0}


def test_a_machine_that_permits_neither_is_found_out_from_inside(tmp_path: Path) -> None:
    """Nothing is believed because a call returned: the process tries, and reports what it reached."""
    found = outcome("no kernel", tmp_path / "a")
    assert found["held"] == "none" and "loopback" in found["reached"]


@pytest.fixture(autouse=True)
def folders(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
