"""What was fuzzed so far: kept in a file beside the corpus, from run to run."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

LONGEST_S = 60
"""Of one turn of a reader."""
HEAD = f"{'reader':16}{'minutes':>9}{'inputs':>14}{'edges':>7}{'last new at':>13}{'failed':>8}"


@dataclass(frozen=True)
class Fuzzed:
    """Of one reader. processor_s: in all turns. edges: of the code, which the corpus reaches; of instrumented code, so
    they change with it. grew_at_s: processor_s of the last turn that reached a new one. failed: turns that ended so.
    """

    processor_s: float = 0.0
    inputs: int = 0
    edges: int = 0
    grew_at_s: float = 0.0
    failed: int = 0

    def after(self, processor_s: float, inputs: int, edges: int, held: bool) -> Fuzzed:
        """With one more turn. Fewer edges than before: the reader has become another, and its growth begins anew."""
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
    """Of several runs in one folder at a time one changes the file."""
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
    return min(max(seconds // readers, 1), LONGEST_S)


def turns(seconds: int, readers: int) -> int:
    """At least one for each reader."""
    return max(seconds // turn_s(seconds, readers), readers)


def next_of(ledger: Ledger, names: Sequence[str]) -> str:
    """The reader that has had the least; of several the first."""
    return min(names, key=lambda name: ledger.get(name, Fuzzed()).processor_s)


def table(ledger: Ledger, names: Sequence[str]) -> Iterator[str]:
    yield HEAD
    for name in names:
        each = ledger.get(name, Fuzzed())
        minutes = f"{each.processor_s / 60:9.1f}{each.inputs:14,}{each.edges:7,}{each.grew_at_s / 60:11.1f} m"
        yield f"{name:16}{minutes}{each.failed or '':>8}"
