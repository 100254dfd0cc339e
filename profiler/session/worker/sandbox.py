"""What the worker gives up before it parses anything: its user, its capabilities, and nearly all system calls.

A Sandbox begins with the keeper, which goes on with the rights there were; confine() is for ever. Python loads modules
when they are first used, and reads files for it: load() loads what the worker will need.
"""

from __future__ import annotations

import codecs
import importlib
import os
from collections.abc import Sequence
from contextlib import suppress

from pyprof.collectors.linux import libc, rights, seccomp
from pyprof.model.call_names import MACHINES, call_names
from pyprof.objfile import opener
from pyprof.session.worker.asking import AskingOpener
from pyprof.session.worker.channel import Channel
from pyprof.session.worker.keeper import Keeper
from pyprof.session.worker.process import close_all_but
from pyprof.symbolize import demangle
from pyprof.unwind import sources

_LATE = (
    "pyprof.handover",
    "pyprof.objfile.minidump.modules",
    "pyprof.session.matched_stacks",
    "pyprof.session.keeping",
    "pyprof.symbolize.settled_frames",
    "pyprof.unwind.formats.exidx.memory",
    *("_blake2", "bz2", "gzip", "lzma", "pycxxfilt", "zlib", "zstandard", "compression.zstd"),
    *("linecache", "tempfile", "tokenize", "traceback"),
)
"""What functions of the worker's modules import, and what Python itself imports for a traceback."""
_ENCODINGS = ("ascii", "latin-1", "utf-8", "utf-16", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
UNCONFINED = "the process that parses is not confined"
"""Counter: the kernel accepted no filter of system calls."""
SHARED_USER = "worker_user_shared"
"""Counter: other processes may have the worker's user."""
_CALLS = ("wait4",)
"""Besides those of seccomp.ALLOWED: the worker waits for the keeper."""


def load() -> None:
    """All that may be imported later."""
    for name in (*sources.modules(), *_LATE):
        with suppress(ImportError):
            importlib.import_module(name)
    for machine in MACHINES:
        call_names(machine)
    for name in _ENCODINGS:
        codecs.lookup(name)


class Sandbox:
    """The worker's side. keeper: who gives profiles to their sink, and opens files for a worker that is confined."""

    def __init__(self, notices: Channel, kept: Sequence[int] = ()) -> None:
        """notices: the sampler's to the keeper, which takes it. kept: descriptors that sinks write to: the keeper's."""
        ours, theirs = Channel.pair()
        worker = os.getpid()
        self._pid = os.fork()
        if not self._pid:
            try:
                close_all_but(theirs.fileno(), notices.fileno(), *kept)
                Keeper(theirs, notices, worker).run()
            finally:
                os._exit(0)
        theirs.close()
        notices.close()
        for fd in kept:
            with suppress(OSError):
                os.close(fd)
        self.keeper = AskingOpener(ours)

    def confine(self) -> tuple[str, ...]:
        """Give up all rights that can be given up. From then on the keeper opens files.

        Returns:
            The counters of what could not be done.
        """
        opener.use(self.keeper)
        demangle.use(self.keeper.demangled)
        code = b""
        with suppress(NotImplementedError):
            code = seccomp.program(os.uname().machine, os.getpid(), _CALLS)
        missing = (SHARED_USER,) if rights.become_unprivileged() == rights.NOBODY else ()
        libc.drop_capabilities()
        rights.hide()
        try:
            seccomp.confine(code)
        except OSError:
            return (UNCONFINED, *missing)
        return missing

    def close(self) -> None:
        """Nothing is asked any more."""
        self.keeper.close()
        with suppress(OSError):
            os.waitpid(self._pid, 0)
