"""A page in a sandboxed frame within a notebook, so that it cannot access the notebook."""

from __future__ import annotations

import html
import io
from collections.abc import Callable
from typing import BinaryIO

from pyprof.exporters.base import ExportOptions
from pyprof.model.profile import Profile

MAX_BYTES = 8 << 20
"""Maximum size in bytes of a page that is shown in a notebook, which stores all its output in its file."""
_HEIGHT = 600


def render_profile(profile: Profile) -> str:
    """Return the HTML of a profile for a notebook (Profile._repr_html_)."""
    from pyprof.exporters.flamegraph import write

    return render_iframe(lambda out: write(profile, out, ExportOptions()), repr(profile))


def render_iframe(writer: Callable[[BinaryIO], None], otherwise: str) -> str:
    """Return a page as an iframe element.

    Args:
        writer: Function that writes the page.
        otherwise: Text to show if the page is too large.
    """
    out = io.BytesIO()
    writer(out)
    page = out.getvalue()
    if len(page) > MAX_BYTES:
        size = f"{len(page) / 1e6:.0f} MB is much for a notebook: save() writes it to a file"
        return f"<pre>{html.escape(otherwise)}</pre><p>The page of {size}.</p>"
    # No allow-same-origin: the page contains names from the target and must not read the notebook.
    return (
        f'<iframe sandbox="allow-scripts allow-downloads" width="100%" height="{_HEIGHT}" '
        f'style="border: 0" srcdoc="{html.escape(page.decode("utf-8"), quote=True)}"></iframe>'
    )
