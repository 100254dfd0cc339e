"""What runs a command: the program itself, or the one that the first line of a script names.

A guess before it begins: what it turns out to be is looked at when it runs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

from pyprof.errors import FormatError
from pyprof.objfile.source import open_regular

_LONGEST = 256
"""Bytes of a first line that the kernel looks at."""
_MOST = 4


def run_by(path: str) -> Iterator[str]:
    """Paths: the file, then what its first line names, and so on; what env(1) is asked for, too."""
    for _ in range(_MOST):
        yield path
        words = _first_line(path)
        if words and os.path.basename(words[0]) == "env":
            words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
            words = [found for word in words[:1] if (found := shutil.which(word))]
        if not words:
            return
        path = words[0]


def _first_line(path: str) -> list[str]:
    """The words behind #!, [] where there are none."""
    try:
        with open(open_regular(path), "rb") as file:
            head = file.read(_LONGEST)
    except (OSError, FormatError):
        return []
    return os.fsdecode(head.partition(b"\n")[0][2:]).split() if head.startswith(b"#!") else []
