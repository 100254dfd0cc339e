"""What is read of a Python thread while it stands still: its thread state, its frames, the heads of their code.

Few reads of many spans: what the thread's last sample needed is asked for at once (its data stack, the frames that
generators keep elsewhere, the code objects); only what is new costs a further read. Nothing is decoded here that is
not needed to find the next frame.
"""

from __future__ import annotations

from pyprof.interpreters.cpython.ahead import AheadKey, AheadSizes, frames_ahead
from pyprof.interpreters.cpython.copied import (
    MOST_IN_STOP,
    MOST_SCATTERED,
    NOTHING,
    Copied,
    Habits,
    InStop,
    each_of,
    whole_parts,
    words_of,
)
from pyprof.interpreters.cpython.data_stack import ROOM, ChunkCopier
from pyprof.interpreters.cpython.greenlet_cframes import CFrameSearch
from pyprof.interpreters.cpython.greenlet_entries import EntrySearch
from pyprof.interpreters.cpython.greenlets import FrameWords, GreenletFrames, GreenletSearch, SwitchedThread
from pyprof.interpreters.cpython.layout import NONE, ChainKind, Layout
from pyprof.interpreters.cpython.runtime import PyThread
from pyprof.interpreters.cpython.settled_codes import SettledCodes
from pyprof.model.interpreter import FramesAhead, Gather, Span

MOST_FRAMES = 1 << 16
"""So many at least; as many as there may be in what is copied."""
_LEAST_FRAME = 64
MOST_GUESSES = 900
"""Code objects that are asked for because the last sample had them, as are frames outside the data stack."""
ENTRY_OWNER = 3
"""A frame with this owner or a greater one is an entry frame: it runs nothing and stands on the C stack."""


def greenlet_search(layout: Layout) -> GreenletSearch | None:
    """None where greenlets leave nothing on the stack that could be found."""
    if layout.chain < ChainKind.ENTRIES:
        return None
    return CFrameSearch(layout) if layout.frame.is_entry != NONE else EntrySearch(layout, ENTRY_OWNER)


