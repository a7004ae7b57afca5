"""Who signed a deployed job, and which federation a kit belongs to."""

from pathlib import Path

from cryptography.hazmat.primitives.hashes import SHA256
from nvflare.lighter.tool_consts import NVFLARE_SUBMITTER_CRT_FILE
from nvflare.lighter.utils import load_crt_chain, verify_folder_signature
from nvflare.tool.cert.fingerprint import cert_fingerprint_sha256


def federation_of(root: Path) -> str:
    """The fingerprint of a federation's root certificate, which says which federation it is; empty without one."""
    return str(cert_fingerprint_sha256(load_crt_chain(str(root))[0])) if root.exists() else ""


def submitter(app: Path, root: Path) -> str:
    """SHA-256, as hex, of the certificate that a deployed job is signed with; empty if it does not hold against `root`.

    FLARE has checked the same before it deployed the job, and deploys what nobody signed unless told otherwise. Its
    simulator signs nothing.
    """
    if not root.exists() or not verify_folder_signature(str(app), str(root)):
        return ""
    return str(load_crt_chain(str(app / NVFLARE_SUBMITTER_CRT_FILE))[0].fingerprint(SHA256()).hex())
