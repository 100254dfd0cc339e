"""A reason for which something is lost, skipped, cut short or refused, as a value. All of them: reason_table.py."""

from __future__ import annotations

from enum import Enum

from pyprof.records import dataclass


class Stage(Enum):
    """Where on the way of the data it happens."""

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
    """sentence: what it means. retry: what makes it go away the next time, "" if nothing is known to.

    lacks: what the profile lacks for a counter, as in "3 samples lost", "" if nothing that matters; {s} is the plural's
    s, `*` what it stands for at the end of the name. words: of how a stack ended, its label for people; cuts: such a
    stack is cut short.
    """

    name: str
    stage: Stage
    sentence: str
    retry: str = ""
    lacks: str = ""
    words: str = ""
    cuts: bool = False

    @property
    def title(self) -> str:
        """What is said of stacks that ended so, in every output."""
        return f"cut short: {self.words}" if self.cuts else self.words

    @property
    def meaning(self) -> str:
        """The sentence, and what helps."""
        return f"{self.sentence} What helps: {self.retry}." if self.retry else self.sentence
