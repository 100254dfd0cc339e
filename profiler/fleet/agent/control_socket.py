"""The agent's control socket: its protocol, its server with limits for clients, and its client.

A request is one line. Response lines follow, some of which announce a file.

    client  {"service": "checkout", "seconds": 30, "rate": 499, "mode": ""}
    agent   {"refused": "ask_busy", "text": "..."}               and nothing more, or
            {"recording": 3, "mode": "cpu", "last_s": 600}       number of processes; then, after the recording,
            {"kept": BYTES}                                      a recording file of a stored window, any number
            {"asked": BYTES}                                     the requested recording
            {"done": 1}

    client  {"state": 1}
    agent   {"state": BYTES}                                     the state of the agent as JSON: Agent.state()
            {"done": 1}

Lines are JSON objects. A client that closes its sending direction ends the recording and gets what there is. Each side
treats the other as hostile: lines and files have limits.

The socket is in the spool's folder, under the spool's lock: a socket that exists already was left by a killed agent.
Only root, the agent's user and the members of one group have access: by the socket's mode (0660), and by the kernel's
credentials of the peer (unix(7): SO_PEERCRED, SO_PEERGROUPS).
"""

from __future__ import annotations

import grp
import json
import math
import os
import select
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pyprof.errors import AccessDenied, FormatError, PyprofError, UsageError
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.fleet_loss_reasons import ASKS
from pyprof.options import MAX_RATE_HZ, SIMPLE_MODES

MAX_LINE = 4096
MAX_S = 300.0
MAX_TIMES = 150_000
"""Maximum number of sampling times of a requested recording: 300 s at 499 Hz."""
MAX_FILES, MAX_BYTES = 4096, 1 << 30
"""Maximum number of files in one response of the agent, and maximum total size of these files in bytes."""
REFUSED, RECORDING, KEPT, ASKED, STATE, DONE = "refused", "recording", "kept", "asked", "state", "done"
OUTCOMES = ("answered", "gone", *(reason.name for reason in ASKS))
"""Outcomes of requests at the agent's control socket, as its metrics count them: answered, gone, or a reason for
refusal.
"""
_SENTENCES = {reason.name: reason for reason in ASKS}


class ControlRefused(PyprofError):
    """The agent refuses a request. `reason` is the name of a row in the table fleet_loss_reasons.ASKS."""

    def __init__(self, reason: str, text: str = "") -> None:
        super().__init__(text or _SENTENCES[reason].sentence, _SENTENCES[reason].hint)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """A client's request for a recording of a service.

    Attributes:
        service: Name of the service.
        seconds: Length of the recording in seconds.
        rate: Samples per second.
        mode: Mode of the recording, "" for the first one in the rule of the agent's configuration.
    """

    service: str
    seconds: float
    rate: float
    mode: str = ""

    def line(self) -> bytes:
        asked = {"service": self.service, "seconds": self.seconds, "rate": self.rate, "mode": self.mode}
        return json.dumps(asked).encode() + b"\n"


class StateRequest:
    """A client's request for the state of the agent."""

    LINE = b'{"state": 1}\n'


