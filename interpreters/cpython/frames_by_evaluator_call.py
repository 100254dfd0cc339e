"""Grouping of copied frames into runs: the frames of one evaluator call, with its marker on the C stack.

In 3.12 and later a run ends at an entry frame on the evaluator's own C stack, which is its marker. In 3.11 a run ends
at a frame with is_entry; its marker is the CFrame that names its innermost frame. In 3.10 each frame is an evaluator
call with a separate CFrame. In 3.8 and 3.9 each frame is an evaluator call without a marker.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyprof.interpreters.cpython.code_objects import CodeReader
from pyprof.interpreters.cpython.frame_copier import ENTRY_OWNER
from pyprof.interpreters.cpython.layout import NONE, ChainKind, Layout
from pyprof.interpreters.cpython.thread_snapshot import Copied
from pyprof.lazy_dataclasses import replace
from pyprof.model.interpreter_frames import FunctionPlace, Run

_LACKS_MARKER = "an activation of the evaluator has no mark on the C stack"


class RunReader:
    """A decoder of the copied Python frames of one process, which groups them into runs: the frames of one evaluator
    call.
    """

    def __init__(self, layout: Layout, codes: CodeReader) -> None:
        frame = layout.frame
        self._chain = layout.chain
        self._codes = codes
        self._code = frame.code >> 3
        self._mask = frame.code_mask
        self._instr, self._instr_shift = frame.instr >> 3, 8 * (frame.instr & 7)
        self._instr_mask = 2**64 - 1 if layout.code.bytecode != NONE else 2**32 - 1
        flag = frame.is_entry if frame.is_entry != NONE else frame.owner
        self._flag, self._flag_shift = flag >> 3, 8 * (flag & 7)
        self._tlbc, self._tlbc_shift = frame.tlbc_index >> 3, 8 * (frame.tlbc_index & 7)

    def cache_key(self, copied: Copied) -> tuple[int, ...]:
        """Return a key for the copied frames of a thread: two copies with equal keys, and equal heads of code objects,
        give the same result of read_runs().
        """
        code, instr, flag, shift = self._code, self._instr, self._flag, self._flag_shift
        tlbc = self._tlbc if self._tlbc >= 0 else code
        return tuple(
            [
                part
                for words, at, avma in copied.frames
                for part in (
                    avma,
                    words[at + code],
                    words[at + instr],
                    words[at + flag] >> shift & 0xFF,
                    words[at + tlbc],
                )
            ]
        )

    def read_runs(self, copied: Copied) -> list[Run]:
        """Group the copied Python frames of a thread into runs, one for each evaluator call, innermost first. If the
        runs cannot be separated, set `copied.problem` to a text that says so.
        """
        if self._chain is ChainKind.SHIMS:
            runs = list(self._by_shims(copied))
        elif self._chain is ChainKind.ENTRIES:
            runs = list(self._by_entries(copied))
        else:
            runs = list(self._by_frames(copied))
        waiting = copied.waiting
        return [replace(run, waits=True) if run.marker in waiting else run for run in runs] if waiting else runs

    def is_shim(self, words: memoryview, at: int) -> bool:
        """Return True if a copied Python frame is an entry frame, which runs no code."""
        owner: int = words[at + self._flag] >> self._flag_shift & 0xFF
        return self._chain is ChainKind.SHIMS and owner >= ENTRY_OWNER

    def _by_shims(self, copied: Copied) -> Iterator[Run]:
        run: list[FunctionPlace] = []
        begun, last = False, 0
        flag, shift = self._flag, self._flag_shift
        for (words, at, avma), place in zip(copied.frames, self._places(copied), strict=True):
            if words[at + flag] >> shift & 0xFF >= ENTRY_OWNER:
                copied.outermost.append(last)
                yield Run(avma, tuple(run))
                run, begun, last = [], False, 0
                continue
            begun, last = True, avma
            if place is not None:
                run.append(place)
        if begun:
            if not copied.cut:
                copied.problem = copied.problem or _LACKS_MARKER
            yield Run(0, tuple(run))

    def _by_entries(self, copied: Copied) -> Iterator[Run]:
        flag, shift = self._flag, self._flag_shift
        stands = [(cframe, frame) for cframe, frame in copied.stands if frame]
        run: list[FunctionPlace] = []
        innermost = 0
        for (words, at, avma), place in zip(copied.frames, self._places(copied), strict=True):
            innermost = innermost or avma
            if place is not None:
                run.append(place)
            if words[at + flag] >> shift & 0xFF:
                yield Run(self._stand(copied, stands, innermost), tuple(run))
                run, innermost = [], 0
        if innermost:
            if not copied.cut:
                copied.problem = copied.problem or _LACKS_MARKER
            yield Run(self._stand(copied, stands, innermost), tuple(run))

    def _places(self, copied: Copied) -> list[FunctionPlace | None]:
        """Decode all copied Python frames, and return them in the same order, with None for entry frames. Equal frames
        are decoded once, because a recursion has many frames of few functions.
        """
        code, instr, shims = self._code, self._instr, self._chain is ChainKind.SHIMS
        tlbc = self._tlbc if self._tlbc >= 0 else code
        flag, shift = self._flag, self._flag_shift
        known: dict[tuple[int, int, int], FunctionPlace | None] = {}
        found: list[FunctionPlace | None] = []
        for words, at, _ in copied.frames:
            key = words[at + code], words[at + instr], words[at + tlbc]
            if key not in known:
                entry = shims and words[at + flag] >> shift & 0xFF >= ENTRY_OWNER
                known[key] = None if entry else self.read_frame(copied, words, at)
            found.append(known[key])
        return found

    def _stand(self, copied: Copied, stands: list[tuple[int, int]], innermost: int) -> int:
        """Return the CFrame of the evaluator call with a given innermost Python frame, 0 if there is none.

        The CFrame, and all CFrames inside of it, are removed from the list `stands` of (CFrame, Python frame that it
        names).
        """
        for at, (cframe, frame) in enumerate(stands):
            if frame == innermost:
                del stands[: at + 1]
                return cframe
        copied.problem = copied.problem or _LACKS_MARKER
        return 0

    def _by_frames(self, copied: Copied) -> Iterator[Run]:
        marks = [cframe for cframe, _ in copied.stands]
        count = len(copied.frames)
        if self._chain is ChainKind.CFRAMES and len(marks) < count - 1:
            copied.problem = copied.problem or _LACKS_MARKER
        # An evaluator enters its CFrame into the chain before its frame, and takes it out before its frame.
        skip = len(marks) - count if marks else 0
        copied.marks = tuple(marks) if skip > 0 else ()
        for n, place in enumerate(self._places(copied)):
            marker = marks[skip + n] if 0 <= skip + n < len(marks) else 0
            yield Run(marker, () if place is None else (place,))

    def read_frame(self, copied: Copied, words: memoryview, at: int) -> FunctionPlace | None:
        """Decode one copied Python frame; return None if it belongs to the interpreter itself."""
        code = words[at + self._code] & self._mask
        instr = words[at + self._instr] >> self._instr_shift & self._instr_mask
        tlbc = words[at + self._tlbc] >> self._tlbc_shift & 0xFFFFFFFF if self._tlbc >= 0 else 0
        return self._codes.find_place(code, bytes(copied.codes.get(code, b"")), instr, tlbc)


def sort_runs(runs: list[Run]) -> list[Run]:
    """Sort runs of Python frames (one per evaluator call) by C stack marker, innermost first. A thread may run several
    interpreters inside one another.

    A run has no marker if the frames of its interpreter were not read to the end. It stays behind its predecessor.
    """
    marks: list[int] = []
    for run in runs:
        marks.append(run.marker or (marks[-1] if marks else 0))
    return [run for _, run in sorted(zip(marks, runs, strict=True), key=lambda pair: pair[0])]
