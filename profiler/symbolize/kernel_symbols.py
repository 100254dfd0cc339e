"""Names of kernel functions, from /proc/kallsyms, and of the system calls in which threads are blocked."""

from __future__ import annotations

from bisect import bisect_right

from pyprof.model.arch import ARCHES
from pyprof.model.arch.syscalls import call_names
from pyprof.model.loss_reason_texts import problem_counted
from pyprof.model.marker_frames import NOT_ONE_BY_ONE, Blocked, KernelFrame
from pyprof.objfile.untrusted_file_access import current_opener
from pyprof.problem_counters import Diagnostics

_ARCHES = {arch.name: arch for arch in ARCHES.values()}
_CODE = b"tTwW"
_MAX_SYMBOL_LIST_BYTES = 1 << 28
_STATES = {
    "S": "sleeping",
    "D": "uninterruptible sleep",
    "T": "stopped",
    "t": "stopped by a debugger",
    "I": "idle",
    "R": "woken",
    "P": "waiting for a processor",
}
HIDDEN = "kernel_addresses_hidden"


class KernelNames:
    """Names of kernel frames. The list of kernel symbols is read when it is first needed."""

    def __init__(self, diagnostics: Diagnostics, path: str = "") -> None:
        """Create a lookup of kernel names.

        Args:
            diagnostics: Counts a list without addresses, which the kernel has hidden.
            path: Path of a list of kernel symbols, "" for that of this machine.
        """
        self._diagnostics = diagnostics
        self._path = path
        self._starts: list[int] | None = None
        self._names: list[str] = []

    def frame_title(self, frame: KernelFrame) -> str:
        if isinstance(frame, Blocked):
            return _blocked_title(frame)
        name, offset = self._find(frame)
        return name or f"[kernel]+{offset:#x}"

    def _find(self, address: int) -> tuple[str, int]:
        if self._starts is None:
            self._starts = self._read()
        at = bisect_right(self._starts, address) - 1
        return (self._names[at], address - self._starts[at]) if at >= 0 else ("", address)

    def _read(self) -> list[int]:
        """Read the list of kernel symbols. Return the start addresses of the functions, ascending, and store their
        names in the same order.

        Of several names with one start, the last is used.
        """
        try:
            with open(self._path, "rb") if self._path else open(current_opener().open_kernel_symbols(), "rb") as file:
                text = file.read(_MAX_SYMBOL_LIST_BYTES)
        except OSError:
            text = b""
        found: dict[int, str] = {}
        for line in text.split(b"\n"):
            words = line.split()
            if len(words) >= 3 and words[1] in _CODE:
                try:
                    start = int(words[0], 16)
                except ValueError:
                    continue
                if start:
                    name = words[2].decode("utf-8", "replace")
                    found[start] = f"{name} {words[3].decode('utf-8', 'replace')}" if len(words) > 3 else name
        if not found:
            self._diagnostics.count(HIDDEN)
            self._diagnostics.problem("[kernel]", problem_counted(HIDDEN))
        starts = sorted(found)
        self._names = [found[start] for start in starts]
        return starts


def _blocked_title(blocked: Blocked) -> str:
    state = _STATES.get(blocked.state, "blocked")
    if blocked.call == NOT_ONE_BY_ONE:
        return f"[{state}: waits too short or too many for stacks]"
    if blocked.call < 0:
        return f"[{state}]"
    known = _ARCHES[blocked.arch].kernel.call_names.get(blocked.call) or call_names(blocked.arch).get(blocked.call)
    return f"[{state}: {known or f'system call {blocked.call}'}]"
