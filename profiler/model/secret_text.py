"""Redacts passwords and tokens in text, by the names that they have.

The text comes from a target, its variables and its environment. It is untrusted, so the search takes a bounded number
of steps for each character.
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
