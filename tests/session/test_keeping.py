"""What a recording that is killed leaves: its samples are kept before anything is read for their names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyprof.exporters.base import JournalPart
from pyprof.options import ViewOptions
from pyprof.session.keeping import Keeping
from pyprof.session.worker.messages import Naming
from pyprof.symbolize.symbolizer import Resolved
from tests.objfile.live import running, where
from tests.session.test_names_ahead import sample, session_of


class Parts(list[JournalPart]):
    """A Journal."""

    def add(self, part: JournalPart) -> None:
        self.append(part)

    def close(self) -> None: ...


def test_samples_are_kept_before_their_names_are_read(tmp_path: Path) -> None:
    parts, kept_before = Parts(), list[int]()

    def within(job: Callable[[], Resolved]) -> Resolved:
        kept_before.append(sum(len(part.samples.time_ns) for part in parts))
        return job()

    with running([where(tmp_path, "where", "-g")]) as live:
        session = session_of(live, live.at["where_inner"])
        keeping = Keeping(session, Naming("", 99, "cpu", ViewOptions()), parts, within)
        keeping._send()
        session.recorder.add(sample(live, live.at["where_inner"]))
        keeping.close()
    assert kept_before == [1, 1]
    assert [len(part.samples.time_ns) for part in parts if not part.named] == [1, 1]
    (*_, first), named = parts[0].frames, [part.named for part in parts if part.named]
    assert "where_inner" not in first.title
    assert [frames[-1].title for each in named for frames in each.values()] == ["where_inner", "where_inner"]
    assert named[-1][0][-1].lines[0].line > 0
