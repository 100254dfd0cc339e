"""The frames of one CPython's threads: copied while a thread is stopped, decoded afterwards, cached.

A chain has all Python frames of one thread at one sample. Chains are cached by the rows from which they were decoded,
so equal rows give one chain, in all batches. In a server nearly all chains are new. But most of them differ from an
earlier one only in the innermost frame's instruction. Such chains share a trunk, and only one chain of a trunk is
decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyprof.interpreters.base import InterpreterContext
from pyprof.interpreters.cpython.asyncio_tasks import Awaiters
from pyprof.interpreters.cpython.code_objects import CodeCache, CodeReader
from pyprof.interpreters.cpython.frame_copier import Copier
from pyprof.interpreters.cpython.frames_by_evaluator_call import RunReader, sort_runs
from pyprof.interpreters.cpython.layout import NONE, ChainKind
from pyprof.interpreters.cpython.object_reader import LocalReader, Memory, make_gather
from pyprof.interpreters.cpython.runtime_validation import PyThread, Runtime
from pyprof.interpreters.cpython.thread_snapshot import ChunkSizes, Copied, ReadHints
from pyprof.interpreters.cpython.threads import KnownThread
from pyprof.interpreters.function_table import UNKNOWN, FunctionTable, next_chain_number
from pyprof.lazy_dataclasses import replace
from pyprof.model.interpreter_frames import Chain, FunctionPlace, Run, SampleState
from pyprof.model.interpreter_reader_protocols import FrameReadPlan, FrameRows, Gather

LOST = "python_function_freed"
_MAX_PREPARED = 64
"""Maximum number of new Python threads whose memory is read in advance of their first stop, in versions of CPython
without a data stack (before 3.11).

