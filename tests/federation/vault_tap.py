"""What a vault's process loads in tests only, once it is isolated: it keeps what is sealed for other sites.

A vault keeps neither components nor most of its environment, so that Python itself loads this when it starts.
"""

import hashlib
import json
import os
from collections.abc import MutableMapping
from pathlib import Path

MESSAGE_TIMEOUT = 10.0  # seconds; the sites' own would make tests slow
SECRETS = "secrets"

_CUSTOMIZE = """
import sys
if "medfedvqa.vault" in sys.orig_argv:
    from medfedvqa.vault import isolation
    isolate = isolation.isolate
    def tapped(*arguments, **options):
        held = isolate(*arguments, **options)
        import vault_tap
        vault_tap.record_secrets({folder!r})
        return held
    isolation.isolate = tapped
"""


def install(taps: Path, environment: MutableMapping[str, str]) -> None:
    """Vaults that are started with this environment write into `taps`."""
    folder = taps / "customize"
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(_CUSTOMIZE.format(folder=str(taps)))
    places = environment.get("PYTHONPATH", "").split(os.pathsep)
    if str(folder) not in places:
        environment["PYTHONPATH"] = os.pathsep.join([str(folder), *filter(None, places)])


def record_secrets(folder: str) -> None:
    """From now on this process notes each message that it seals, and the digest of what it is sealed as."""
    from medfedvqa.federation import aggregation_attempt
    from privacy.secagg.channel import Session

    assert aggregation_attempt.MESSAGE_TIMEOUT > MESSAGE_TIMEOUT
    aggregation_attempt.MESSAGE_TIMEOUT = MESSAGE_TIMEOUT
    seal = Session.seal
    # Opened here: the process of a job, which is forked later, may not open files outside of the site's folders.
    file = (Path(folder) / f"{SECRETS}.{os.getpid()}").open("ab", buffering=0)

    def recorded(session: Session, message: bytes) -> bytes:
        sealed = seal(session, message)
        digest = hashlib.sha256(sealed).hexdigest()
        file.write(json.dumps([session.me, session.peer, bytes(message).hex(), digest]).encode() + b"\n")
        return sealed

    Session.seal = recorded  # type: ignore[method-assign]
