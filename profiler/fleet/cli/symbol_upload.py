"""`pyprof symbols --upload`: send a Breakpad symbol file to a pyprof server, which then names code of its build ID."""

from __future__ import annotations

import gzip
import io
import re
from collections.abc import Callable
from typing import IO

from pyprof.errors import OutputError
from pyprof.fleet.wire.push_client import Credentials, Endpoint, HttpClient
from pyprof.fleet.wire.push_responses import NotSent, RefusedForGood

_MAX_HEADER_BYTES = 1 << 12
"""Number of bytes at the beginning of a symbol file in which its build ID is searched."""
_TIMEOUT_S = 300.0


def upload(url: str, token_file: str, write: Callable[[IO[bytes]], None]) -> None:
    """Upload a Breakpad symbol file to a pyprof server.

    Args:
        write: Writes the text of the symbol file.

    Raises:
        OutputError: The file has no build ID, or the server did not accept it.
    """
    text = io.BytesIO()
    write(text)
    build_id = re.search(rb"^INFO CODE_ID ([0-9A-F]+)$", text.getvalue()[:_MAX_HEADER_BYTES], re.MULTILINE)
    if build_id is None:
        raise OutputError("a symbol file without a build-id cannot be uploaded", "link it with --build-id")
    client = HttpClient(Endpoint(url.rstrip("/"), Credentials(token_file), timeout_s=_TIMEOUT_S))
    kind = {"Content-Type": "application/octet-stream"}
    try:
        client.post(f"/api/v1/symbols/{build_id[1].decode().lower()}", gzip.compress(text.getvalue(), 6), kind)
    except (NotSent, RefusedForGood) as error:
        raise OutputError(f"{url} refused it: {error}", "docs/server.md has its refusals") from None