def parse(line: bytes) -> ControlRequest | StateRequest:
    """Parse a request line of the agent's control socket.

    Raises:
        ControlRefused: The request is malformed, or asks for too much.
    """
    found = _object(line)
    if found == {STATE: 1}:
        return StateRequest()
    if found is None or not found.keys() <= {"service", "seconds", "rate", "mode"}:
        raise ControlRefused("ask_malformed")
    service, mode = found.get("service"), found.get("mode", "")
    if not isinstance(service, str) or not service or mode not in ("", *SIMPLE_MODES):
        raise ControlRefused("ask_malformed")
    seconds, rate = _number(found.get("seconds")), _number(found.get("rate"))
    if not 0 < seconds <= MAX_S:
        raise ControlRefused("ask_too_much", f"a requested recording lasts at most {MAX_S:.0f} s")
    if not 0 < rate <= MAX_RATE_HZ or seconds * rate > MAX_TIMES:
        raise ControlRefused("ask_too_much", f"one recording has at most {MAX_TIMES:,} sampling times")
    return ControlRequest(service, seconds, rate, mode)


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line) if len(line) <= MAX_LINE else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _number(value: object) -> float:
    """Return a number that a request states, and 0 if the value is no number."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9 else 0.0


@dataclass(frozen=True, slots=True)
class ControlResponse:
    """A response line of the agent's control socket.

    Attributes:
        kind: REFUSED, RECORDING, KEPT, ASKED, STATE or DONE.
        number: Number in the line.
        fields: All fields of the line.
        data: The file that follows a KEPT, ASKED or STATE line.
    """

    kind: str
    number: int
    fields: dict[str, Any]
    data: bytes = b""


def answers(line: Callable[[int], bytes], read: Callable[[int], bytes]) -> Iterator[ControlResponse]:
    """Read the lines of the agent's response, and yield each, up to the line that ends it.

    Args:
        line: Function that reads a line of at most the given number of bytes, including its end.
        read: Function that reads the given number of bytes.

    Raises:
        ControlRefused: The agent refused the request.
        FormatError: The response is malformed or ends early.
    """
    files = total = 0
    while True:
        text = line(MAX_LINE)
        found = _object(text)
        if found is None or not text.endswith(b"\n"):
            raise FormatError("answer", total, "the agent ended the connection" if not text else "no answer")
        if REFUSED in found:
            raise _refusal(found)
        kind = next((kind for kind in (RECORDING, KEPT, ASKED, STATE, DONE) if kind in found), "")
        number = found.get(kind)
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise FormatError("answer", total, "no answer")
        data = b""
        if kind in (KEPT, ASKED, STATE):
            files, total = files + 1, total + number
            if files > MAX_FILES or total > MAX_BYTES:
                raise FormatError("answer", total, "the answer is too long")
            data = read(number)
            if len(data) < number:
                raise FormatError("answer", total, "the agent ended the connection")
        yield ControlResponse(kind, number, found, data)
        if kind == DONE:
            return


def _refusal(found: dict[str, Any]) -> ControlRefused:
    """Return the refusal that a response of the agent states, as an exception. The agent may be newer than this client
    and state a reason that the client does not know.
    """
    word = found[REFUSED]
    reason = word if isinstance(word, str) and word in _SENTENCES else "ask_failed"
    return ControlRefused(reason, str(found.get("text", ""))[:MAX_LINE])


NAME = "agent.sock"
MAX_ASKERS = 8
REQUEST_S = 5.0
"""Time in seconds that a client of the control socket has to send its request, and to read each line."""
_ANSWER_S = 60.0
"""Time in seconds that a client of the control socket has to read all files of a response. At most two clients are
served at once.
"""
_MODE, _FOLDER_MODE = 0o660, 0o710
_SO_PEERGROUPS = 59
"""Number of the socket option SO_PEERGROUPS from asm-generic/socket.h. Python's socket module does not define it."""
_CREDENTIALS, _MOST = struct.Struct("iII"), 1024
_ROOT = 0


class ControlClient:
    """The server's side of a connection to one client of the agent's control socket. All methods raise OSError if the
    client has disconnected or does not read.
    """

    def __init__(self, connection: socket.socket, peer: Peer) -> None:
        self.peer = peer
        self._connection = connection
        self._until = math.inf

    def request(self) -> ControlRequest | StateRequest:
        """Read the request of a client of the control socket.

        Raises:
            ControlRefused: The request is malformed or late.
        """
        until, found = time.monotonic() + REQUEST_S, b""
        while b"\n" not in found:
            self._connection.settimeout(max(until - time.monotonic(), 0.001))
            try:
                data = self._connection.recv(MAX_LINE + 1 - len(found))
            except TimeoutError:
                data = b""
            found += data
            if not data or len(found) > MAX_LINE:
                raise ControlRefused("ask_malformed")
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
        """Wait some seconds, and return True if the client still wants data then. Return False as soon as the client
        closes its sending direction.
        """
        return not self._events(select.POLLIN | select.POLLRDHUP, seconds)

    def is_gone(self) -> bool:
        """Return True if both directions of the client's connection are closed, not only its sending one."""
        return bool(self._events(0, 0) & (select.POLLHUP | select.POLLERR))

    def _events(self, wanted: int, seconds: float) -> int:
        poll = select.poll()
        poll.register(self._connection, wanted)
        return next((event for _, event in poll.poll(seconds * 1000)), 0)


