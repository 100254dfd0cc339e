"""Interpreter frames of a sampled thread (Chain, Run, FunctionPlace), and its interpreter's state (SampleState)."""

from __future__ import annotations

from enum import IntFlag
from typing import NamedTuple

from pyprof.lazy_dataclasses import dataclass, replace


class SampleState(IntFlag):
    """Flags of a sample: how it was taken, what its interpreter did, and why interpreter frames are missing."""

    INTERPRETED = 1  # the thread belongs to an interpreter
    HOLDS_LOCK = 2  # it holds the interpreter's global lock
    COLLECTING = 4  # it runs the garbage collector
    NATIVE_CUT = 8  # a run of interpreter frames lies beyond the end of a truncated native stack
    NO_PLACE = 16  # a run's marker lies in no unwound frame
    NO_MARKER = 32  # a run has no marker
    NO_RUN = 64  # an evaluator call has no run
    BROKEN_CHAIN = 128  # the interpreter's own chain could not be read to its end
    LONG_CHAIN = 256  # the chain is longer than the maximum that is copied
    STOPPED = 512  # the thread was stopped for the sample; without any of these three flags the kernel took it
    ASLEEP = 1024  # the thread slept and its stack was read without a stop
    UNCHANGED = 2048  # the thread had not run since its last sample, whose stack is used again


PARTIAL: dict[SampleState, str] = {
    SampleState.NATIVE_CUT: "python_frames_beyond_stack",
    SampleState.NO_PLACE: "python_frames_without_place",
    SampleState.NO_MARKER: "python_frames_without_marker",
    SampleState.NO_RUN: "evaluator_without_frames",
    SampleState.BROKEN_CHAIN: "python_frame_chain_broken",
    SampleState.LONG_CHAIN: "python_frame_chain_too_long",
}
"""Names of the counters for interpreter frames that could not be merged completely with the native frames, by the flag
of the sample.
"""


class FunctionPlace(NamedTuple):
    """A function of an interpreter, and the place in it that a frame executes.

    Attributes:
        function: Number of its function in the recording.
        instruction: Position in the function's code, in the units of its line table; -1 if the function has not begun.
    """

    function: int
    instruction: int = -1


@dataclass(frozen=True, slots=True)
class Run:
    """The interpreter frames that one call of the evaluator (the interpreter's main loop) executes, innermost first.

    Attributes:
        marker: An address on the evaluator call's C stack, 0 if this version of the interpreter keeps none.
        frames: The frames.
        waits: True if the thread's chain of frames does not contain this evaluator call, so that it was found on the C
            stack.
    """

    marker: int
    frames: tuple[FunctionPlace, ...]
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Chain:
    """The interpreter frames of one thread, grouped by calls of the evaluator (the interpreter's main loop).

    Attributes:
        runs: The runs, innermost first.
        state: Facts about the sample.
        problem: Why frames may be missing, "" if the chain is complete.
        evaluators: Start addresses of the evaluator's parts that symbols name.
        marked: True if this version of the interpreter keeps a marker (an address on the C stack) for each evaluator
            call.
        marks: All markers, innermost first, if it is unknown to which run each belongs.
        others: True if the C stack may hold evaluator calls outside the chain (those of other greenlets).
        lacking: Approximate number of outermost frames that are missing because of the limit on copied frames.
        enough: Value of --stack-size that would copy all frames, in bytes; 0 if none would.
        scattered: True if no --stack-size would copy all frames, because each frame is a separate read.
        number: Unique number in this process, 0 if it has none. A numbered chain is sent between processes only once.
        trunk: Chains with the same trunk differ only in the instruction of their innermost frame; 0 if it has none.
    """

    runs: tuple[Run, ...]
    state: SampleState
    problem: str
    evaluators: tuple[int, ...]
    marked: bool
    marks: tuple[int, ...] = ()
    others: bool = False
    lacking: int = 0
    enough: int = 0
    scattered: bool = False
    number: int = 0
    trunk: int = 0

    @property
    def innermost(self) -> FunctionPlace:
        """The innermost interpreter frame of this non-empty chain. It is used only for chains with a `trunk`, which
        differ from each other in this frame alone.
        """
        return self.runs[0].frames[0]

    def at(self, instruction: int, number: int) -> Chain:
        """Return a copy of this chain whose innermost frame is at another instruction.

        Args:
            instruction: The instruction.
            number: Unique number of the copy in this process, 0 for none.
        """
        run = self.runs[0]
        frames = (FunctionPlace(run.frames[0].function, instruction), *run.frames[1:])
        return replace(self, runs=(Run(run.marker, frames, run.waits), *self.runs[1:]), number=number)
