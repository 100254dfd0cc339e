"""The file broker: a process that keeps the rights which the worker gives up, and parses no files.

It opens files of the recorded processes for the worker, with the rights of those targets. The sampler tells the file
broker which processes are recorded. The file broker also gives finished profiles to their sink. A request of the worker
is a list of plain values (file_broker_client.py). The file broker ends with the worker.

An attacker who controls the worker can write any content to the outputs that the user named. The attacker can request
only these files:

* files below a target's root that the target's user may read, and mapped files;
* object files that everybody or a target's user may read, or the user of pyprof if a core file is examined. A core file
  is no object file, because it holds memory of a process;
* files in debuginfod's cache;
* the kernel's symbol table, and unnamed temporary files.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import select
import struct
from collections.abc import Sequence
from io import BytesIO

from pyprof.errors import PyprofError
from pyprof.exporters import base
from pyprof.exporters.base import Sink
from pyprof.lazy_dataclasses import dataclass
from pyprof.objfile.untrusted_file_access import ELF_MAGIC, Opener, Rights
from pyprof.session import process_priority
from pyprof.session.worker import response_codec
from pyprof.session.worker.message_channel import Channel, Closed, Part, Received

_EVERYBODY = Rights()
_ELF_HEAD = struct.Struct("=4sxB10xBB")
"""Format of the first bytes of an ELF file: e_ident with its magic number and byte order, and the two bytes of
e_type.
"""
_BIG_ENDIAN, _ET_CORE = 2, 4


@dataclass(frozen=True, slots=True)
class KnownProcess:
    """A process that is recorded, and the root folder of its file names, so that the worker may open its files."""

    pid: int
    root: str


@dataclass(frozen=True, slots=True)
class KnownFiles:
    """A notice to the file broker that the worker may open certain paths: ones that the user gave, or files below a
    folder that the user gave.
    """

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KnownFolder:
    """A notice to the file broker that the worker may open any file below a folder that the user gave."""

    path: str


@dataclass(frozen=True, slots=True)
class AnyObjectFile:
    """A permission for the worker to open each object file that this process may read. It is given for a core file,
    which names its modules itself.
    """


@dataclass(frozen=True, slots=True)
class NumberedSink:
    """A sink of profiles, with the number by which later messages refer to it."""

    number: int
    sink: Sink


Notice = KnownProcess | KnownFiles | KnownFolder | AnyObjectFile | NumberedSink
"""Type of the sampler's messages to the file broker. They are sent before the worker can request anything that depends
on them.
"""


MAX_KEPT_BYTES = 1 << 27
"""Maximum size in bytes of the parts of a window that the file broker keeps for a sink without a journal."""
WRITTEN = b"written"
"""The file broker's only message to the sampler. It says that the sink has received what the worker recorded before the
worker ended.
"""
MAX_PROCESSES = 1 << 14
"""Number of processes that the file broker remembers before it forgets ended ones.

