"""The processes of one collector, as the collector asks for them: those that the rules give it, now and later."""

from __future__ import annotations

from collections.abc import Container, Iterable

from pyprof.agent.processes import ProcessTable
from pyprof.agent.settings import SamplingChoice
from pyprof.collectors.targets import attach
from pyprof.collectors.targets.selection import Selection
from pyprof.errors import PyprofError
from pyprof.records import dataclass


@dataclass(eq=False)
class RuleSelection(Selection):
    """A Selection by verdicts. table: shared by all collectors of the agent. sampling: whose processes these are."""

    table: ProcessTable | None = None
    sampling: SamplingChoice | None = None

    def find(self, known: Container[int]) -> Iterable[int]:
        """The table looks at most once a second, whoever asks."""
        assert self.table is not None
        assert self.sampling is not None
        self.table.look()
        return [pid for pid in self.table.recorded(self.sampling) if pid not in known and pid not in self.ours]


def of_rules(table: ProcessTable, sampling: SamplingChoice) -> RuleSelection | None:
    """None where there is none yet that may be sampled."""
    table.look()
    possible, refused = [], 0
    for pid in table.recorded(sampling):
        try:
            attach.check_target(pid)
            possible.append(pid)
        except PyprofError:
            refused += 1
    if not possible:
        return None
    sentence = (f"Left out: {refused} processes that may not be sampled.",) if refused else ()
    return RuleSelection(tuple(possible), sentence, True, False, lambda _: False, table=table, sampling=sampling)
