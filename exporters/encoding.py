r"""Encodings: UTF-8 text and JSON that are valid for all names in the target, and the wire format of protocol buffers.

Changes of writing direction are escaped as `\u202e`: a viewer would show what follows them in another place. So are the
control characters that terminals obey and JSON does not escape. Names come from the target, and terminals and editors
interpret some characters.

The wire format of protocol buffers, as far as profile.proto needs it: varints and length-delimited fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

DIRECTIONS = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""Characters that change the writing direction (UAX #9), so that later text appears elsewhere.

For a class in a regex.
"""
CONTROLS = "\x00-\x1f\x7f-\x9f\u2028\u2029"
"""Characters that move the cursor or end a line. For a class in a regex."""
_OBEYED = re.compile(f"[\x80-\x9f{DIRECTIONS}]")
_IN_JSON = re.compile(rb"\xc2[\x80-\x9f]|\xd8\x9c|\xe2(?:\x80[\x8e\x8f\xaa-\xae]|\x81[\xa6-\xa9])")
"""Pattern of _OBEYED (control characters that terminals obey) in UTF-8, in which no other character contains these
bytes.
"""


def encode_text(text: str) -> bytes:
    r"""Encode text as UTF-8; lone surrogates (bytes of a file name that is not UTF-8) become `\udcNN`."""
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode("utf-8", "backslashreplace")


def clean_text(text: str) -> str:
    """Return the text with the replacements for invalid UTF-8 that encode_text() makes."""
    return encode_text(text).decode("utf-8")


def dump_json(document: object, option: int = 0) -> bytes:
    """Encode dicts, lists and tuples as JSON with clean texts; option is orjson's."""
    import orjson  # here, because `--help` needs only the patterns

    try:
        written = orjson.dumps(document, option=option)
    except TypeError:  # orjson refuses surrogates
        written = orjson.dumps(_cleaned(document), option=option)
    return _IN_JSON.sub(lambda found: b"\\\\u%04x" % ord(found[0].decode()), written)


def _cleaned(value: object) -> object:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(item) for item in value]
    return value


_MASK = (1 << 64) - 1
_SHORT = [bytes([value]) for value in range(0x80)]
"""Protobuf encodings of small numbers, which are the majority in a file."""


def encode_varint(value: int) -> bytes:
    """Encode a signed or unsigned 64-bit number as a protobuf varint; negative ones in two's complement (ten bytes)."""
    if 0 <= value < 0x80:
        return _SHORT[value]
    value &= _MASK
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_number(field: int, value: int) -> bytes:
    """Encode a protobuf field of type int64, uint64 or bool; 0 is the default and gives no bytes."""
    return encode_varint(field << 3) + encode_varint(value) if value else b""


def encode_packed(field: int, values: Iterable[int]) -> bytes:
    """Encode a repeated number as a packed protobuf field."""
    return encode_data(field, b"".join(map(encode_varint, values)))


def encode_data(field: int, payload: bytes) -> bytes:
    """Encode a protobuf field with a message, a string, or packed numbers; it is written even if empty."""
    return encode_varint(field << 3 | 2) + encode_varint(len(payload)) + payload
