"""The sampling times of ptrace stops: a grid of slots of one sampling period, and one random time in each
slot.

The time is uniform over the whole slot. So each moment is equally likely to be sampled, even if a program
runs in step with the slots. If the sampler is late for a slot, the grid moves: the slot begins when the
sampler is ready. A fixed grid would have fewer samples at the beginning of its slots. Time that passes while
the sampler is late is counted as skipped slots. Later samples never stand for it, because no sample says what
happened then.

With a limit on the time that the target is stopped, slots are left out until the stopped time is within the limit. The
next sample stands for them, and for slots that a stride leaves out.
"""

from __future__ import annotations

from collections.abc import Callable

from pyprof.collector_control import Stride
from pyprof.model.loss_reason_texts import Note, make_note

FIRST_PAUSE_NS = 200_000
"""Estimated duration in ns of the first round of stops, so that a limit of the overhead holds from the first
second on.
"""


class SamplingClock:
    """A clock that chooses the time of each sample: a random time in each slot of one sampling period.

    Args:
        rate_hz: Sampling rate in Hz.
        max_overhead: Maximum share of the time in which the target is stopped, None for no limit.
        start_ns: Start of the grid (monotonic clock).
        random: Function that returns a number uniform in [0, 1).
        stride: Use only every n-th slot.

    Attributes:
        skipped: Number of slots missed because the sampler was late.
        left_out: Number of slots not used because of max_overhead.
        weight: Number of slots that the current sample stands for.
        shift_ns: Delay of the grid in nanoseconds because the sampler was late, less than a slot. Whole slots
            count as skipped.
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
        """Planned number of samples per second. It is below the requested rate if the overhead limit or a
        stride has left out slots.
        """
        return self._rate_hz * self._used / max(self._used + self.left_out + self._thinned, 1)

    @property
    def notes(self) -> tuple[Note, ...]:
        """A note for the summary about how the overhead limit lowered the sampling rate; empty if it did not."""
        if not self.left_out or self._limit is None:
            return ()
        return (make_note("rate_lowered", wanted=self._rate_hz, reached=self.rate_hz, limit=100 * self._limit),)

    def next_due(self, now_ns: int) -> int:
        """Advance to the next slot to use, and return the monotonic time in ns at which to sample in it.

        `weight` is then the number of slots that the sample stands for: its slot, and those before it that
        the limit or the stride leaves out.
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
        """Return the number of the sampling slot to use. If the wanted slot has already begun, all slots are
        delayed so that one begins now.
        """
        late_ns = now_ns - self._begin_ns(slot)
        if late_ns <= 0:
            return slot
        slots, self.shift_ns = divmod(self.shift_ns + late_ns, self.period_ns)
        return slot + slots

    @property
    def is_plain(self) -> bool:
        """True if each sampling period has one sampling time, without a limit or stride."""
        return self._limit is None and self._stride.every == 1

    def slot_after(self, count: int) -> tuple[int, int]:
        """Return (sampling time, end of the slot) in monotonic ns for a slot of the sampling clock.

        Args:
            count: Distance in slots from the last one that was used, 0 for that slot itself.
        """
        slot = self._slot + count
        return self._draw(slot), self._begin_ns(slot + 1)

    def advance(self, slots: int, used: int, shift_ns: int) -> None:
        """Count slots that the compiled sampling loop has used or missed, and go on after them.

        Args:
            slots: Number of slots, including the last one of next_due().
            used: Number of them that were used.
            shift_ns: New value of the attribute shift_ns.
        """
        self.skipped += slots - used
        self._used += used - 1
        self._slot += slots - 1
        self.shift_ns = shift_ns

    def _begin_ns(self, slot: int) -> int:
        return self.start_ns + self.shift_ns + slot * self.period_ns

    def _draw(self, slot: int) -> int:
        """Return a random monotonic time in ns within a sampling slot."""
        return self._begin_ns(slot) + int(self._random() * self.period_ns)

    def count_skipped(self, now_ns: int) -> None:
        """Count the slots that have passed since the last sample as skipped, at the end of the recording."""
        following = max(self._slot + self._stride.every, self._affordable())
        self.skipped += max(self._slot_at(now_ns) - following, 0)

    def _slot_at(self, now_ns: int) -> int:
        return (now_ns - self._begin_ns(0)) // self.period_ns

    def note_pause(self, pause_ns: int) -> None:
        """Add the total duration in ns of the stops in the current slot to the overhead."""
        self._stopped_ns += pause_ns
        self._round_ns = (3 * self._round_ns + pause_ns) // 4

    def _affordable(self) -> int:
        """Return the number of the first sampling slot at whose end one more round of stops stays within the
        limit on overhead.
        """
        if self._limit is None:
            return 0
        needed_ns = (self._stopped_ns + self._round_ns) / max(self._limit, 1e-6)
        return int(needed_ns // self.period_ns)
