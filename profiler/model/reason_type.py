"""A reason why something is lost, skipped, truncated or refused, as a value. loss_reason_table.py has all of them."""

from __future__ import annotations

from enum import Enum

from pyprof.lazy_dataclasses import dataclass


class Stage(Enum):
    """The stage of the way from the target to the output at which something is lost or refused."""

    OPTIONS = "options"
    TARGET = "target"
    SAMPLING = "sampling"
    FILES = "files"
    TABLES = "unwind tables"
    STACKS = "stacks"
    RUN_TIME_CODE = "run-time code"
    INTERPRETER = "interpreter"
    OUTPUT = "output"
    SPOOL = "spool"
    SERVER = "server"
    PUSH = "push"
    AGENT = "agent"


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason why something is lost or refused, with its texts for users.

    Attributes:
        name: Stable identifier of the reason, in snake_case. A counter may have a detail behind it: `name:detail`.
        stage: The stage at which it happens.
        sentence: What it means.
        hint: An action or a command that avoids it next time, "" if nothing is known.
        lacks: What the profile lacks for a counter, as in "3 samples lost", "" if nothing important. {s} is the
            plural's s; `*` is the counter's detail.
        title: Short text for a counter, where `*` is its detail, or for the end of a stack.
        cuts: True if a stack that ends for this reason is truncated.
    """

    name: str
    stage: Stage
    sentence: str
    hint: str = ""
    lacks: str = ""
    title: str = ""
    cuts: bool = False

    @property
    def end_title(self) -> str:
        """The text that all outputs show for stacks which ended for this reason."""
        return f"cut short: {self.title}" if self.cuts else self.title

    @property
    def meaning(self) -> str:
        """One text with the meaning of the reason and the hint."""
        return f"{self.sentence} Hint: {self.hint}." if self.hint else self.sentence
