r"""Untrusted text from targets, made harmless: secrets redacted, control characters escaped, as UTF-8 and JSON.

Names, variables and environments come from the target, and terminals and editors interpret some characters. Changes of
writing direction are escaped as `\u202e`: a viewer would show what follows them in another place. So are the control
characters that terminals obey and JSON does not escape.

Passwords and tokens are redacted by the names that they have. The search takes a bounded number of steps for each
character.
"""

from __future__ import annotations

import re

REDACTED = "<redacted>"
_SECRET = re.compile(
    r"pass(word|wd|phrase|code)|\bpass\b|_pass\b|pwd|(^|_)pw($|_)|secret|token|api_?key|apikey|auth|credential|cookie|session_?id|private|signature|salt",
    re.IGNORECASE,
)

_IN_ADDRESS = re.compile(r"(://[^\s:/?#@]{0,256}:)[^\s/?#@]+(?=@)")
_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_-]{0,64})(=)\S+")


def looks_secret(name: str) -> bool:
    return bool(_SECRET.search(name))


def without_secrets(text: str) -> str:
    """Redact the password of an address (scheme://user:password@host) and the values of secret names (name=value)."""
    text = _IN_ADDRESS.sub(rf"\1{REDACTED}", text)
    return _ASSIGNED.sub(lambda match: f"{match[1]}={REDACTED}" if looks_secret(match[1]) else match[0], text)


DIRECTIONS = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""Characters that change the writing direction (UAX #9), so that later text appears elsewhere. The string is the inside
of a character class of a regex.
"""


CONTROLS = "\x00-\x1f\x7f-\x9f\u2028\u2029"
"""Characters that move the cursor or end a line. The string is the inside of a character class of a regex."""


_OBEYED = re.compile(f"[\x80-\x9f{DIRECTIONS}]")


_IN_JSON = re.compile(rb"\xc2[\x80-\x9f]|\xd8\x9c|\xe2(?:\x80[\x8e\x8f\xaa-\xae]|\x81[\xa6-\xa9])")
"""Pattern of control characters that terminals obey, in UTF-8 bytes. No other character contains these bytes."""


def encode_text(text: str) -> bytes:
    r"""Encode text as UTF-8; lone surrogates (bytes of a file name that is not UTF-8) become `\udcNN`."""
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode("utf-8", "backslashreplace")


def clean_text(text: str) -> str:
    """Return a text without lone surrogates (bytes of a file name that is not UTF-8), which are replaced as by
    encode_text().
    """
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
