"""Code objects that need no read during a stop.

A part of the head of a code object, its identity, distinguishes the objects that have lain at its address
(code_objects.py). Heads are most of the spans that a stop reads. But if an identity is read before a stop, read again
after it, and has not changed, then it was the same during the stop. Code objects whose names are known are *settled*:
their identities are read after the stop. An address at which another code object was once found is never settled again;
its head is read in the stop.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

from pyprof.interpreters.cpython.memory import Memory
from pyprof.model.interpreter_state import Gather, Span

_MAX_CODES = 1 << 16
_MAX_TOGETHER = 1024


class CodeCache:
    """The code objects of one process whose names are known, so that a stop need not read them.

    Attributes:
        heads: Heads by address, as a stop has read them.
        version: A number that changes when the identity of a cached code object has changed or all were forgotten.
    """

    def __init__(self, head_at: int, head_size: int, identity: slice, memory: Memory) -> None:
        """Create an empty cache of Python code objects.

        Args:
            head_at: Offset of the head in a code object, in bytes.
            head_size: Size of the head in bytes.
            identity: Slice of the head that is the identity.
            memory: Reads the process as it is now.
        """
        self.heads: dict[int, bytes] = {}
        self.version = 0
        self._memory = memory
        self._head_size = head_size
        self._identity = identity
        self._identity_at = head_at + identity.start
        self._identity_size = identity.stop - identity.start
        self._unsteady: set[int] = set()
        self._together: dict[tuple[int, ...], tuple[list[Span], bytes]] = {}
        self._sorted = array("Q")
        self._sorted_of = (0, 0)

    @property
    def addresses(self) -> array[int]:
        """Addresses of the Python code objects that a stop need not read, ascending."""
        now = self.version, len(self.heads)
        if now != self._sorted_of:
            self._sorted_of, self._sorted = now, array("Q", sorted(self.heads))
        return self._sorted

    def add_heads(self, heads: Mapping[int, bytes]) -> None:
        """Add code objects whose names are known, so that later stops need not read them.

        Args:
            heads: Heads of the code objects by address, as a stop has read them.
        """
        for address, head in heads.items():
            if len(head) != self._head_size or address in self._unsteady:
                continue
            if address in self.heads:
                if self.heads[address][self._identity] != head[self._identity]:
                    self._unsettle(address)
                continue
            if len(self.heads) >= _MAX_CODES:
                self._forget()
            self.heads[address] = head

    def confirm_heads(self, addresses: tuple[int, ...], gather: Gather) -> Sequence[int]:
        """Return the addresses of those Python code objects that were unchanged during the stop, by their heads, now
        that the thread runs again.

        If the process has ended since, the addresses of all cached code objects are returned.
        """
        known = self._together.get(addresses)
        if known is None:
            known = self._of(addresses)
        spans, identities = known
        data = gather(spans)
        if data == identities:
            return addresses
        # a code object was replaced or freed, or there was no time or room left to read all of them
        parts = [self._memory.read_available(*span) for span in spans]
        if not any(parts):
            return [address for address in addresses if address in self.heads]
        found = []
        for address, part in zip(addresses, parts, strict=True):
            head = self.heads.get(address)
            if head is not None and head[self._identity] == part:
                found.append(address)
            elif head is not None:
                self._unsettle(address)
        return found

    def _of(self, addresses: tuple[int, ...]) -> tuple[list[Span], bytes]:
        if len(self._together) >= _MAX_TOGETHER:
            self._together.clear()
        spans = [(address + self._identity_at, self._identity_size) for address in addresses]
        identities = b"".join(self.heads.get(address, b"")[self._identity] for address in addresses)
        found = self._together[addresses] = spans, identities
        return found

    def _unsettle(self, address: int) -> None:
        del self.heads[address]
        self._unsteady.add(address)
        self._changed()

    def _forget(self) -> None:
        self.heads.clear()
        self._unsteady.clear()
        self._changed()

    def _changed(self) -> None:
        self._together.clear()
        self.version += 1