def line_of(fields: dict[str, object]) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def folder_of(root: str) -> int:
    """Open the spool's folder and return its descriptor (O_PATH). The calling user may be unable to list the folder.

    Raises:
        OSError: The folder cannot be opened.
    """
    return os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def address(folder: int) -> str:
    """Return a path of the control socket through the descriptor of its folder. It always fits into a socket address,
    however long the path of the folder is.
    """
    return f"/proc/self/fd/{folder}/{NAME}"


class ControlSocket:
    """The agent's listening control socket. begin() must be called first."""

    def __init__(
        self,
        answer: Callable[[ControlRequest, ControlClient], None],
        outcome: Callable[[Peer | None, str], None],
        state: Callable[[], bytes] = lambda: b"{}",
    ) -> None:
        """Create the control socket of an agent. begin() opens it.

        Args:
            answer: Function that serves a request, in a thread for the client; may raise ControlRefused and OSError.
            outcome: Function that receives the outcome of each request for a recording: "answered", "gone" (the client
                disconnected) or a reason for refusal.
            state: Function that returns the state of the agent as JSON.
        """
        self._answer, self._outcome, self._state = answer, outcome, state
        self._group: int | None = None
        self._listener: socket.socket | None = None
        self._closing = False
        self._threads: dict[threading.Thread, socket.socket] = {}
        self._silent: dict[threading.Thread, socket.socket] = {}
        self._lock = threading.Lock()

    def begin(self, root: str, group: str) -> None:
        """Listen at the control socket for requests to the agent. A second call replaces the socket of the first.

        Args:
            root: Folder of the spool.
            group: Group whose members may make requests, "" for none.

        Raises:
            OSError: The socket cannot be created.
            UsageError: The group does not exist.
        """
        self._group = group_number(group) if group else None
        self._stop_listening()
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
            listener.listen(MAX_ASKERS)
        except OSError:
            listener.close()
            os.close(self._folder)
            raise
        self._listener = listener
        threading.Thread(target=self._listen, args=(listener,), name="pyprof socket", daemon=True).start()

    def is_removed(self) -> bool:
        """Return True if the agent listens and something has removed the socket's file."""
        if self._listener is None:
            return False
        try:
            os.stat(NAME, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            return True
        return False

    def close(self, until: float = 0.0) -> None:
        """Stop listening at the control socket. Wait, at most until a monotonic time, for clients that are being
        served.
        """
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
        self._stop_listening()

    def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            os.close(self._folder)

    def _listen(self, listener: socket.socket) -> None:
        while not self._closing and self._listener is listener:
            try:
                connection, _ = listener.accept()
            except OSError:  # too many open files, which is temporary; or the listener was closed
                time.sleep(0.2)
                continue
            if not self._taken_in(connection):
                self._refuse(connection, None, ControlRefused("ask_busy"))
                connection.close()

    def _taken_in(self, connection: socket.socket) -> bool:
        """Begin to serve a new client of the control socket in a separate thread. Return False if that is impossible
        because too many clients are served.

        If many are served, the client that has been silent for longest is disconnected.
        """
        thread = threading.Thread(target=self._serve, args=(connection,), name="pyprof asked", daemon=True)
        with self._lock:
            if self._closing:
                return False
            if len(self._threads) >= MAX_ASKERS:
                if not self._silent or len(self._threads) >= 2 * MAX_ASKERS:
                    return False
                with suppress(OSError):
                    self._silent.pop(next(iter(self._silent))).shutdown(socket.SHUT_RDWR)
            try:
                thread.start()
            except RuntimeError:  # there are too many threads on the machine
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
                        raise ControlRefused("ask_not_allowed")
                    asker = ControlClient(connection, peer)
                    request = asker.request()
                    with self._lock:
                        self._silent.pop(threading.current_thread(), None)
                    if isinstance(request, StateRequest):
                        asker.send(STATE, self._state())
                        asker.say(done=1)
                        return
                    self._answer(request, asker)
                    self._outcome(peer, "answered")
                except ControlRefused as refused:
                    self._refuse(connection, peer, refused)
        except OSError:
            self._outcome(peer, "gone")
        finally:
            self._ended(threading.current_thread())

    def _refuse(self, connection: socket.socket, peer: Peer | None, refused: ControlRefused) -> None:
        """Send a refusal to a client. The line fits into the socket's buffer, so this does not wait."""
        self._outcome(peer, refused.reason)
        with suppress(OSError):
            connection.settimeout(0)
            connection.sendall(line_of({REFUSED: refused.reason, "text": refused.message}))


def group_number(group: str) -> int:
    """Return the number of a user group of the system.

    Raises:
        UsageError: The group does not exist.
    """
    try:
        return int(group) if group.isascii() and group.isdigit() else grp.getgrnam(group).gr_gid
    except (KeyError, ValueError):
        raise UsageError(f"there is no group {group!r}", "set record.group to an existing group") from None


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that connected to a local socket, as it was at that time. Its groups include its gid."""

    pid: int
    uid: int
    groups: frozenset[int]

    def may_ask(self, group: int | None) -> bool:
        """Return True if the connected process may make requests, because its user is root, this process's user or in
        the given group.
        """
        return self.uid in (_ROOT, os.geteuid()) or group in self.groups


def peer_of(connection: socket.socket) -> Peer:
    """Return the process and user at the other end of a local socket.

    Raises:
        OSError: The kernel does not state the process.
    """
    pid, uid, gid = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    try:
        packed = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST)
    except OSError:  # more than 256 groups, or a kernel before 4.13: use only the gid
        packed = b""
    return Peer(pid, uid, frozenset((gid, *(group for (group,) in struct.iter_unpack("I", packed)))))


class NoAgent(PyprofError):
    """No agent that uses this spool is running."""


@contextmanager
def connected(root: str) -> Iterator[socket.socket]:
    """Connect to the running agent's control socket, and yield the connection.

    Raises:
        PyprofError: There is no agent, or it may not be used.
    """
    try:
        folder = folder_of(root)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            try:
                connection.connect(address(folder))
            finally:
                os.close(folder)
            yield connection
    except PermissionError:
        hint = "run it as a member of record.group in the agent's configuration, as the agent's user, or as root"
        raise AccessDenied(f"{root}/{NAME} may not be used by this user", hint) from None
    except (FileNotFoundError, ConnectionRefusedError):
        raise NoAgent(
            f"no agent answers in {root}", "start pyprof agent, or name its spool: --spool DIR or --config FILE"
        ) from None
    except TimeoutError:
        raise PyprofError("the agent does not answer") from None
    except OSError as error:
        raise PyprofError(f"cannot connect to the agent: {error.strerror or error}") from None


def agent_state(root: str) -> dict[str, Any]:
    """Return the state of the agent that runs on a spool, as JSON (see Agent.state()).

    Raises:
        NoAgent: No agent runs.
        PyprofError: The agent may not be used, or its answer is wrong.
    """
    import orjson

    with connected(root) as connection:
        connection.settimeout(REQUEST_S)
        connection.sendall(StateRequest.LINE)
        try:
            with connection.makefile("rb") as lines:
                data = [answer.data for answer in answers(lines.readline, lines.read) if answer.kind == STATE]
            found = orjson.loads(data[0]) if data else None
        except (FormatError, orjson.JSONDecodeError):
            found = None
    if not isinstance(found, dict) or not {"status", "failures", "budget"} <= found.keys():
        raise PyprofError("the agent's response has no status", "use an agent and a command of the same version")
    return found
