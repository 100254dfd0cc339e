"""A small tmpfs file system for tests of full disks, which needs root."""

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
    """Mount a tmpfs.

    Args:
        place: The mount point, which is created.
        size: Size as mount(8) takes it, for example "128k".
    """
    place.mkdir()
    subprocess.run(
        [need("mount"), "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", str(place)], check=True, timeout=60
    )
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True, timeout=60)


def fill(disk: Path) -> None:
    """Fill the disk with another file."""
    with pytest.raises(OSError, match="No space left"):
        (disk / "others").write_bytes(bytes(1 << 20))