The first stop then reads all frames of a deep stack at once.
"""
_PART = 2
"""Divisor of --stack-size. The quotient is the maximum number of bytes that are copied of a Python thread's data
stack.
"""
_MAX_CHAINS = 4096
ChainKey = tuple[SampleState, bool, tuple[int, ...], tuple[tuple[int, int], ...]]
"""Key of the cache of Python frame chains: (state of the thread, whether suspended greenlets are possible, result of
RunReader.cache_key() for the copied frames, CFrames on the C stack).
"""
NO_STACK = memoryview(b"").cast("Q")


class FrameReader:
    """A reader of the Python frames of one runtime's threads.

    Attributes:
        codes: Reader of code objects.
        awaiters: Reader of asyncio tasks that await the running ones, None if they are not followed.
    """

    def __init__(self, runtime: Runtime, memory: Memory, recording: InterpreterContext) -> None:
        self.codes = CodeReader(memory, runtime.layout, recording.book)
        self.awaiters: Awaiters | None = None
        self._runtime = runtime
        self._memory = memory
        self._diagnostics = recording.diagnostics
        most_stack = recording.stack_size // _PART
        self._settled = CodeCache(self.codes.head_at, self.codes.head_size, self.codes.identity, memory)
        self._copier = Copier(runtime.layout, self.codes.head_at, self.codes.head_size, most_stack, self._settled)
        self._book = recording.book
        self._chains: dict[ChainKey, tuple[Chain, frozenset[int]]] = {}
        self._of_version = 0
        self._beyond = ChunkSizes(memory)
        self._runs = RunReader(runtime.layout, self.codes)
        self._copied: list[Copied] = []

    def prepare(self, states: list[tuple[PyThread, ReadHints]]) -> None:
        """Read the memory that the first stop of new Python threads will need, in versions of CPython without a data
        stack (before 3.11).
        """
        if self._runtime.layout.thread.chunk == NONE:
            for thread, habit in states[:_MAX_PREPARED]:
                self._copier.learn_reads(
                    self._copier.copy_frames(thread, habit, NO_STACK, 0, make_gather(self._memory))
                )

    def drop_copy(self) -> None:
        """Discard the Python frames that the last stop copied."""
        self._copied = []

    def copy_frames(self, thread: KnownThread, greenlets: bool, stack: memoryview, base: int, gather: Gather) -> bool:
        """Copy the Python frames of a stopped thread, with the arguments of
        model.interpreter_reader_protocols.StackReader.copy.

        Returns:
            True if the thread states still belong to the thread.
        """
        self._copied = []
        self._copier.seeks_greenlets = greenlets
        current = True
        for state, hints in thread.states:
            copied = self._copier.copy_frames(state, hints, stack, base, gather)
            if copied.stale:
                current = False
            else:
                self._copied.append(copied)
        return current

    def plan_read(self, thread: KnownThread) -> FrameReadPlan | None:
        """Return a plan of the memory that the next stop of a Python thread reads, or None if that memory cannot be
        predicted.
        """
        if len(thread.states) != 1 or self.awaiters is not None:
            return None
        return self._copier.plan_read(*thread.states[0])

    def accept_planned(
        self, thread: KnownThread, ahead: FrameReadPlan, stack: memoryview, base: int, gather: Gather, now: Gather
    ) -> bool:
        """Store the Python frames that a stop has read by a plan, as copy_frames() does for a stopped thread.

        Returns:
            True if the thread state still belongs to the thread.
        """
        self._copied = []
        copied = self._copier.accept_planned(thread.states, ahead, stack, base, gather)
        if copied is None or copied.stale:
            return False
        copied.gather = now
        self._copied = [copied]
        return True

    def learn_reads(self) -> None:
        for copied in self._copied:
            self._copier.learn_reads(copied)

    def take_chain(self, greenlets: bool) -> Chain | None:
        """Return the Python frame chain of the thread that was copied last."""
        if not self._copied:
            return None
        settled, state = True, SampleState.INTERPRETED
        for copied in self._copied:
            self._copier.finish_copy(copied)
            self._copier.learn_reads(copied)
            settled &= self._confirm(copied)
            state |= self._lock_state(copied)
        key = self._key(state, greenlets) if settled else None
        if key is None:
            return self._decoded(state, greenlets)
        if self._of_version != self._settled.version or len(self._chains) >= _MAX_CHAINS:
            self._chains.clear()
            self._of_version = self._settled.version
        known = self._chains.get(key)
        if known is not None and self._book.has_all_codes(known[1]):
            return known[0]
        return self._remembered(key, self._decoded(state, greenlets))

    def _confirm(self, copied: Copied) -> bool:
        """Read now the heads (first words) of the code objects that the stop did not read. Return True if all of these
        code objects are cached and unchanged.
        """
        settled = self._settled
        late = tuple([at for at in copied.used if at not in copied.codes and at in settled.heads])
        sure = settled.confirm_heads(late, copied.gather) if late else ()
        copied.codes.update((address, settled.heads[address]) for address in sure)
        return len(sure) == len(copied.used)

    def _key(self, state: SampleState, greenlets: bool) -> ChainKey | None:
        """Return the key by which the chain of the last copied frames is cached, without the heads of code objects.
        None if the chain cannot be cached.
        """
        copied = self._copied[0]
        found_more = copied.problem or copied.cut or copied.unread or copied.waiting or self.awaiters is not None
        if len(self._copied) > 1 or found_more:
            return None
        return state, greenlets, self._runs.cache_key(copied), tuple(copied.stands)

    def _remembered(self, key: ChainKey, chain: Chain) -> Chain:
        """Store a complete chain of Python frames in the cache, and return it with the number that it gets. Return an
        incomplete chain unchanged.
        """
        functions = frozenset(place.function for run in chain.runs for place in run.frames)
        if chain.problem or UNKNOWN in functions:
            return chain
        chain = replace(chain, number=next_chain_number())
        self._chains[key] = chain, functions
        return chain

    def _decoded(self, state: SampleState, greenlets: bool) -> Chain:
        layout = self._runtime.layout
        runs: list[Run] = []
        problem = ""
        lost, lacking, enough, scattered = self.codes.lost, 0, 0, False
        for copied in self._copied:
            scattered = scattered or copied.unread
            part_lacks, part_enough = self._lacking(copied)
            lacking, enough = lacking + part_lacks, max(enough, part_enough)
            runs += self._with_awaiters(copied, self._runs.read_runs(copied))
            problem = problem or copied.problem
            self._settle(copied)
        if self.codes.lost > lost:
            self._diagnostics.count(LOST, self.codes.lost - lost)
        marked = layout.chain not in (ChainKind.OBJECTS,)
        if marked and len(self._copied) > 1:
            runs = sort_runs(runs)
        marks = self._copied[0].marks if len(self._copied) == 1 else ()
        evaluators = self._runtime.located.evaluators
        return Chain(tuple(runs), state, problem, evaluators, marked, marks, greenlets, lacking, enough, scattered)

    def _settle(self, copied: Copied) -> None:
        """Add those code objects of copied frames whose names are known to the cache of code objects that later stops
        need not read.
        """
        known, heads = self._settled.heads, {}
        for address, words in copied.codes.items():
            if address not in known and self.codes.has_name(address, head := bytes(words)):
                heads[address] = head
        self._settled.add_heads(heads)

    def _lacking(self, copied: Copied) -> tuple[int, int]:
        """Return how many frames of a Python chain were not copied, and the size of a copy that would contain all.

        Returns:
            (approximate number of frames that were not copied, --stack-size that would copy all); (0, 0) if none is
                missing.
            If frames are allocated separately: (lower bound of that number, 0).
        """
        if copied.unread:
            return len(copied.frames), 0
        missing = self._beyond.count_bytes_from(copied.beyond) if copied.cut else 0
        if not missing:
            if copied.cut:  # CPython freed the chunk before its frame
                copied.cut, copied.problem = False, copied.problem or "a frame could not be read"
            return 0, 0
        there = sum(8 * len(words) for _, _, words in copied.regions[:-1])
        return max(missing * len(copied.frames) // max(there, 1), 1), _PART * (there + missing)

    def local_values(self, redact: bool) -> list[tuple[FunctionPlace, dict[str, str]]]:
        """Read the local variables of the Python thread that was copied last, as they are now.

        Returns:
            (frame, {variable name: bounded repr}), innermost first.
        """
        layout = self._runtime.layout
        reader = LocalReader(self._memory, layout, redact)
        found = []
        for copied in self._copied:
            self._copier.learn_reads(copied)
            self._confirm(copied)
            for words, at, avma in copied.frames:
                place = None if self._runs.is_shim(words, at) else self._runs.read_frame(copied, words, at)
                if place is not None:
                    code = words[at + (layout.frame.code >> 3)] & layout.frame.code_mask
                    found.append((place, reader.read_locals(code, avma)))
        return found

    def _lock_state(self, copied: Copied) -> SampleState:
        """Return the SampleState flags that say whether a thread holds its GIL and whether it collects garbage."""
        layout, lock, collecting = self._runtime.layout, copied.lock, copied.collecting
        if not lock or not copied.thread.gil or lock[layout.gil_locked >> 3] & 0xFFFFFFFF != 1:
            return SampleState(0)
        if lock[layout.gil_holder >> 3] != copied.thread.address:
            return SampleState(0)
        shift = 8 * (copied.thread.collecting & 7)
        busy = collecting and collecting[0] >> shift & 0xFFFFFFFF
        return SampleState.HOLDS_LOCK | (SampleState.COLLECTING if busy else SampleState(0))

    def _with_awaiters(self, copied: Copied, runs: list[Run]) -> list[Run]:
        """Append the coroutines of awaiting asyncio tasks to the run of frames (one evaluator call) that contains the
        running task's coroutine.
        """
        awaiters = self.awaiters
        task = awaiters.find_running_task(copied.thread.address) if awaiters is not None else 0
        if awaiters is None or not task:
            return runs
        frame = awaiters.find_coroutine_frame(task)
        if frame not in copied.outermost:
            return runs
        at = copied.outermost.index(frame)
        runs[at] = replace(runs[at], frames=runs[at].frames + awaiters.read_awaiting_frames(task))
        return runs


_INSTR_AT = 16
"""Offset in bytes of the instruction pointer in a row of FrameRows.frames."""

RowsKey = tuple[bytes, bytes, bytes, bytes, int, bool, bool, int, int, bool]
"""Key of the cache of Python frame chains: all that the BPF program has copied of one thread's frames.

