"""PyPI packages for the interpreters of the tests, each downloaded once into a separate folder."""

from __future__ import annotations

import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp

from tests.roots import CACHE
from tests.support import missing


def from_pypi(minor: int, *names: str, options: tuple[str, ...] = ()) -> Path:
    """Return a folder from which CPython 3.minor can import these packages. The folder appears atomically.

    Args:
        minor: Minor version of CPython.
        names: Names of the packages.
        options: Options of pip.
    """
    for_python = ("--only-binary", ":all:", "--implementation", "cp", "--python-version", f"3.{minor}")
    wanted = [*for_python, *options, *names]
    digest = sha256("\0".join(wanted).encode()).hexdigest()[:8]
    folder = CACHE / "packages" / f"{'-'.join(names)}-3.{minor}-{digest}"
    if not folder.exists():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            coming = Path(mkdtemp(dir=folder.parent, prefix="coming-"))
        except OSError as error:
            missing(f"needs {', '.join(names)} from PyPI: {error}")
        # the modules would be compiled for the interpreter of the tests, not for the one that imports them
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--target", str(coming), *wanted]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        if done.returncode:
            missing(f"needs {', '.join(names)} from PyPI: {done.stderr[-300:]}")
        try:
            coming.rename(folder)
        except OSError:  # another test run has created the folder
            assert folder.exists()
    return folder
