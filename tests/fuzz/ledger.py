"""A ledger of all fuzzing runs, stored in a file next to the corpus."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

MAX_S = 60
"""Maximum duration of a reader's turn in seconds."""
HEAD = f"{'reader':16}{'minutes':>9}{'inputs':>14}{'edges':>7}{'last new at':>13}{'failed':>8}"


@dataclass(frozen=True)
class Fuzzed:
    """The totals of one reader.

    Attributes:
        processor_s: Processor time of all turns in seconds.
        inputs: Number of inputs.
        edges: Number of code edges that the corpus reaches. A change of the reader's code changes it.
        grew_at_s: Value of processor_s after the last turn that reached a new edge.
        failed: Number of turns that ended with a failure.
    """

    processor_s: float = 0.0
    inputs: int = 0
    edges: int = 0
    grew_at_s: float = 0.0
    failed: int = 0

    def after(self, processor_s: float, inputs: int, edges: int, held: bool) -> Fuzzed:
        """Return the totals with one more turn.

        Fewer edges than before mean that the reader's code has changed, which restarts its growth.
        """
        spent = self.processor_s + processor_s
        grew = spent if edges != self.edges else self.grew_at_s
        return Fuzzed(spent, self.inputs + inputs, edges or self.edges, grew, self.failed + (not held))


Ledger = dict[str, Fuzzed]


def load(folder: Path) -> Ledger:
    try:
        kept = json.loads((folder / "ledger.json").read_text())
    except FileNotFoundError:
        return {}
    return {name: Fuzzed(**numbers) for name, numbers in kept.items()}


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Lock the ledger, because several runs may use one folder."""
    with open(folder / "ledger.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def add(folder: Path, name: str, processor_s: float, inputs: int, edges: int, lasted: bool) -> None:
    with held(folder):
        ledger = load(folder)
        ledger[name] = ledger.get(name, Fuzzed()).after(processor_s, inputs, edges, lasted)
        kept = {each: asdict(fuzzed) for each, fuzzed in sorted(ledger.items())}
        (folder / "ledger.new").write_text(json.dumps(kept, indent=1))
        os.replace(folder / "ledger.new", folder / "ledger.json")


def turn_s(seconds: int, readers: int) -> int:
    return min(max(seconds // readers, 1), MAX_S)


def turns(seconds: int, readers: int) -> int:
    """Return the number of turns, at least one for each reader."""
    return max(seconds // turn_s(seconds, readers), readers)


def next_of(ledger: Ledger, names: Sequence[str]) -> str:
    """Return the reader with the least processor time, or the first of several."""
    return min(names, key=lambda name: ledger.get(name, Fuzzed()).processor_s)


def table(ledger: Ledger, names: Sequence[str]) -> Iterator[str]:
    yield HEAD
    for name in names:
        each = ledger.get(name, Fuzzed())
        minutes = f"{each.processor_s / 60:9.1f}{each.inputs:14,}{each.edges:7,}{each.grew_at_s / 60:11.1f} m"
        yield f"{name:16}{minutes}{each.failed or '':>8}"
