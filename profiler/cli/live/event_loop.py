"""The event loop of the screen, the keys and the newest snapshot, until the user leaves."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from pyprof.cli.live import view as keys
from pyprof.cli.live.costs import RowTree, opened
from pyprof.cli.live.snapshots import Snapshot
from pyprof.cli.live.terminal_screen import Screen, picture, room
from pyprof.cli.live.view import Around, View, pressed, rows
from pyprof.errors import PyprofError
from pyprof.model.analysis.idle_waits import without_idle
from pyprof.options import SIMPLE_MODES
from pyprof.records import dataclass, replace

_WAIT_S = 1.0
_LATE_S = 3.0
"""Age in seconds from which the screen of `pyprof top` shows that the snapshot is old."""


@dataclass(frozen=True, slots=True)
class Acts:
    """The actions that the event loop of `pyprof top` can request, such as saving a file.

    Attributes:
        to_mode: Starts the recording again in another mode; raises PyprofError.
        suspend: Stops this process until SIGCONT.
        save: Saves the snapshot into a file ("" for the default name) and returns a message; raises PyprofError.
    """

    to_mode: Callable[[str], None]
    suspend: Callable[[], None]
    save: Callable[[Snapshot, str], str]


class Loop:
    """The event loop of `pyprof top`. post() and leave() may be called from any thread; newest is the last snapshot."""

    def __init__(self, screen: Screen, view: View, snapshot: Snapshot, acts: Acts) -> None:
        self.view = view
        self._screen = screen
        self.newest = self._shown = snapshot
        self._acts = acts
        self._left = False
        self._posted_at = monotonic()

    def post(self, snapshot: Snapshot) -> None:
        """Show a snapshot on the screen, unless the display is paused."""
        self.newest, self._posted_at = snapshot, monotonic()
        self._screen.wake()

    def leave(self) -> None:
        self._left = True
        self._screen.wake()

    def run(self) -> None:
        """Draw the screen and handle keys until the user leaves.

        Raises:
            OSError: The terminal is gone.
        """
        while not self._left:
            if not self.view.paused:
                self._shown = self.newest
            self._draw()
            for name in self._screen.keys(_WAIT_S):
                self._press(name)

    def _draw(self) -> None:
        age = monotonic() - self._posted_at
        late = f" [{age:.0f} s old]" if age >= _LATE_S else ""
        self._screen.draw(picture(self._shown, self.view, self._stacks(), late, *self._screen.size()))

    def _stacks(self) -> RowTree | None:
        """Return the callers or callees of the row that the user opened, None if there is none."""
        view, seen = self.view, self._shown.seen
        profile = seen.profile(view.span_s) if view.opened is not None and seen is not None else None
        if profile is None or view.opened is None:
            return None
        shown = profile if self._shown.shows_idle else without_idle(profile)
        return opened(shown, view.table, view.opened, view.callers)

    def _press(self, name: str) -> None:
        view = self.view
        shown = rows(self._shown.table(view.table, view.span_s).tables[view.table], view)
        view = pressed(view, name, Around(shown, room(self._screen.size()[1])))
        self.view = replace(view, wants="")
        self._do(view.wants)

    def _do(self, what: str) -> None:
        if what == keys.QUIT:
            self._left = True
        elif what == keys.SUSPEND:
            self._screen.leave_for(self._acts.suspend)
        elif what == keys.REDRAW:
            self._screen.redraw()
        elif what == keys.SAVE:
            self._save()
        elif what == keys.MODE:
            now = self.newest.mode
            after = SIMPLE_MODES.index(now) + 1 if now in SIMPLE_MODES else 0
            self._to_mode(SIMPLE_MODES[after % len(SIMPLE_MODES)])

    def _save(self) -> None:
        path = self.view.typed
        self.view = replace(self.view, message="saving …", typed="")
        self._draw()
        try:
            self.view = replace(self.view, message=self._acts.save(self._shown, path))
        except PyprofError as error:
            self.view = replace(self.view, message=error.message)

    def _to_mode(self, mode: str) -> None:
        self.view = replace(self.view, message=f"beginning anew: {mode} …", paused=False)
        self._draw()
        try:
            self._acts.to_mode(mode)
            self.view = replace(self.view, message="")
        except PyprofError as error:
            self.view = replace(self.view, message=error.message)
