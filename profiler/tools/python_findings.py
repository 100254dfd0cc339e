"""What `pyprof doctor` says of the CPython in a process."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

from pyprof.collectors.linux import procfs
from pyprof.collectors.targets.attach import Finding
from pyprof.diagnostics import Diagnostics
from pyprof.errors import FormatError
from pyprof.objfile.images import ImageStore
from pyprof.session.runtimes import Runtimes, perf_trampoline

_FIRST_TRAMPOLINE, _FIRST_REMOTE_EXEC = 12, 14


def python_findings(pid: int) -> Iterator[Finding]:
    """Nothing where no CPython runs."""
    diagnostics = Diagnostics()
    runtimes = Runtimes(ImageStore(diagnostics), diagnostics)
    try:
        process = runtimes.looked_at(pid)
    except (OSError, FormatError):
        return
    if process.refusal:
        yield Finding(False, f"{process.refusal}: its stacks are native only")
    if process.runtime is None:
        return
    layout = process.runtime.layout
    threads = sum(bool(process.thread_states(tid)) for tid in procfs.tasks(pid))
    yield Finding(
        True, f"it runs CPython {layout.version} in {process.runtime.located.module.path}, {threads} Python threads"
    )
    if perf_trampoline(pid):
        yield Finding(True, "its perf trampoline is on: --collector perf names Python functions without a stop")
    elif layout.minor >= _FIRST_TRAMPOLINE:
        yield Finding(True, "its perf trampoline is off: Python frames are copied in stops", _remedy(pid, layout.minor))


def _remedy(pid: int, minor: int) -> str:
    """How the user may switch the trampoline on; both change the target, so that we do neither."""
    if minor < _FIRST_REMOTE_EXEC or not _shares_folder(pid, tempfile.gettempdir()):
        return "for samples without stops start it with: python -X perf"
    return (
        "for samples without stops: f=$(mktemp) && chmod 644 $f && "
        "echo 'import sys; sys.activate_stack_trampoline(\"perf\")' > $f && "
        f"python3.{minor} -c 'import sys; sys.remote_exec({pid}, sys.argv[1])' $f"
    )


def _shares_folder(pid: int, folder: str) -> bool:
    """Is it the same folder for the process and for us (not in a container, no private /tmp)?"""
    try:
        return os.path.samestat(os.stat(f"/proc/{pid}/root{folder}"), os.stat(folder))
    except OSError:
        return False
