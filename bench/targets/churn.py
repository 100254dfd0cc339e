"""`python churn.py SECONDS`: create and remove processes, threads, libraries and functions all the time.

Each round has a new function, thread, copy of a library and child. All of them are gone when the round ends.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import itertools
import os
import shutil
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path

ROUND_S, WORK_S = 0.25, 0.02
_LIBC = ctypes.CDLL(None)
_BYTES = bytes(1 << 16)


def function(number: int) -> Callable[[], None]:
    """Return a function with a new code object, whose file name is unique."""
    name = f"work_{number}"
    source = f"def {name}():\n    end = clock() + {WORK_S}\n    while clock() < end:\n        sum(range(200))\n"
    names: dict[str, object] = {"clock": time.monotonic}
    exec(compile(source, f"/generated/{name}.py", "exec"), names)
    made = names[name]
    assert isinstance(made, types.FunctionType)
    return made


def in_library(path: Path) -> None:
    """Map a library, run code in it, and unmap it."""
    library = ctypes.CDLL(str(path))
    end = time.monotonic() + WORK_S
    while time.monotonic() < end:
        library.crc32(0, _BYTES, len(_BYTES))
    _LIBC.dlclose(ctypes.c_void_p(library._handle))


def libz() -> Path:
    ctypes.CDLL(ctypes.util.find_library("z"))
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(Path(line.split()[-1]) for line in lines if "/libz.so" in line)


def one_round(number: int, original: Path, folder: Path) -> None:
    work, path = function(number), folder / f"library{number}.so"
    shutil.copy(original, path)
    child = os.fork()
    if not child:
        work()
        in_library(path)
        os._exit(0)
    thread = threading.Thread(target=work, name=f"thread {number}")
    thread.start()
    in_library(path)
    thread.join()
    os.waitpid(child, 0)
    path.unlink()


def main() -> None:
    end = time.monotonic() + float(sys.argv[1])
    original = libz()
    rounds = 0
    with tempfile.TemporaryDirectory() as folder:
        for number in itertools.count(1):
            began = time.monotonic()
            if began > end:
                break
            one_round(number, original, Path(folder))
            rounds = number
            time.sleep(max(began + ROUND_S - time.monotonic(), 0))
    print(f'{{"work": {rounds}, "gaps_10ns": []}}', flush=True)


if __name__ == "__main__":
    main()
