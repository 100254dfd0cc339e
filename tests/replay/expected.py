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
    """The data of a flame graph's page, without the page's program: the profile, and after it the samples."""
    found = re.findall(rb'<script type="text/plain" id="(?:profile|samples)">([A-Za-z0-9+/=\s]+)</script>', page)
    assert len(found) == 2, "the page has no data"
    return b"".join(gzip.decompress(base64.b64decode(each)) for each in found)


def as_text(outputs: dict[str, bytes]) -> str:
    parts = []
    for name, data in sorted(outputs.items()):
        if name.endswith(".flamegraph"):
            data = page_data(data)
        readable = name.endswith(READABLE)
        text = data.decode() if readable else f"{len(data)} bytes, {hashlib.sha256(data).hexdigest()}\n"
        parts.append(f"== {name}\n{text.rstrip()}\n")
    return "".join(parts)
