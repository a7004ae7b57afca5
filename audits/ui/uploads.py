"""A form that a browser sends with a file in it (`multipart/form-data`, RFC 7578), read within bounds."""

import re
from collections.abc import Mapping
from email.message import Message
from typing import Protocol

Upload = Mapping[str, bytes]
"""The values of a form's fields by name."""


class RequestBody(Protocol):
    """What a request's body is read from."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; fewer only at the end."""


_BOUNDARY = re.compile(r'multipart/form-data;\s*boundary="?([0-9A-Za-z\'()+_,./:=?-]{1,70})"?', re.IGNORECASE)
_NAME = re.compile(rb'content-disposition:[^\r\n]*[; ]name="([a-z]{1,32})"', re.IGNORECASE)
_MOST_FIELDS = 8


def read_upload(headers: Message, body: RequestBody, most: int) -> Upload:
    """The fields of the form in a request's body. Raises `ValueError` for another form, and for one that is too large.

    Nothing is read of a body that is too large. Files' names are not kept.
    """
    lengths, kind = headers.get_all("Content-Length") or [], _BOUNDARY.fullmatch(headers.get("Content-Type", ""))
    if len(lengths) != 1 or not lengths[0].isdecimal() or int(lengths[0]) > most or kind is None:
        raise ValueError("no form of a size that is read")
    content = b"\r\n" + body.read(int(lengths[0]))
    parts = content.split(b"\r\n--" + kind[1].encode())
    if len(parts) < 3 or len(parts) > _MOST_FIELDS + 2 or not parts[-1].startswith(b"--"):
        raise ValueError("the form is cut, or has too many fields")
    fields = {}
    for part in parts[1:-1]:
        head, blank_line, value = part.partition(b"\r\n\r\n")
        name = _NAME.search(head)
        if not blank_line or name is None:
            raise ValueError("a part of the form is no field")
        fields[name[1].decode()] = value
    return fields
