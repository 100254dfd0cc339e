"""The expected outputs of the saved recordings as text: readable outputs in full, others as digests."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from pathlib import Path

EXPECTED = Path(__file__).parent / "expected"
READABLE = ("collapsed", "summary")


def page_data(page: bytes) -> bytes:
    """Return the embedded data of a flame graph page: the profile, followed by the samples."""
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
