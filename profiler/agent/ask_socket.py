"""The agent's socket: who may ask is decided here, how much anybody may send, and how many ask at once.

It stands in the spool's folder, under the spool's lock: what is found at its name was left by an agent that was killed.
Only root, the agent's user and the members of one group get through: by the socket's mode (0660), and by what the
kernel says of who has connected.
"""

from __future__ import annotations

import grp
import json
import math
import os
import select
import socket
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from pyprof.agent.asking import MOST_LINE, REFUSED, AskRefused, AskRequest, parse
from pyprof.agent.peers import Peer, peer_of
from pyprof.errors import UsageError

NAME = "agent.sock"
MOST_ASKERS = 8
REQUEST_S = 5.0
"""So long an asker has for its request, and for each line that it is sent."""
_ANSWER_S = 60.0
"""So long for all files that it is sent: two askers at most are answered at once."""
_MODE, _FOLDER_MODE = 0o660, 0o710


class Asker:
    """One that has connected. All methods raise OSError where it has gone, or does not read."""

    def __init__(self, connection: socket.socket, peer: Peer) -> None:
        self.peer = peer
        self._connection = connection
        self._until = math.inf

    def request(self) -> AskRequest:
        """Raises AskRefused."""
        until, found = time.monotonic() + REQUEST_S, b""
        while b"\n" not in found:
            self._connection.settimeout(max(until - time.monotonic(), 0.001))
            try:
                data = self._connection.recv(MOST_LINE + 1 - len(found))
            except TimeoutError:
                data = b""
            found += data
            if not data or len(found) > MOST_LINE:
                raise AskRefused("ask_malformed")
        return parse(found.partition(b"\n")[0])

    def say(self, **fields: object) -> None:
        self._connection.settimeout(REQUEST_S)
        self._connection.sendall(line_of(fields))

    def send(self, kind: str, data: bytes) -> None:
        self._until = min(self._until, time.monotonic() + _ANSWER_S)
        self.say(**{kind: len(data)})
        self._connection.settimeout(max(self._until - time.monotonic(), 0.001))
        self._connection.sendall(data)

    def wants_more(self, seconds: float) -> bool:
        """After so long, or as soon as it does not."""
        return not self._events(select.POLLIN | select.POLLRDHUP, seconds)

    def is_gone(self) -> bool:
        """Not only its half is closed."""
        return bool(self._events(0, 0) & (select.POLLHUP | select.POLLERR))

    def _events(self, wanted: int, seconds: float) -> int:
        poll = select.poll()
        poll.register(self._connection, wanted)
        return next((event for _, event in poll.poll(seconds * 1000)), 0)


def line_of(fields: dict[str, object]) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def folder_of(root: str) -> int:
    """A descriptor of the spool's folder, which may be one that its user cannot list. Raises OSError."""
    return os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def address(folder: int) -> str:
    """The socket by a name that is short enough, whatever the folder's is."""
    return f"/proc/self/fd/{folder}/{NAME}"


class AskSocket:
    """answer: does what is asked, in a thread of that asker; may raise AskRefused and OSError. outcome: is told how
    each one ended, "answered", "gone" or a reason. begin() comes first.
    """

    def __init__(
        self, answer: Callable[[AskRequest, Asker], None], outcome: Callable[[Peer | None, str], None]
    ) -> None:
        self._answer, self._outcome = answer, outcome
        self._group: int | None = None
        self._listener: socket.socket | None = None
        self._closing = False
        self._threads: dict[threading.Thread, socket.socket] = {}
        self._silent: dict[threading.Thread, socket.socket] = {}
        self._lock = threading.Lock()

    def begin(self, root: str, group: str) -> None:
        """root: the spool's folder. group: whose members may ask, "" for nobody's. Raises OSError, UsageError."""
        self._group = group_number(group) if group else None
        self._folder = folder_of(root)
        with suppress(FileNotFoundError):
            if stat.S_ISSOCK(os.stat(NAME, dir_fd=self._folder, follow_symlinks=False).st_mode):
                os.unlink(NAME, dir_fd=self._folder)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(address(self._folder))
            if self._group is not None:
                os.chown(NAME, -1, self._group, dir_fd=self._folder, follow_symlinks=False)
                os.chown(root, -1, self._group)
                os.chmod(root, _FOLDER_MODE)
            os.chmod(NAME, _MODE, dir_fd=self._folder)
            listener.listen(MOST_ASKERS)
        except OSError:
            listener.close()
            os.close(self._folder)
            raise
        self._listener = listener
        threading.Thread(target=self._listen, args=(listener,), name="pyprof socket", daemon=True).start()

    def close(self, until: float = 0.0) -> None:
        """until: so long (monotonic) those that are being answered are waited for."""
        with self._lock:
            self._closing = True
            taken_in = list(self._threads.items())
        if self._listener is None:
            return
        with suppress(OSError):
            os.unlink(NAME, dir_fd=self._folder)
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for thread, connection in taken_in:
            thread.join(max(until - time.monotonic(), 0))
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        os.close(self._folder)

    def _listen(self, listener: socket.socket) -> None:
        while not self._closing:
            try:
                connection, _ = listener.accept()
            except OSError:  # too many files, which passes; or it was closed
                time.sleep(0.2)
                continue
            if not self._taken_in(connection):
                self._refuse(connection, None, AskRefused("ask_busy"))
                connection.close()

    def _taken_in(self, connection: socket.socket) -> bool:
        """Served by a thread of its own. While many are, the one that has been silent for longest is hung up on."""
        thread = threading.Thread(target=self._serve, args=(connection,), name="pyprof asked", daemon=True)
        with self._lock:
            if self._closing:
                return False
            if len(self._threads) >= MOST_ASKERS:
                if not self._silent or len(self._threads) >= 2 * MOST_ASKERS:
                    return False
                with suppress(OSError):
                    self._silent.pop(next(iter(self._silent))).shutdown(socket.SHUT_RDWR)
            try:
                thread.start()
            except RuntimeError:  # there are too many, of all processes
                return False
            self._threads[thread] = self._silent[thread] = connection
        return True

    def _ended(self, thread: threading.Thread) -> None:
        with self._lock:
            self._silent.pop(thread, None)
            del self._threads[thread]

    def _serve(self, connection: socket.socket) -> None:
        peer = None
        try:
            with connection:
                peer = peer_of(connection)
                try:
                    if not peer.may_ask(self._group):
                        raise AskRefused("ask_not_allowed")
                    asker = Asker(connection, peer)
                    request = asker.request()
                    with self._lock:
                        self._silent.pop(threading.current_thread(), None)
                    self._answer(request, asker)
                    self._outcome(peer, "answered")
                except AskRefused as refused:
                    self._refuse(connection, peer, refused)
        except OSError:
            self._outcome(peer, "gone")
        finally:
            self._ended(threading.current_thread())

    def _refuse(self, connection: socket.socket, peer: Peer | None, refused: AskRefused) -> None:
        """The line fits into the socket: nobody is waited for."""
        self._outcome(peer, refused.reason)
        with suppress(OSError):
            connection.settimeout(0)
            connection.sendall(line_of({REFUSED: refused.reason, "text": refused.message}))


def group_number(group: str) -> int:
    """Raises UsageError."""
    try:
        return int(group) if group.isascii() and group.isdigit() else grp.getgrnam(group).gr_gid
    except (KeyError, ValueError):
        raise UsageError(f"there is no group {group!r}", "record.group names an existing one") from None
