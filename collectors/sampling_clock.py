"""The sampling times of stops: a grid of slots of 1/rate, one time at random in each, uniform over the whole slot.

So each moment is as likely to be sampled as any other, also of a program that runs in step with the slots. If we are
late for a slot, the grid moves: the slot begins when we are ready. A grid that stayed would have fewer samples at the
beginning of its slots. Time that went by while we were late is counted as skipped slots and never made up for: there
was no look, so nothing is claimed of it. With a limit on the time that the target is stopped, slots are left out until
the time stopped so far is within it; the next sample stands for them, and for slots that a stride leaves out.
"""

from __future__ import annotations

from collections.abc import Callable

from pyprof.handover import Stride
from pyprof.model.reasons import said

FIRST_PAUSE_NS = 200_000
"""Estimated cost of the first round of stops, so that a limit holds from the first second on."""


class SamplingClock:
    """start_ns: monotonic clock. max_overhead: most share of time spent in stops, None for no limit.

    random: uniform in [0, 1). left_out: slots not used for the limit's sake. shift_ns: by how much the grid has moved,
    less than a slot; what goes beyond that are skipped slots.
    """

    def __init__(
        self,
        rate_hz: float,
        max_overhead: float | None,
        start_ns: int,
        random: Callable[[], float],
        stride: Stride | None = None,
    ) -> None:
        self.period_ns = max(1, round(1e9 / rate_hz))
        self.skipped = 0
        self.left_out = 0
        self.weight = 1
        self._rate_hz = rate_hz
        self._stride = stride or Stride()
        self._thinned = 0
        self._limit = max_overhead
        self._random = random
        self.start_ns = start_ns
        self.shift_ns = 0
        self._slot = -1
        self._used = 0
        self._stopped_ns = 0
        self._round_ns = FIRST_PAUSE_NS

    @property
    def rate_hz(self) -> float:
        """Slots a second that were meant to be used; below the wanted rate once the limit or a stride took hold."""
        return self._rate_hz * self._used / max(self._used + self.left_out + self._thinned, 1)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the limit did to the rate, as a sentence for the summary; nothing if it did nothing."""
        if not self.left_out or self._limit is None:
            return ()
        wanted, reached, limit = f"{self._rate_hz:g}", f"{self.rate_hz:.3g}", f"{100 * self._limit:g}"
        return (said("rate_lowered", wanted=wanted, reached=reached, limit=limit),)

    def next_due(self, now_ns: int) -> int:
        """Go to the next slot and return the monotonic time at which to sample.

        weight is then how many slots the sample stands for: itself and those left out for the limit's or the stride's
        sake.
        """
        following = self._slot + 1
        strided = following + self._stride.every - 1
        wanted = max(strided, self._affordable())
        self._slot = self._move_grid(wanted, now_ns)
        self.weight = wanted - following + 1
        self._thinned += strided - following
        self.left_out += wanted - strided
        self.skipped += self._slot - wanted
        self._used += 1
        return self._draw(self._slot)

    def _move_grid(self, slot: int, now_ns: int) -> int:
        """Return the slot to use. If the wanted one has begun already, move the grid so that a slot begins now."""
        late_ns = now_ns - self._begin_ns(slot)
        if late_ns <= 0:
            return slot
        slots, self.shift_ns = divmod(self.shift_ns + late_ns, self.period_ns)
        return slot + slots

    @property
    def is_plain(self) -> bool:
        """Is each slot used?"""
        return self._limit is None and self._stride.every == 1

    def slot_after(self, count: int) -> tuple[int, int]:
        """When to sample in the slot so many after the last one, 0: in that one itself, and when it ends."""
        slot = self._slot + count
        return self._draw(slot), self._begin_ns(slot + 1)

    def passed(self, slots: int, used: int, shift_ns: int) -> None:
        """Count slots of a plain clock that went by from the last one on, that one included, and those that were used.

        Args:
            shift_ns: the grid's shift after them.
        """
        self.skipped += slots - used
        self._used += used - 1
        self._slot += slots - 1
        self.shift_ns = shift_ns

    def _begin_ns(self, slot: int) -> int:
        return self.start_ns + self.shift_ns + slot * self.period_ns

    def _draw(self, slot: int) -> int:
        """Return a random time of a slot."""
        return self._begin_ns(slot) + int(self._random() * self.period_ns)

    def ended(self, now_ns: int) -> None:
        """No slot is used any more. Those that went by since the last one are skipped, too."""
        following = max(self._slot + self._stride.every, self._affordable())
        self.skipped += max(self._slot_at(now_ns) - following, 0)

    def _slot_at(self, now_ns: int) -> int:
        return (now_ns - self._begin_ns(0)) // self.period_ns

    def stopped(self, pause_ns: int) -> None:
        """The round of stops in the current slot took so long."""
        self._stopped_ns += pause_ns
        self._round_ns = (3 * self._round_ns + pause_ns) // 4

    def _affordable(self) -> int:
        """The first slot at whose end one more round of stops is within the limit."""
        if self._limit is None:
            return 0
        needed_ns = (self._stopped_ns + self._round_ns) / max(self._limit, 1e-6)
        return int(needed_ns // self.period_ns)
