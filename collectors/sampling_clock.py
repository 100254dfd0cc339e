"""When to sample: a grid of slots of 1/rate, one sampling time at random inside the middle of each.

The jitter keeps the sampler from running in step with the target. Slots that went by while we were late are
skipped and counted, never made up for: nobody looked, so nothing is claimed of that time. With a limit on the time that
the target is stopped, slots are left out until the time stopped so far is within it; the next sample stands for them,
and for slots that a stride leaves out.
"""

from __future__ import annotations

from collections.abc import Callable

from pyprof.handover import Stride
from pyprof.model.reasons import said

JITTER = 0.3
FIRST_PAUSE_NS = 200_000
"""Estimated cost of the first round of stops, so that a limit holds from the first second on."""


class SamplingClock:
    """start_ns: monotonic clock. max_overhead: most share of time spent in stops, None for no limit.

    random: uniform in [0, 1). left_out: slots not used for the limit's sake.
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
        """Go to the next slot; monotonic time at which to sample. Slots wholly in the past are skipped.

        weight is then how many slots the sample stands for: itself and those left out for the limit's or the stride's
        sake.
        """
        following = self._slot + 1
        strided = following + self._stride.every - 1
        wanted = max(strided, self._affordable())
        slot = max(wanted, self._slot_at(now_ns))
        self.weight = wanted - following + 1
        self._thinned += strided - following
        self.left_out += wanted - strided
        self.skipped += slot - wanted
        self._used += 1
        self._slot = slot
        jitter = (2 * self._random() - 1) * JITTER
        return self.start_ns + round((slot + 0.5 + jitter) * self.period_ns)

    @property
    def is_plain(self) -> bool:
        """Is each slot used?"""
        return self._limit is None and self._stride.every == 1

    def slot_after(self, count: int) -> tuple[int, int]:
        """When to sample in the slot so many after the last one, 0: in that one itself, and when it ends."""
        slot = self._slot + count
        jitter = (2 * self._random() - 1) * JITTER
        end_ns = self.start_ns + (slot + 1) * self.period_ns
        return self.start_ns + round((slot + 0.5 + jitter) * self.period_ns), end_ns

    def passed(self, slots: int, used: int) -> None:
        """Of a plain clock: slots went by from the last one on, that one included, of which some were used."""
        self.skipped += slots - used
        self._used += used - 1
        self._slot += slots - 1

    def ended(self, now_ns: int) -> None:
        """No slot is used any more. Those that went by since the last one are skipped, too."""
        following = max(self._slot + self._stride.every, self._affordable())
        self.skipped += max(self._slot_at(now_ns) - following, 0)

    def _slot_at(self, now_ns: int) -> int:
        return (now_ns - self.start_ns) // self.period_ns

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
