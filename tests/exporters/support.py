"""Helpers for the exporters' tests."""

from __future__ import annotations

from io import BytesIO

from pyprof.exporters.base import ExportOptions
from pyprof.exporters.registry import find_format
from pyprof.model.profile import Profile

THREADS = ExportOptions(threads=True)
PROCESSES = ExportOptions(processes=True)
PLAIN = ExportOptions()


def export(name: str, profile: Profile, options: ExportOptions = PLAIN) -> bytes:
    out = BytesIO()
    find_format(name).write(profile, out, options)
    return out.getvalue()
