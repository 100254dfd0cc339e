"""A page within a notebook: a frame of its own, which can do nothing to the notebook."""

from __future__ import annotations

import html
import io
from collections.abc import Callable
from typing import BinaryIO

from pyprof.exporters.base import ExportOptions
from pyprof.model.profile import Profile

MOST_BYTES = 8 << 20
"""Of a page: a notebook keeps all that it shows in its file."""
_HEIGHT = 600


def of_profile(profile: Profile) -> str:
    """See Profile._repr_html_."""
    from pyprof.exporters.flamegraph import write

    return framed(lambda out: write(profile, out, ExportOptions()), repr(profile))


def framed(writer: Callable[[BinaryIO], None], otherwise: str) -> str:
    """The page that a writer makes as an element of HTML. otherwise: a text in its place where it is too large."""
    out = io.BytesIO()
    writer(out)
    page = out.getvalue()
    if len(page) > MOST_BYTES:
        size = f"{len(page) / 1e6:.0f} MB is much for a notebook: save() writes it to a file"
        return f"<pre>{html.escape(otherwise)}</pre><p>The page of {size}.</p>"
    # Without allow-same-origin: the page, which is made of foreign names, reads nothing of the notebook's.
    return (
        f'<iframe sandbox="allow-scripts allow-downloads" width="100%" height="{_HEIGHT}" '
        f'style="border: 0" srcdoc="{html.escape(page.decode("utf-8"), quote=True)}"></iframe>'
    )
