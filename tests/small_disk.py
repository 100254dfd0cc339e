"""A file system of its own that has room for little: a tmpfs. Needs root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import need

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a file system of its own")


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """size: as mount takes it, "128k"."""
    place.mkdir()
    subprocess.run(
        [need("mount"), "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", str(place)], check=True, timeout=60
    )
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True, timeout=60)


def fill(disk: Path) -> None:
    """Somebody else's file takes what is left."""
    with pytest.raises(OSError, match="No space left"):
        (disk / "others").write_bytes(bytes(1 << 20))
