"""What a process decodes of a message: the types that FLARE (2.9) and this project send, and no other.

FLARE's decoder makes an object of any class on its own list, of which ours need few; it writes a file for a part of a
message that says so, and fetches parts from any process that the message names. A message that needs one of these is
not decoded. An array is decoded only if its header agrees with its length: FLARE makes room for what a header says.
"""

import io
import logging
import math
from typing import Any, BinaryIO

import numpy as np
from nvflare.app_common.decomposers.numpy_decomposers import NumpyArrayDecomposer
from nvflare.fuel.utils.fobs import fobs, lobs
from nvflare.fuel.utils.fobs.datum import DatumManager

from medfedvqa.federation.flare import patches
from medfedvqa.federation.flare.messages import PLAIN

LISTED = frozenset(
    {
        *("nvflare.apis.shareable.Shareable", "nvflare.apis.fl_context.FLContext", "nvflare.apis.client.Client"),
        *("nvflare.private.admin_defs.Message", "nvflare.apis.job_def.JobMetaKey"),
        *("nvflare.fuel.utils.fobs.datum.DatumRef", "numpy.ndarray", "tuple"),
    }
)
"""Types of messages among server and sites, beyond those that need no class."""

_HEADER_BYTES = 1024
_MOST_AXES = 16


_logger = logging.getLogger(__name__)


class UndecodedError(Exception):
    """A message holds what this process does not decode; says nothing of what."""


def decode_listed_only(*also: str) -> None:
    """From now on this process decodes messages only if they hold nothing but the types of `LISTED`, and these.

    An error of decoding, which FLARE tells the sender, says nothing of the message; the local log has the error's name.
    """
    allowed = LISTED.union(also)
    unpack, section, load = patches.UNPACK.current(), patches.SECTION.current(), patches.LOAD.current()

    def listed(packer: fobs.Packer, value: Any) -> Any:
        if type(value) is dict and fobs.FOBS_TYPE in value:
            name = value[fobs.FOBS_TYPE]
            if type(name) is not str or name not in allowed:
                raise UndecodedError("a message holds an object of a class that is not decoded here")
        return unpack(packer, value)

    def get_one_section(stream: BinaryIO, expect_datum: bool) -> Any:
        header, name, data = section(stream, expect_datum)
        if header and expect_datum and (header.marker != lobs.MARKER_DATUM_BLOB or header.dot):
            raise UndecodedError("a message holds a part that is not decoded here")
        return header, name, data

    def load_from_stream(stream: BinaryIO, fobs_ctx: dict[str, Any] | None = None) -> Any:
        try:
            return load(stream, fobs_ctx)
        except Exception as error:
            _logger.warning("a message was not decoded: %s", type(error).__name__)
            raise UndecodedError("a message could not be decoded") from None

    patches.UNPACK.replace(listed)
    patches.SECTION.replace(get_one_section)
    patches.LOAD.replace(load_from_stream)
    patches.RECOMPOSE.replace(_native_recompose)


def _native_recompose(decomposer: NumpyArrayDecomposer, data: bytes, manager: DatumManager | None = None) -> np.ndarray:
    """In place of FLARE's function of this name."""
    return array_of(data)


def array_of(data: bytes) -> np.ndarray:
    """An array as `numpy.save` writes it. Raises `UndecodedError` for what is not plain, or of another length."""
    try:
        stream = io.BytesIO(data)
        if np.lib.format.read_magic(stream) != (1, 0):
            raise UndecodedError("an array of a message is not in the format that is decoded here")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream, max_header_size=_HEADER_BYTES)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise UndecodedError("an array of a message has no header that can be read") from None
    sizes = len(shape) <= _MOST_AXES and all(type(size) is int and size >= 0 for size in shape)
    start = stream.tell()
    if dtype.kind not in PLAIN or not sizes or math.prod(shape) * dtype.itemsize != len(data) - start:
        raise UndecodedError("an array of a message does not hold the numbers that its header says")
    if start == len(data):
        return np.empty(shape, dtype)
    return np.frombuffer(data, dtype, offset=start).reshape(shape, order="F" if fortran else "C").copy()