The parts are: frames, flags, bytecode copies, markers on the C stack, SampleState; whether the chain is broken, whether
the rows belong to several interpreters; the number of suspended frames, and of frames of awaiting tasks; whether the C
stack may hold suspended evaluator calls.
"""


def row_keys(rows: FrameRows, others: bool) -> list[RowsKey]:
    """Return a cache key for each thread's rows of copied frames.

    Args:
        others: The C stacks may hold evaluator calls of suspended greenlets (Chain.others).
    """
    frames, flag, stands = rows.frames.tobytes(), rows.flag.tobytes(), rows.stands.tobytes()
    tlbc = rows.tlbc.tobytes() if rows.tlbc.any() else b""
    start, stand_start = rows.start.tolist(), rows.stand_start.tolist()
    odd = rows.broken.astype(bool).tolist(), rows.several.tolist()
    states = zip(row_states(rows).tolist(), *odd, rows.waiting.tolist(), rows.awaiting.tolist(), strict=True)
    bounds = zip(start, start[1:], stand_start, stand_start[1:], states, strict=False)
    return [
        (frames[32 * a : 32 * b], flag[a:b], tlbc[4 * a : 4 * b], stands[16 * c : 16 * d], *state, others)
        for a, b, c, d, state in bounds
    ]


def row_states(rows: FrameRows) -> npt.NDArray[np.int64]:
    """Return the state of each thread at its sample (bits of SampleState) as an int64 array."""
    states = SampleState.INTERPRETED * np.ones(len(rows.holds), np.int64)
    states[rows.holds] |= SampleState.HOLDS_LOCK
    states[rows.holds & rows.collecting] |= SampleState.COLLECTING
    return states


def _trunk(key: RowsKey) -> RowsKey:
    """Return the cache key of a Python frame chain without the instruction of its innermost frame. Chains with an equal
    result share a trunk.
    """
    frames = key[0]
    return frames[:_INSTR_AT] + frames[_INSTR_AT + 8 :], *key[1:]


class _Known(NamedTuple):
    """A cached chain of Python frames, with the function numbers (FunctionTable) of all its frames."""

    chain: Chain
    functions: frozenset[int]


class ChainCache:
    """A cache of decoded chains of Python frames in one process. A chain has all frames of a thread at one sample.

    The FunctionTable (functions of all interpreters) drops the number of a function that no frame used for a long time.
    The chains of such a function are decoded again.
    """

    def __init__(self, book: FunctionTable) -> None:
        self._book = book
        self._chains: dict[RowsKey, _Known] = {}
        self._trunks: dict[RowsKey, _Known] = {}

    def find_chains(
        self,
        keys: list[RowsKey],
        decoded: Callable[[list[int]], list[Chain]],
        at: Callable[[Chain, int], Chain | None],
    ) -> list[Chain]:
        """Return the frame chains of the threads in a batch, by the keys of their rows.

        Args:
            keys: Key of each thread.
            decoded: Decodes the chains of threads, given by index.
            at: Derives the chain of a thread from a chain that differs only in the innermost instruction, or returns
                None if that is not possible.
        """
        found: dict[RowsKey, Chain] = {}
        fresh: dict[RowsKey, int] = {}
        for lane, key in enumerate(keys):
            if key in found or key in fresh:
                continue
            known = self._find(self._chains, key)
            if known is None:
                fresh[key] = lane
            else:
                found[key] = known.chain
        if fresh:
            found |= self._made(fresh, decoded, at)
        return [found[key] for key in keys]

    def _made(
        self,
        fresh: dict[RowsKey, int],
        decoded: Callable[[list[int]], list[Chain]],
        at: Callable[[Chain, int], Chain | None],
    ) -> dict[RowsKey, Chain]:
        """Decode the chains of frames whose keys are not in the cache, and return them by key.

        Args:
            fresh: Index of one thread in the batch for each key.
        """
        trunks = {key: _trunk(key) for key in fresh}
        first = {trunk: key for key, trunk in reversed(trunks.items()) if self._find(self._trunks, trunk) is None}
        made = self._kept([*first.values()], fresh, decoded, trunks)
        alone = []
        for key, trunk in trunks.items():
            if key in made:
                continue
            known = self._trunks.get(trunk)
            chain = at(known.chain, fresh[key]) if known is not None else None
            if known is None or chain is None:
                alone.append(key)
            else:
                made[key] = chain
                _keep(self._chains, key, _Known(chain, known.functions))
        return made | self._kept(alone, fresh, decoded, trunks)

    def _kept(
        self,
        keys: list[RowsKey],
        fresh: dict[RowsKey, int],
        decoded: Callable[[list[int]], list[Chain]],
        trunks: dict[RowsKey, RowsKey],
    ) -> dict[RowsKey, Chain]:
        """Decode the chains of frames with the given cache keys, put the numbered ones into the cache, and return all
        of them by key.
        """
        made = dict(zip(keys, decoded([fresh[key] for key in keys]), strict=True)) if keys else {}
        for key, chain in made.items():
            if chain.number:
                known = _Known(chain, frozenset(place.function for run in chain.runs for place in run.frames))
                _keep(self._chains, key, known)
                if chain.trunk:
                    _keep(self._trunks, trunks[key], known)
        return made

    def _find(self, known: dict[RowsKey, _Known], key: RowsKey) -> _Known | None:
        found = known.get(key)
        return found if found is not None and self._book.has_all_codes(found.functions) else None


def _keep(known: dict[RowsKey, _Known], key: RowsKey, found: _Known) -> None:
    if len(known) >= _MAX_CHAINS:
        known.clear()
    known[key] = found
