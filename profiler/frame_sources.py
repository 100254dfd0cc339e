"""By what a frame is found: one table for options, help, pages and documentation. A test compares it with all of them.

In: nothing. Out: FRAME_SOURCES. A Trust (model/walk.py) is the number of a row.
"""

from __future__ import annotations

from pyprof.records import dataclass


@dataclass(frozen=True, slots=True)
class FrameSource:
    """name: in every output, that of a Trust in lower case. option: the name for --unwind that allows it, "" where none
    does. words: as pages show it. meaning: one sentence for the documentation, without its full stop.
    """

    name: str
    option: str
    words: str
    meaning: str

    @property
    def described(self) -> str:
        """As help texts name it."""
        return f"{self.name}: {self.words}"


FRAME_SOURCES = (
    FrameSource("context", "", "registers (innermost frame)", "The kernel's registers, of the innermost frame"),
    FrameSource("sframe", "sframe", "SFrame", "The file's `.sframe`"),
    FrameSource("eh_frame", "eh_frame", ".eh_frame", "The file's `.eh_frame`"),
    FrameSource("exidx", "exidx", ".ARM.exidx", "The file's `.ARM.exidx`"),
    FrameSource(
        "debug_frame", "debug_frame", ".debug_frame", "The `.debug_frame` of the file or of its separate debug file"
    ),
    FrameSource("breakpad", "breakpad", "Breakpad file", "A Breakpad symbol file that `--symbols` gave"),
    FrameSource(
        "libunwind_dynamic",
        "libunwind_dynamic",
        "code registered at run time",
        "What the program registered by `_U_dyn_register`",
    ),
    FrameSource("gdb_jit", "gdb_jit", "JIT, debugger interface", "An object file that the program registered for GDB"),
    FrameSource("jitdump", "jitdump", "jitdump", "The unwind tables of a jitdump file"),
    FrameSource("fp", "fp", "frame pointer", "A frame record that the frame pointer leads to"),
    FrameSource("lr", "fp", "link register", "The link register, of a function that has no frame yet or makes none"),
    FrameSource("epilogue", "fp", "instructions up to the return", "The instructions that lead to the frame's return"),
    FrameSource("scan", "scan", "scan (a guess)", "A guess: a word on the stack that may be a return address"),
    FrameSource("sigreturn", "", "signal frame", "The kernel's signal frame, by its known layout"),
    FrameSource(
        "interpreter",
        "",
        "the interpreter's own chain",
        "The interpreter's own chain of frames, at its evaluator's frame",
    ),
    FrameSource("kernel", "", "the kernel", "The kernel's own stack, or the call in which a thread sleeps"),
    FrameSource(
        "completed",
        "",
        "a later whole stack of the same thread",
        "A whole stack of the same thread at another moment: what was read of both was the same",
    ),
)
"""Those with an option of their own name stand in the order in which they are asked."""

FALLBACK, SCAN = "fp", "scan"
"""Options that are no table: the first allows what is done where all tables passed, the second to guess then, too."""


def selectable() -> tuple[FrameSource, ...]:
    """The sources that --unwind names, in the order in which they are asked."""
    return tuple(source for source in FRAME_SOURCES if source.name == source.option)


def option_help() -> str:
    """The sources that --unwind names, each with its words."""
    return "; ".join(source.described for source in selectable())