class Copier:
    """Copies thread states of one runtime. code_at, code_size: the head of a code object. most_stack: so many bytes of
    a data stack are copied. settled: code objects that are not looked at in a stop. seeks_greenlets: greenlets may wait
    on the threads' stacks; else no stop searches for them.
    """

    def __init__(
        self, layout: Layout, code_at: int, code_size: int, most_stack: int, settled: SettledCodes | None = None
    ) -> None:
        self.seeks_greenlets = False
        self._settled_codes = settled
        self._settled = settled.heads if settled is not None else {}
        self._layout = layout
        self._code_at = code_at
        self._code_size = code_size
        self._most_frames = max(MOST_FRAMES, most_stack // _LEAST_FRAME)
        self._thread_words = (layout.thread.size + 7) // 8
        self._lock_size = (max(layout.gil_locked, layout.gil_holder) + 8 + 7) & ~7
        self._frame_size = (layout.frame.size + 7) & ~7
        self._frames = FrameWords(layout)
        self._entry = ENTRY_OWNER if layout.chain is ChainKind.SHIMS else 1
        self._in_stop = MOST_SCATTERED if layout.thread.chunk == NONE else MOST_IN_STOP
        self._chunks = ChunkCopier(layout, most_stack)
        self._greenlets = greenlet_search(layout)

    def copy(self, thread: PyThread, habits: Habits, stack: memoryview, base: int, gather: Gather) -> Copied:
        """stack: the thread's stack copy as 64-bit words, which stood at base."""
        layout = self._layout
        chunks, frames = habits.chunks, habits.frames
        spans = self._first_spans(thread, habits)
        data = gather(spans)
        words = words_of(data)
        parts = list(whole_parts(spans, words))
        head = words[: self._thread_words]
        if len(head) < self._thread_words:
            # a bad pointer among what the last sample had hides all that was asked for with it
            habits.chunks, habits.frames, habits.codes, habits.asked, habits.spans = [], [], [], [], []
            return Copied(
                thread, head, [], {}, [], head[:0], head[:0], [], gather, problem="its thread state is gone", stale=True
            )
        copied = Copied(
            thread, head, [], {}, [],
            lock=parts[1] if len(parts) > 1 else head[:0],
            collecting=parts[2] if len(parts) > 2 else head[:0],
            regions=[(base, base + 8 * len(stack), stack)],
            gather=gather,
            habits=habits,
        )  # fmt: skip
        wanted = head[layout.thread.thread_id >> 3] == thread.ident
        if not wanted or head[layout.thread.interp >> 3] != thread.interpreter:
            copied.stale, copied.problem = True, "its thread state has changed hands"
            return copied
        at = 3
        got = dict(zip([c[0] for c in chunks], parts[at : at + len(chunks)], strict=False))
        at += len(chunks)
        loose = dict(zip(frames, parts[at : at + len(frames)], strict=False))
        at += len(frames)
        copied.codes = dict(zip(habits.asked, parts[at:], strict=False))
        if layout.thread.chunk != NONE:
            self._chunks.copy(copied, habits, got, gather)
        first = self._first(copied, gather)
        self._follow(copied, first, loose, gather)
        if copied.stands and copied.stands[0][1] and not self._links(copied):
            # the evaluator has put its CFrame into the chain and not yet said which frame it runs
            problem = copied.problem
            del copied.stands[0], copied.frames[:]
            copied.problem, copied.rest, copied.cut = "", 0, False
            self._follow(copied, copied.stands[0][1] if copied.stands else 0, loose, gather)
            if not copied.frames:  # 3.11 frees a frame's chunk before it forgets the frame
                copied.problem = problem
        if self.seeks_greenlets and not (copied.problem and copied.frames) and not copied.rest:
            self._add_greenlets(copied, stack, base, habits, InStop(copied, loose, gather))
        return copied

    def _first_spans(self, thread: PyThread, habits: Habits) -> list[Span]:
        """What is read at once."""
        return [
            (thread.address, 8 * self._thread_words),
            (thread.gil or thread.address, self._lock_size),
            (thread.collecting & ~7, 8),
            *(habits.spans or self._spans(habits)),
        ]

    def ahead(self, thread: PyThread, habits: Habits) -> FramesAhead | None:
        """What the next copy() of a thread is going to read."""
        if self._settled_codes is None:
            return None
        sizes = AheadSizes(self._frame_size, self._in_stop, ROOM)
        spans = self._first_spans(thread, habits)
        return frames_ahead(self._layout, sizes, thread, habits, spans, self._settled_codes.addresses)

    def copied_ahead(
        self,
        states: list[tuple[PyThread, Habits]],
        ahead: FramesAhead,
        stack: memoryview,
        base: int,
        gather: Gather,
    ) -> Copied | None:
        """copy() of what a stop has read ahead; None if the thread has another state by now."""
        key = ahead.key
        if not isinstance(key, AheadKey) or len(states) != 1 or states[0][0] != key.thread:
            return None
        habits = key.habits()
        states[0] = key.thread, habits
        return self.copy(key.thread, habits, stack, base, gather)

    def _add_greenlets(self, copied: Copied, stack: memoryview, base: int, habits: Habits, reader: InStop) -> None:
        base_frame = self._layout.thread.base_frame
        stop = copied.head[base_frame >> 3] if base_frame != NONE else 0
        waiter = SwitchedThread(copied.thread.address, copied.frames, copied.stands, stop, stack, base)
        if self._greenlets is not None and not self._greenlets.nothing(waiter):
            self._add(copied, self._greenlets.search(waiter, habits.slots, reader), reader.gather)

    def _spans(self, habits: Habits) -> list[Span]:
        """What the thread's last sample needed."""
        spans = [(at, min(used + (0 if n else ROOM), size)) for n, (at, used, size) in enumerate(habits.chunks)]
        spans += [(at, self._frames.size) for at in habits.frames]
        spans += [(at + self._code_at, self._code_size) for at in habits.asked]
        return spans

    def _first(self, copied: Copied, gather: Gather) -> int:
        """The innermost frame; fills in what stands on the C stack."""
        layout = self._layout.thread
        head = copied.head
        at = head[layout.frame >> 3]
        if layout.cframe == NONE:
            return at
        self._stand(copied, head[layout.cframe >> 3], gather)
        if self._layout.chain is ChainKind.CFRAMES:
            return at
        return copied.stands[0][1] if copied.stands else 0

    def _stand(self, copied: Copied, cframe: int, gather: Gather | None) -> None:
        """The CFrames from one on, into copied.stands. gather None: in what is copied."""
        layout = self._layout.thread
        root = copied.thread.address + layout.root_cframe
        size = layout.cframe_previous + 8
        most = self._in_stop if gather else self._most_frames
        while cframe and cframe != root:
            if len(copied.stands) >= most:
                copied.rest_stand = cframe
                return
            words, index = copied.find(cframe, size, {}, gather)
            if words is None:
                copied.problem = copied.problem or "a frame's place on the C stack could not be read"
                return
            current = words[index + (layout.cframe_current >> 3)] if layout.cframe_current != NONE else 0
            copied.stands.append((cframe, current))
            cframe = words[index + (layout.cframe_previous >> 3)]

    def _follow(self, copied: Copied, frame: int, loose: dict[int, memoryview], gather: Gather | None) -> None:
        """The chain from a frame on, into copied.frames. gather None: in what is copied."""
        previous, code, size = self._frames.previous, self._frames.code, self._frame_size
        mask, settled = self._layout.frame.code_mask, self._settled
        frames, codes = copied.frames, copied.codes
        most = self._in_stop if gather else self._most_frames
        base_frame = self._layout.thread.base_frame
        stop = copied.head[base_frame >> 3] if base_frame != NONE else 0
        new: list[int] = []
        low = high = 0
        words = copied.head
        while frame and frame != stop:
            if len(frames) >= most:
                copied.rest = frame
                break
            if low <= frame and frame + size <= high and not frame & 7:
                at = frame - low >> 3
            elif (known := loose.get(frame)) is not None and 8 * len(known) >= size:
                words, at, low, high = known, 0, frame, frame + 8 * len(known)
            else:
                found, at = copied.find(frame, size, loose, gather)
                if found is None:
                    copied.cut = bool(copied.beyond)
                    if not copied.cut:
                        copied.problem = copied.problem or "a frame could not be read"
                    break
                words, low = found, frame - 8 * at
                high = low + 8 * len(words)
            frames.append((words, at, frame))
            executable = words[at + code] & mask
            if executable not in settled and executable not in codes and gather is not None:
                codes[executable] = words[:0]
                new.append(executable)
            frame = words[at + previous]
        if new and gather is not None:
            self._heads(copied, new, gather)

    def _heads(self, copied: Copied, codes: list[int], gather: Gather) -> None:
        spans = [(address + self._code_at, self._code_size) for address in codes]
        for address, part in zip(codes, each_of(spans, gather), strict=True):
            copied.codes[address] = part
            if address and not len(part):
                copied.problem = copied.problem or "a frame's code could not be read"

    def _add(self, copied: Copied, found: GreenletFrames, gather: Gather) -> None:
        """What waits on the stack outside the thread's chain, behind it in copied.frames."""
        if found.replaces:
            copied.frames, copied.stands = [], []
        if found.frames and not copied.frames:
            copied.problem = ""
        copied.frames += found.frames
        copied.stands += found.stands
        copied.waiting = found.markers
        copied.objects = found.objects
        code, mask = self._frames.code, self._layout.frame.code_mask
        used = {words[at + code] & mask for words, at, _ in found.frames}
        self._heads(copied, [at for at in used if at not in copied.codes and at not in self._settled], gather)

    def _links(self, copied: Copied) -> bool:
        """Does the innermost activation's run end where the next CFrame's begins?"""
        expected = copied.stands[1][1] if len(copied.stands) > 1 else 0
        flag, shift, entry = self._frames.flag, self._frames.flag_shift, self._entry
        for words, at, _ in copied.frames:
            if words[at + flag] >> shift & 0xFF >= entry:
                return words[at + self._frames.previous] == expected
        return bool(copied.rest)

    def learn(self, copied: Copied) -> None:
        """What the thread's next sample is likely to need: found out when it runs again."""
        habits, copied.habits = copied.habits, None
        if habits is None or copied.stale:
            return
        regions = copied.regions
        kept = {id(words) for _, _, words in regions}
        frames = [at for words, _, at in copied.frames if id(words) not in kept]
        habits.frames = (frames + copied.objects)[:MOST_IN_STOP]
        code, mask = self._frames.code, self._layout.frame.code_mask
        used = dict.fromkeys([words[at + code] & mask for words, at, _ in copied.frames])
        used.pop(0, None)
        copied.used = tuple(used)
        if copied.rest:  # what its outer frames run is what it was
            used.update(dict.fromkeys(habits.codes))
        # what could not be read comes last: it hides what is behind it, and may only have come too late
        codes, settled = copied.codes, self._settled
        habits.codes = sorted(used, key=lambda at: at not in settled and not len(codes.get(at, NOTHING)))[:MOST_GUESSES]
        habits.asked = [at for at in habits.codes if at not in settled]
        habits.spans = self._spans(habits)

    def finish(self, copied: Copied) -> None:
        """The rest of a deep stack, from the copy."""
        frame, copied.rest = copied.rest, 0
        if frame and self._layout.thread.chunk == NONE:  # each lies elsewhere: none of the rest is in the copy
            copied.unread, frame, copied.rest_stand = True, 0, 0
        stand, copied.rest_stand = copied.rest_stand, 0
        if frame:
            self._follow(copied, frame, {}, None)
        if stand:
            self._stand(copied, stand, None)
        if copied.rest or copied.rest_stand:
            copied.problem = copied.problem or "more frames than can be followed"
