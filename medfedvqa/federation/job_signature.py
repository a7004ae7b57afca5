"""Reads from FLARE's (2.9) signatures who signed a deployed job, and which federation a kit belongs to.

FLARE signs each file of a folder, and the names of the folders in it, with RSA-PSS, and keeps beside them a JSON object
of signatures in base64 and the certificates of the signer. The vault checks them itself, and loads nothing of FLARE.
"""

import base64
import json
from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509 import (
    BasicConstraints,
    Certificate,
    ExtendedKeyUsage,
    ExtensionNotFound,
    KeyUsage,
    load_pem_x509_certificates,
)
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import ExtensionPolicy, PolicyBuilder, Store, VerificationError

SIGNATURES, SIGNER = ".__nvfl_sig.json", ".__nvfl_submitter.crt"
"""The files of a signed folder with its signatures, and with the certificates of whoever signed it."""
_PADDING = PSS(MGF1(SHA256()), PSS.MAX_LENGTH)


def federation_of(root: Path) -> str:
    """The fingerprint of a federation's root certificate, which says which federation it is; empty without one."""
    if not root.exists():
        return ""
    digest = _root(root).fingerprint(SHA256()).hex(":").upper()
    return f"SHA256:{digest}"


def submitter(files: Mapping[str, bytes], root: Path) -> str:
    """SHA-256, in hex, of the certificate with which all folders of a deployed job are signed.

    `files`: the content of the job's files by path. Empty unless every file and folder is signed with one certificate
    that is valid under `root`.
    """
    folders = {"", *(path.rpartition("/")[0] for path in files)}
    try:
        (signer,) = {_signer(folder, files, _root(root)) for folder in folders}
    except (OSError, LookupError, ValueError, TypeError, RecursionError, VerificationError, InvalidSignature):
        return ""
    return signer.fingerprint(SHA256()).hex()


def _root(path: Path) -> Certificate:
    return load_pem_x509_certificates(path.read_bytes())[0]


def _signer(folder: str, files: Mapping[str, bytes], root: Certificate) -> Certificate:
    """The certificate with which a folder's content is signed. Raises one of several errors if it is not valid."""
    prefix = f"{folder}/" if folder else ""
    contents = {path.removeprefix(prefix): content for path, content in files.items() if path.startswith(prefix)}
    signer, *chain = load_pem_x509_certificates(contents.pop(SIGNER))
    signatures = json.loads(contents.pop(SIGNATURES))
    policy = ExtensionPolicy.webpki_defaults_ca(), ExtensionPolicy.permit_all()
    builder = PolicyBuilder().store(Store([root])).extension_policies(ca_policy=policy[0], ee_policy=policy[1])
    builder.build_client_verifier().verify(signer, chain)
    key = signer.public_key()
    if not isinstance(key, RSAPublicKey) or not _may_sign(signer):
        raise ValueError
    signed = {name: content for name, content in contents.items() if "/" not in name}
    signed |= {name.partition("/")[0]: name.partition("/")[0].encode() for name in contents if "/" in name}
    for name, content in signed.items():
        key.verify(base64.b64decode(signatures[name]), content, _PADDING, SHA256())
    return signer


def _may_sign(certificate: Certificate) -> bool:
    """Whether a certificate is a client's and not an authority's; without extensions it counts as a client's."""
    extensions = certificate.extensions
    for kind in (BasicConstraints, KeyUsage, ExtendedKeyUsage):
        try:
            value = extensions.get_extension_for_class(kind).value
        except ExtensionNotFound:
            continue
        match value:
            case BasicConstraints(ca=True) | KeyUsage(digital_signature=False):
                return False
            case ExtendedKeyUsage() if ExtendedKeyUsageOID.CLIENT_AUTH not in value:
                return False
    return True
