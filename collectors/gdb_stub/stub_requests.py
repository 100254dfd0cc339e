"""The requests to a GDB stub as methods, and the target's memory through a stub.

The requests concern features, objects, memory, registers, threads and files. Memory is read by few, large
reads, each page once. The stub's XML documents are parsed without following external references.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import accumulate
from xml.parsers import expat

from pyprof.collectors.gdb_stub.remote_serial import PacketLink, escape_payload
from pyprof.errors import ConnectionLost, RemoteError
from pyprof.lazy_dataclasses import dataclass, field

Start = Callable[[str, dict[str, str]], None]


def parse_xml(
    what: str,
    text: bytes,
    start: Start,
    end: Callable[[str], None] | None = None,
    words: Callable[[str], None] | None = None,
) -> None:
    """Parse an XML document of a GDB stub and call the handlers, which may raise KeyError and ValueError for missing or
    invalid attributes.

    Raises:
        RemoteError: The document is not valid.
    """
    parser = expat.ParserCreate()
    parser.StartElementHandler = start
    if end is not None:
        parser.EndElementHandler = end
    if words is not None:
        parser.CharacterDataHandler = words

    def refuse(*_: object) -> None:
        raise RemoteError(f"the stub's {what} defines entities")

    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(text, True)
    except (expat.ExpatError, KeyError, ValueError) as error:
        raise RemoteError(f"the stub's {what} is broken: {error}") from None


MAX_OBJECT = 4 << 20
MAX_THREADS = 1 << 16
_MAX_PACKET = 1 << 16
_AT_ONCE = 8
_MAX_CHUNKS, _MAX_FILE_CHUNKS = 1 << 14, 1 << 16
_OURS = b"qSupported:multiprocess+;xmlRegisters=i386;vContSupported+;no-resumed+"


@dataclass(frozen=True, slots=True)
class ThreadId:
    """A thread as the GDB stub writes it ("p1f.20", "1") and as numbers; pid is 0 if the stub has no processes."""

    text: str
    pid: int
    tid: int

    @classmethod
    def parse(cls, text: str) -> ThreadId:
        """Parse a thread id of the GDB remote protocol.

        Raises:
            RemoteError: The text is not valid.
        """
        process, dot, thread = text.removeprefix("p").rpartition(".") if text.startswith("p") else ("", "", text)
        try:
            pid, tid = int(process, 16) if dot else 0, int(thread, 16)
        except ValueError:
            pid = tid = -1
        if pid < 0 or tid <= 0 or len(text) > 40:
            raise RemoteError(f"the stub names a thread {text[:40]!r}")
        return cls(text, pid & 0x7FFFFFFF, tid & 0x7FFFFFFF)


@dataclass(frozen=True, slots=True)
class StopReply:
    """A stop reply of the GDB remote protocol. `kind` is T or S (stopped by `signal`, in GDB's numbers), W
    (exited), X (killed) or N (no thread runs).
    """

    kind: str
    signal: int
    thread: ThreadId | None

    @property
    def is_end(self) -> bool:
        return self.kind in "WXN"

    @classmethod
    def parse(cls, packet: bytes) -> StopReply:
        """Parse a stop reply packet of the GDB remote protocol.

        Raises:
            RemoteError: The reply is not valid.
        """
        text = packet.decode("latin-1")
        try:
            if text[:1] == "N":
                return cls("N", 0, None)
            signal = int(text[1:3].partition(";")[0], 16)  # gdbserver: W0;process:1f
        except ValueError:
            raise RemoteError(f"the stub reports a stop as {text[:40]!r}") from None
        thread = None
        if text[:1] == "T":
            for pair in text[3:].split(";"):
                key, _, value = pair.partition(":")
                if key == "thread":
                    thread = ThreadId.parse(value)
        elif text[:1] not in ("S", "W", "X"):
            raise RemoteError(f"the stub reports a stop as {text[:40]!r}")
        return cls(text[0], signal, thread)


@dataclass
class Stub:
    """A connected GDB stub, with its requests as methods.

    Attributes:
        link: The connection.
        supported: Its features from qSupported, name -> value ("+" if it is supported without a value).
        actions: Actions that its vCont packet supports, such as c, s and t.
        packet_size: Maximum size of a packet in bytes.
    """

    link: PacketLink
    supported: dict[str, str] = field(default_factory=dict)
    actions: frozenset[str] = frozenset()
    packet_size: int = 400
    _general: str = ""

    def negotiate_features(self) -> None:
        """Perform the handshake with the GDB stub: exchange features, and disable acknowledgements if the stub
        agrees.
        """
        link = self.link
        link.acknowledge()
        self.supported = _features(link.request(_OURS))
        size = self.supported.get("PacketSize", "")
        try:
            self.packet_size = min(max(int(size, 16), 64), _MAX_PACKET)
        except ValueError:
            self.packet_size = 400
        if self.has_feature("QStartNoAckMode") and link.request(b"QStartNoAckMode") == b"OK":
            link.acks = False
        answer = link.request(b"vCont?").decode("latin-1")
        if answer.startswith("vCont"):
            self.actions = frozenset(answer.split(";")[1:])

    def has_feature(self, feature: str) -> bool:
        return self.supported.get(feature) == "+"

    @property
    def multiprocess(self) -> bool:
        return self.has_feature("multiprocess")

    def read_object(self, name: str, annex: str = "", limit: int = MAX_OBJECT) -> bytes | None:
        """Return a whole object by the packet qXfer:NAME:read, such as auxv or libraries-svr4. Return None if
        the stub has no such object.

        Raises:
            RemoteError: The object exceeds the limit.
        """
        data = bytearray()
        chunk = self.packet_size - 16
        for _ in range(_MAX_CHUNKS):
            reply = self.link.request(f"qXfer:{name}:read:{annex}:{len(data):x},{chunk:x}".encode())
            if reply[:1] not in (b"m", b"l"):
                return None
            data += reply[1:]
            if reply[:1] == b"l" or len(reply) == 1:
                return bytes(data)
            if len(data) > limit:
                break
        raise RemoteError(f"the stub's {name} has no end: more than {min(limit, len(data)) >> 10} KiB")

    def read_memory(self, avma: int, size: int) -> bytes:
        """Return the target's memory from avma on: `size` bytes, or only those up to the first unreadable
        one. As few requests as possible are sent.
        """
        data = bytearray()
        most = block = min(max((self.packet_size - 8) // 2 & ~7, 16), 16 << 10)
        while block and len(data) < size:
            count = _AT_ONCE if block == most else 1
            left = min(size - len(data), count * block)
            wants = [min(block, left - at) for at in range(0, left, block)]
            starts = accumulate(wants, initial=avma + len(data))
            replies = self.link.request_all([b"m%x,%x" % pair for pair in zip(starts, wants, strict=False)])
            for reply, want in zip(replies, wants, strict=True):
                got = _hex(reply)
                if len(got) > want:
                    raise RemoteError("the stub sent more memory than requested")
                data += got
                if len(got) < want:
                    if got or not reply:
                        return bytes(data)
                    # the end of the readable memory is in this block
                    block = max(want // 8 & -8, 1) if want > 1 else 0
                    break
        return bytes(data)

    def select_thread(self, thread: ThreadId) -> bool:
        """Select the thread whose registers the GDB stub reads next. Return False if the thread has ended."""
        if self._general == thread.text:
            return True
        self._general = ""
        reply = self.link.request(f"Hg{thread.text}".encode())
        if reply[:1] == b"E":
            return False
        if reply in (b"OK", b""):
            self._general = thread.text
        return True

    def forget_selection(self) -> None:
        """Forget which thread is selected, because the stub selects another one at each stop."""
        self._general = ""

    def read_registers(self, thread: ThreadId) -> bytes | None:
        """Return the stub's reply to a `g` packet for a thread: registers in hex digits, x for unavailable
        ones. Return None if the thread has ended.
        """
        if self._general == thread.text:
            reply = self.link.request(b"g")
        else:
            self._general = ""
            chosen, reply = self.link.request_all([f"Hg{thread.text}".encode(), b"g"])
            if chosen[:1] == b"E":
                return None
            self._general = thread.text
        return None if reply[:1] in (b"E", b"") and len(reply) <= 3 else reply

    def read_register(self, number: int) -> bytes:
        """Return one register of the selected thread in hex digits, by its number in the GDB stub. The result
        is empty if the register is not available.
        """
        reply = self.link.request(b"p%x" % number)
        return b"" if reply[:1] == b"E" else reply

    def is_alive(self, thread: ThreadId) -> bool:
        return self.link.request(f"T{thread.text}".encode()) == b"OK"

    def list_threads(self) -> list[ThreadId]:
        """Return all threads of the target, by the packet qfThreadInfo.

        Raises:
            RemoteError: The stub's list has too many threads.
        """
        found: dict[str, ThreadId] = {}
        reply = self.link.request(b"qfThreadInfo")
        for _ in range(MAX_THREADS):
            if reply[:1] != b"m":
                return list(found.values())
            before = len(found)
            for text in reply[1:].decode("latin-1").split(","):
                if text:
                    found[text] = ThreadId.parse(text)
            if len(found) == before or len(found) > MAX_THREADS:
                break
            reply = self.link.request(b"qsThreadInfo")
        raise RemoteError("the stub's list of threads has no end")

    def read_current_thread(self) -> ThreadId | None:
        reply = self.link.request(b"qC").decode("latin-1")
        return ThreadId.parse(reply[2:]) if reply.startswith("QC") and reply[2:] not in ("0", "-1") else None

    def open_file(self, path: str) -> int | None:
        """Open a file in the file system of the GDB stub for reading. Return its descriptor there, or None if
        it cannot be opened.
        """
        name = path.encode("utf-8", "surrogateescape").hex()
        result = _file_result(self.link.request(f"vFile:open:{name},0,0".encode()))
        return result[0] if result is not None and result[0] >= 0 else None

    def read_file(self, fd: int, offset: int, size: int) -> bytes:
        """Return at most `size` bytes of a file that is open in the GDB stub, or fewer if a packet has no
        room for them. The result is empty at the end and on an error.
        """
        size = min(size, max(self.packet_size - 64, 64) // 2)
        result = _file_result(self.link.request(b"vFile:pread:%x,%x,%x" % (fd, size, offset)))
        if result is None or result[0] <= 0:
            return b""
        if len(result[1]) > size:
            raise RemoteError("the stub sent more bytes of a file than requested")
        return result[1]

    def close_file(self, fd: int) -> None:
        self.link.request(b"vFile:close:%x" % fd)

    def read_whole_file(self, path: str, limit: int) -> bytes | None:
        """Return the contents of a file of the GDB stub's target, or None if it cannot be opened or is larger than
        `limit`.
        """
        fd = self.open_file(path)
        if fd is None:
            return None
        data = bytearray()
        try:
            for _ in range(_MAX_FILE_CHUNKS):
                chunk = self.read_file(fd, len(data), 1 << 20)
                if not chunk:
                    return bytes(data)
                data += chunk
                if len(data) > limit:
                    break
        finally:
            self.close_file(fd)
        return None

    def pass_signals(self, stopping: frozenset[int]) -> None:
        """Request that the stub delivers the target's signals without a stop: GDB's numbers 1 to 151, except
        for the signals in `stopping`.
        """
        if self.has_feature("QPassSignals"):
            numbers = ";".join(f"{n:x}" for n in range(1, 0x98) if n not in stopping)
            self.link.request(b"QPassSignals:" + escape_payload(numbers.encode()))


def _features(reply: bytes) -> dict[str, str]:
    found = {}
    for item in reply.decode("latin-1").split(";"):
        if item[-1:] in ("+", "-", "?"):
            found[item[:-1]] = item[-1]
        elif "=" in item:
            key, _, value = item.partition("=")
            found[key] = value
    return found


def _hex(reply: bytes) -> bytes:
    """Return the bytes that a GDB stub's reply contains in hex digits, empty if the reply is an error.

    Raises:
        RemoteError: The reply is not hexadecimal.
    """
    if reply[:1] == b"E" and len(reply) == 3:
        return b""
    try:
        return bytes.fromhex(reply.decode("ascii"))
    except ValueError:
        raise RemoteError("the stub answered a memory read with text that is not hexadecimal") from None


def _file_result(reply: bytes) -> tuple[int, bytes] | None:
    """Return (result, attached data) of a GDB stub's reply to a vFile request, or None if the stub has no
    such request.
    """
    if reply[:1] != b"F":
        return None
    head, _, data = reply[1:].partition(b";")
    try:
        return int(head.partition(b",")[0], 16), data
    except ValueError:
        return None


PAGE = 4096
_MAX_PAGES = 1 << 14
_RUN = 1 << 16


class PageCache:
    """A memory reader that caches whole pages. It is for memory that does not change (code, headers), or for
    a time in which the target is stopped.
    """

    def __init__(self, read: Callable[[int, int], bytes]) -> None:
        self._read = read
        self._pages: dict[int, bytes] = {}

    def read(self, avma: int, size: int) -> bytes:
        """Return at most `size` bytes of memory at avma, fewer if they are not readable."""
        data = bytearray()
        at = avma & -PAGE
        while at < avma + size:
            page = self._pages.get(at)
            if page is None:
                page = self._fetch(at, avma + size)
            data += page
            if len(page) < PAGE:
                break
            at += PAGE
        return bytes(data[avma & PAGE - 1 :][:size])

    def _fetch(self, start: int, end: int) -> bytes:
        """Read memory pages from `start` on into the cache, up to `end` or the next page that the cache has.
        Return the first one.
        """
        stop = start + PAGE
        while stop < min(end, start + _RUN) and stop not in self._pages:
            stop += PAGE
        data = self._read(start, stop - start)
        if len(self._pages) > _MAX_PAGES:
            self._pages.clear()
        for offset in range(0, max(len(data), 1), PAGE):
            self._pages[start + offset] = data[offset : offset + PAGE]
        return data[:PAGE]

    def clear(self) -> None:
        self._pages.clear()


class RemoteMemory:
    """The memory of a GDB stub's target. `reachable` returns a context that stops the target if its memory
    can be read only then.
    """

    def __init__(self, stub: Stub, mask: int) -> None:
        self.reachable: Callable[[], AbstractContextManager[None]] | None = None
        self.closed = False
        self._owner = os.getpid()
        self._stub = stub
        self._mask = mask
        self._lasting = PageCache(self._now)

    def read(self, avma: int, size: int) -> bytes:
        """Return memory of an AddressSpace, which is read from the GDB stub once and then cached. The result
        is b"" after the connection is closed.
        """
        if not 0 <= avma <= self._mask:
            return b""
        return self._lasting.read(avma, min(size, self._mask + 1 - avma))

    def read_current(self, avma: int, size: int) -> bytes:
        """Return the target's memory as it is now, without a cache. The caller must ensure that the memory is
        readable.
        """
        return self._stub.read_memory(avma, min(size, self._mask + 1 - avma)) if 0 <= avma <= self._mask else b""

    def make_page_cache(self) -> PageCache:
        """Return an empty cache of memory pages, for following pointers while the target's memory does not change."""
        return PageCache(self.read_current)

    def forget_pages(self) -> None:
        """Drop the cached memory pages because the mappings have changed."""
        self._lasting.clear()

    def _now(self, avma: int, size: int) -> bytes:
        # a forked child writes files; the connection belongs to its parent
        if self.closed or os.getpid() != self._owner:
            return b""
        try:
            if self.reachable is None:
                return self._stub.read_memory(avma, size)
            with self.reachable():
                return self._stub.read_memory(avma, size)
        except ConnectionLost:
            self.closed = True
            return b""
