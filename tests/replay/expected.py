"""What the saved recordings gave, as one text each: readable outputs in full, the others by their digest."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from pathlib import Path

EXPECTED = Path(__file__).parent / "expected"
READABLE = ("collapsed", "summary")


def page_data(page: bytes) -> bytes:
    """The data of a flame graph's page, without the page's program."""
    found = re.search(rb'<script type="text/plain" id="profile">([A-Za-z0-9+/=\s]+)</script>', page)
    assert found, "the page has no data"
    return gzip.decompress(base64.b64decode(found[1]))


def as_text(outputs: dict[str, bytes]) -> str:
    parts = []
    for name, data in sorted(outputs.items()):
        if name.endswith(".flamegraph"):
            data = page_data(data)
        readable = name.endswith(READABLE)
        text = data.decode() if readable else f"{len(data)} bytes, {hashlib.sha256(data).hexdigest()}\n"
        parts.append(f"== {name}\n{text.rstrip()}\n")
    return "".join(parts)