Names in files of ended processes are still resolved later.
"""


class GuardedOpener(Opener):
    """An opener of files that serves only permitted requests of the worker. As root, it applies the rights of the
    target's user.

    Args:
        worker: Pid of the worker.
    """

    def __init__(self, worker: int) -> None:
        self._worker = worker
        self._pids: dict[int, str] = {}
        self._most = MAX_PROCESSES
        self._roots: dict[str, Rights | None] = {}
        self._files: set[str] = set()
        self._folders: set[str] = set()
        self._as_root = os.geteuid() == 0
        self._host_rights: dict[str, Rights] = {}
        self._opens_all_objects = False

    def notify(self, notice: KnownProcess | KnownFiles | KnownFolder | AnyObjectFile) -> None:
        match notice:
            case KnownProcess(pid, root):
                self._pids.pop(pid, None)
                self._pids[pid] = root
                self._roots[root] = self._seen(root)
                self._forget_ended()
            case KnownFiles(paths):
                self._files.update(paths)
            case KnownFolder(path):
                self._folders.add(path)
                self._roots[path] = None
            case AnyObjectFile():
                self._opens_all_objects = True

    def _forget_ended(self) -> None:
        """Forget the ended processes in the older half of the file broker's table if it is full. An agent runs for
        months.
        """
        if len(self._pids) <= self._most:
            return
        for pid in [*self._pids][: len(self._pids) // 2]:
            if not os.path.exists(f"/proc/{pid}"):
                root = self._pids.pop(pid)
                self._roots.pop(root, None)
                self._host_rights.pop(root, None)
        self._most = max(MAX_PROCESSES, len(self._pids) + MAX_PROCESSES // 2)

    def keep_up(self) -> None:
        """Set the priority of the file broker to that of the worker, because the worker waits for it."""
        process_priority.copy_priority(self._worker)

    def _seen(self, root: str) -> Rights | None:
        """Return the rights of the recorded process whose root folder this is: its current rights, or its last known
        rights if it has ended. None if there is no such process.
        """
        is_host, rights = super().describe_root(root)
        rights = self._roots.get(root, rights) if rights == _EVERYBODY else rights
        if is_host and rights is not None:
            self._host_rights[root] = rights
        return rights

    def open_below(self, root: str, name: str, rights: Rights | None, follow: bool) -> int:
        if root in ("", "/"):
            return self._ours(name, rights, follow)
        _check(root in self._roots)
        self._roots[root] = self._seen(root)
        return super().open_below(root, name, self._roots[root], follow)

    def _ours(self, name: str, rights: Rights | None, follow: bool) -> int:
        """Open a file below the machine's own root folder for the worker.

        If a recorded process in that root has the requested rights, they are used. Otherwise the file must be an object
        file that everybody may read, or the user of a recorded process in this root, which may have ended.
        """
        if not self._as_root or (rights is not None and rights in self._roots.values()):
            return super().open_below("", name, rights, follow)
        failure = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        for each in (_EVERYBODY, *({None} if self._opens_all_objects else {*self._host_rights.values()})):
            try:
                fd = super().open_below("", name, each, follow)
            except PermissionError as error:
                failure = error
                continue
            if _is_object_file(fd):
                return fd
            os.close(fd)
        raise failure

    def open_mapped(self, pid: int, start: int, end: int) -> int:
        _check(pid in self._pids)
        return super().open_mapped(pid, start, end)

    def open_program(self, pid: int) -> int:
        _check(pid in self._pids)
        return super().open_program(pid)

    def open_named(self, path: str) -> int:
        """Open a file for the worker if the user gave its path or a folder above it, or if it is an ELF file that
        everybody may read.
        """
        if path in self._files:
            return super().open_named(path)
        folder = next((folder for folder in self._folders if path.startswith(f"{folder}/")), None)
        return (
            self._ours(path, None, True) if folder is None else self.open_below(folder, path[len(folder) :], None, True)
        )

    def open_regular(self, path: str) -> int:
        _check(path in self._files)
        return super().open_regular(path)

    def read_status(self, pid: int, what: str) -> bytes:
        _check(what in ("status", "stat") and pid in {*self._pids, self._worker})
        return super().read_status(pid, what)

    def open_memory(self, pid: int, what: str) -> int:
        _check(what in ("mem", "maps") and pid in self._pids)
        return super().open_memory(pid, what)

    def describe_root(self, root: str) -> tuple[bool, Rights | None]:
        ours, _ = super().describe_root(root)
        return ours, self._roots.get(root)

    def find_package(self, root: str, path: str) -> str | None:
        _check(root in ("", "/", *self._roots))
        return super().find_package(root, path)


def _check(allowed: bool) -> None:
    if not allowed:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _is_object_file(fd: int) -> bool:
    """Return True if an open file is an ELF file and not a core file."""
    head = os.pread(fd, _ELF_HEAD.size, 0)
    if len(head) < _ELF_HEAD.size:
        return False
    magic, order, low, high = _ELF_HEAD.unpack(head)
    return bool(magic == ELF_MAGIC and (high if order == _BIG_ENDIAN else low) != _ET_CORE)


class WindowCopy:
    """Copies of the parts of the current window, which the file broker keeps for a sink without a journal.

    Data beyond MAX_KEPT_BYTES is dropped.
    """

    def __init__(self, beginning: base.JournalBeginning, sink: Sink, number: int) -> None:
        self._beginning = beginning
        self._sink = sink
        self._number = number
        self._parts: list[list[bytes]] = []
        self._size = 0

    def add_parts(self, parts: Sequence[Part]) -> None:
        self._size += sum(map(len, parts))
        if self._size <= MAX_KEPT_BYTES:
            self._parts.append([bytes(part) for part in parts])

    def deliver(self) -> None:
        """Build a profile from the copied parts of a window, and give it to the sink.

        Raises:
            Exception: What the sink raises.
        """
        from tempfile import TemporaryDirectory

        from pyprof.recording.reader import load_recording
        from pyprof.recording.writer import FileJournal

        with TemporaryDirectory(prefix="pyprof-") as folder:
            journal = FileJournal(f"{folder}/window.pyprof", self._beginning)
            for parts in self._parts:
                journal.add_part(response_codec.unpacked_value(parts, base.JournalPart))
            journal.close()
            profile = load_recording(f"{folder}/window.pyprof")
        self._sink.receive_profile(profile, self._number)


class FileBroker:
    """The server loop of the file broker. It serves one worker until that worker ends.

    Args:
        channel: Requests of the worker.
        notices: Messages of the sampler, which may end before the worker.
        worker: Pid of the worker.
    """

    def __init__(self, channel: Channel, notices: Channel, worker: int) -> None:
        self._channel = channel
        self._notices: Channel | None = notices
        self._opener = GuardedOpener(worker)
        self._sinks: dict[int, Sink] = {}
        self._journal: base.Journal | None = None
        self._window: WindowCopy | None = None

    def run(self) -> None:
        with contextlib.suppress(Closed):
            while True:
                self._wait()
                received = self._channel.receive(0)
                self._listen()
                if received is not None:
                    self._answer(received)
        self._finish_window()

    def _wait(self) -> None:
        """Wait until the worker or the sampler has sent a message.

        Messages of the sampler must be read, because they would fill their channel and block the sampler.
        """
        poll = select.poll()
        for channel in (self._channel, self._notices):
            if channel is not None:
                poll.register(channel.fileno(), select.POLLIN)
        poll.poll()

    def _finish_window(self) -> None:
        """Give the data that a killed worker had recorded to its sink, and notify the sampler."""
        if self._window is None and self._journal is None:
            return
        with contextlib.suppress(PyprofError, OSError):
            if self._window is not None:
                self._window.deliver()
            self._end_journal()
            if self._notices is not None:
                self._notices.send([WRITTEN])

    def _end_journal(self) -> None:
        self._window = None
        journal, self._journal = self._journal, None
        if journal is not None:
            journal.close()

    def _listen(self) -> None:
        """Handle all pending messages of the sampler to the file broker, before a request of the worker that depends on
        them.
        """
        try:
            while self._notices is not None and (received := self._notices.receive(0)) is not None:
                notice: Notice = pickle.load(BytesIO(received.parts[0]))  # noqa: S301 - from the sampler, which has more rights
                if isinstance(notice, NumberedSink):
                    self._sinks[notice.number] = notice.sink
                else:
                    self._opener.notify(notice)
        except Closed:
            self._notices = None

    def _answer(self, received: Received) -> None:
        for fd in received.fds:
            os.close(fd)
        self._opener.keep_up()
        fds: list[int] = []
        try:
            value = self._served(received.parts, fds)
            reply: list[object] = ["is", value]
        except PyprofError as error:
            reply = ["failed", type(error).__name__, error.message, error.hint, ""]
        except OSError as error:
            reply = ["error", error.errno or errno.EIO]
        except Exception as error:  # noqa: BLE001 - sent to the process that asked
            import traceback

            reply = ["failed", type(error).__name__, str(error), "", "".join(traceback.format_exception(error))]
        try:
            self._channel.send([json.dumps(reply).encode()], fds)
        finally:
            for fd in fds:
                os.close(fd)

    def _served(self, parts: Sequence[Part], fds: list[int]) -> object:  # noqa: C901
        """Serve one request of the worker, and return the result for the response.

        Args:
            parts: The request.
            fds: Receives the descriptors for the response.

        Returns:
            The value for the response.

        Raises:
            OSError: The file cannot be opened, or the request is not permitted.
            Exception: What a sink raises.
        """
        opener = self._opener
        match json.loads(bytes(parts[0])):
            case ["below", str(root), str(name), rights, bool(follow)]:
                fds.append(opener.open_below(root, name, rights_of(rights), follow))
            case ["mapped", int(pid), int(start), int(end)]:
                fds.append(opener.open_mapped(pid, start, end))
            case ["program", int(pid)]:
                fds.append(opener.open_program(pid))
            case ["named", str(path)]:
                fds.append(opener.open_named(path))
            case ["regular", str(path)]:
                fds.append(opener.open_regular(path))
            case ["fetched", str(build_id)]:
                fds.append(opener.open_downloaded(build_id))
            case ["scratch"]:
                fds.append(opener.create_scratch_file())
            case ["memory", int(pid), str(what)]:
                fds.append(opener.open_memory(pid, what))
            case ["kernel_symbols"]:
                fds.append(opener.open_kernel_symbols())
            case ["about", int(pid), str(what)]:
                return opener.read_status(pid, what).decode("latin-1")
            case ["root", str(root)]:
                ours, known = opener.describe_root(root)
                return [ours, plain(known)]
            case ["package", str(root), str(path)]:
                return opener.find_package(root, path)
            case ["demangled", list(names)]:
                from pyprof.symbolize.demangle import demangle_isolated  # the worker has loaded it already

                return demangle_isolated([str(name) for name in names])
            case ["journal", int(number), int(window)] if number in self._sinks:
                self._end_journal()
                beginning = response_codec.unpacked_value(parts[1:], base.JournalBeginning)
                self._journal = self._sinks[number].open_journal(beginning, window)
                if self._journal is None:
                    self._window = WindowCopy(beginning, self._sinks[number], window)
                return True
            case ["part"] if self._window is not None:
                self._window.add_parts(parts[1:])
            case ["part"] if self._journal is not None:
                self._journal.add_part(response_codec.unpacked_value(parts[1:], base.JournalPart))
            case ["journal ends"]:
                self._end_journal()
            case ["deliver", int(number), int(delivered)] if number in self._sinks:
                self._sinks[number].receive_profile(response_codec.unpacked_profile(parts[1:]), delivered)
            case _:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return None


def plain(rights: Rights | None) -> object:
    return None if rights is None else [rights.uid, sorted(rights.groups), rights.everything]


def rights_of(value: object) -> Rights | None:
    """Decode the rights with which a file is opened, from the plain values of a request.

    Raises:
        OSError: The value is invalid.
    """
    match value:
        case None:
            return None
        case [int(uid), list(groups), bool(everything)]:
            return Rights(uid, frozenset(map(int, groups)), everything)
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
