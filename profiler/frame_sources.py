"""The table of frame sources: how the unwinder found a frame. Options, help texts, pages and documentation use it.

The number of a row is a Trust (model/walk.py).
"""

from __future__ import annotations

from pyprof.records import dataclass


@dataclass(frozen=True, slots=True)
class FrameSource:
    """A way in which the unwinder finds a frame.

    Attributes:
        name: Name in all outputs, a Trust in lower case.
        option: Name for --unwind that enables it, "" if there is none.
        words: Text on pages.
        meaning: One sentence for the documentation, without its full stop.
    """

    name: str
    option: str
    words: str
    meaning: str

    @property
    def described(self) -> str:
        """Return name and description of the source for help messages."""
        return f"{self.name}: {self.words}"


FRAME_SOURCES = (
    FrameSource("context", "", "registers (innermost frame)", "The kernel's registers, of the innermost frame"),
    FrameSource("sframe", "sframe", "SFrame", "The file's `.sframe`"),
    FrameSource("eh_frame", "eh_frame", ".eh_frame", "The file's `.eh_frame`"),
    FrameSource("exidx", "exidx", ".ARM.exidx", "The file's `.ARM.exidx`"),
    FrameSource("go", "go", "Go's function table", "The `.gopclntab` of a Go program, stripped or not"),
    FrameSource(
        "debug_frame", "debug_frame", ".debug_frame", "The `.debug_frame` of the file or of its separate debug file"
    ),
    FrameSource("breakpad", "breakpad", "Breakpad file", "A Breakpad symbol file that `--symbols` gave"),
    FrameSource(
        "libunwind_dynamic",
        "libunwind_dynamic",
        "code registered with libunwind",
        "What the program registered by `_U_dyn_register`",
    ),
    FrameSource(
        "gdb_jit", "gdb_jit", "JIT code registered for GDB", "An object file that the program registered for GDB"
    ),
    FrameSource(
        "hotspot",
        "hotspot",
        "Java code (HotSpot)",
        "What HotSpot states about its code: the size of a compiled frame, the links of an interpreter frame",
    ),
    FrameSource("v8", "v8", "JavaScript code (V8)", "The begin and the end of the frames of V8's code"),
    FrameSource("jitdump", "jitdump", "jitdump file", "The unwind tables of a jitdump file"),
    FrameSource(
        "code",
        "code",
        "the function's code",
        "What the instructions on all paths of a function do to the stack pointer",
    ),
    FrameSource("fp", "fp", "frame pointer", "A frame record that the frame pointer leads to"),
    FrameSource("lr", "fp", "link register", "The link register, of a function that has no frame yet or makes none"),
    FrameSource("epilogue", "fp", "instructions up to the return", "The instructions that lead to the frame's return"),
    FrameSource(
        "scan", "scan", "a guess: a word on the stack", "A guess: a word on the stack that may be a return address"
    ),
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
"""All frame sources. Those whose option equals their name are in the order in which the unwinder tries them."""

CODE, FALLBACK, SCAN = "code", "fp", "scan"
"""Values of --unwind that are no unwind table: CODE is tried after all tables, then FALLBACK. SCAN enables a guess
after that.
"""


def selectable() -> tuple[FrameSource, ...]:
    """Return the frame sources for --unwind in the order in which the unwinder tries them."""
    return tuple(source for source in FRAME_SOURCES if source.name == source.option)
