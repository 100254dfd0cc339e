"""The worker's sandbox: before it parses files, the worker gives up its user, its capabilities and most system calls.

A Sandbox first starts the file broker, which keeps the original rights. confine_process() cannot be undone. Python
reads files when it imports modules, so load() imports everything that the worker needs afterwards.
"""

from __future__ import annotations

import codecs
import importlib
import os
from collections.abc import Sequence
from contextlib import suppress

from pyprof.collectors.linux import libc, process_sandbox
from pyprof.model.arch.syscalls import call_names
from pyprof.objfile import untrusted_file_access
from pyprof.session.worker.file_broker import FileBroker
from pyprof.session.worker.file_broker_client import FileBrokerClient
from pyprof.session.worker.message_channel import Channel
from pyprof.session.worker.worker_process import close_all_but
from pyprof.symbolize import demangle
from pyprof.unwind import module_unwind_sources, native_unwinder

_LATE = (
    "pyprof.collector_control",
    "pyprof.objfile.minidump",
    "pyprof.session.pipeline.interpreter_merge",
    "pyprof.session.pipeline.journal_writer",
    "pyprof.runtime_code.hotspot.thread_names",
    "pyprof.runtime_code.hotspot.java_frames",
    "pyprof.runtime_code.hotspot.stack_words",
    "pyprof.runtime_code.process_code",
    "pyprof.runtime_code.v8.generated_code_reader",
    "pyprof.runtime_code.v8.functions",
    "pyprof.symbolize.name_cache",
    "pyprof.symbolize.go_function_lookup",
    "pyprof.symbolize.source_files",
    "pyprof.unwind.code_analysis.aarch64_code_rules",
    "pyprof.unwind.code_analysis.code_rules",
    "pyprof.unwind.formats.gopclntab",
    *("_blake2", "bz2", "gzip", "lzma", "pycxxfilt", "zlib", "zstandard", "compression.zstd"),
    *("linecache", "numpy.ma", "tokenize", "traceback"),
)
"""Names of modules that the worker's functions import when called, and of modules that Python imports for a
traceback.
"""
_ENCODINGS = ("ascii", "latin-1", "utf-8", "utf-16", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
UNCONFINED = "worker_not_confined"
"""Name of the counter for a worker without a system call filter, because the kernel accepted none."""
SHARED_USER = "worker_user_shared"
"""Name of the counter for a worker that runs as a user which other processes may have, too."""
_CALLS = ("wait4",)
"""System calls that the worker may make in addition to seccomp.ALLOWED: wait4, because the worker waits for the end of
the file broker.
"""


def load() -> None:
    """Import every module and text codec that the confined worker may need later, because it cannot open files then."""
    for name in (*module_unwind_sources.list_reader_modules(), *_LATE):
        with suppress(ImportError):
            importlib.import_module(name)
    for machine in ("i386", "x86_64") if os.uname().machine == "x86_64" else (os.uname().machine,):
        call_names(machine)
    for name in _ENCODINGS:
        codecs.lookup(name)
    native_unwinder.find_library()


class Sandbox:
    """The worker's sandbox and its file broker.

    Attributes:
        keeper: Client of the file broker, which gives profiles to sinks and opens files for a confined worker.
    """

    def __init__(self, notices: Channel, sink_fds: Sequence[int] = ()) -> None:
        """Fork the file broker, before the worker gives up its rights.

        Args:
            notices: The sampler's channel to the file broker. This process closes it.
            sink_fds: File descriptors that sinks write to. Only the file broker keeps them.
        """
        ours, theirs = Channel.pair()
        worker = os.getpid()
        self._pid = os.fork()
        if not self._pid:
            try:
                close_all_but(theirs.fileno(), notices.fileno(), *sink_fds)
                FileBroker(theirs, notices, worker).run()
            finally:
                os._exit(0)
        theirs.close()
        notices.close()
        for fd in sink_fds:
            with suppress(OSError):
                os.close(fd)
        self.keeper = FileBrokerClient(ours)

    def confine(self) -> tuple[str, ...]:
        """Give up all rights of this process that can be given up. From then on the file broker opens files.

        Returns:
            The counters of the restrictions that could not be applied.
        """
        untrusted_file_access.use_opener(self.keeper)
        demangle.use_isolation(self.keeper.demangled)
        code = b""
        with suppress(NotImplementedError):
            code = process_sandbox.build_filter(os.uname().machine, os.getpid(), _CALLS)
        missing = (SHARED_USER,) if process_sandbox.become_unprivileged() == process_sandbox.NOBODY else ()
        libc.drop_capabilities()
        process_sandbox.hide_process()
        try:
            process_sandbox.confine_process(code)
        except OSError:
            return (UNCONFINED, *missing)
        return missing

    def close(self) -> None:
        """End the file broker and wait for it."""
        self.keeper.close()
        with suppress(OSError):
            os.waitpid(self._pid, 0)
