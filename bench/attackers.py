"""`python -m bench.attackers KIND PORT BODY`: a client that sends a server too much, until its input ends.

Kinds: `inflating` sends the file BODY repeatedly, at most twice a second. `flood` sends bodies of 16 MB on eight
connections without a pause, `new` the same with BODY. `stated` sends 1 GB at most twice a second and ignores the
response, `chunked` the same without a length. `slow` is 50 clients that send one byte a second. The number of responses
by status is written as JSON; 0 stands for no response.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from pyprof.fleet.wire.segment_names import SegmentName

_EVERY_S, _SLOW, _FLOOD = 0.5, 50, 8
_END_S = 5
"""Time in seconds to finish the current request when the attack ends."""
_GIGABYTE, _PIECE = 1 << 30, bytes(1 << 20)


class Sender:
    """A client that pushes segments to a server. Each sender needs a different service, so that no two segments have
    one name.
    """

    def __init__(self, port: int, service: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._service = service
        self._end_ns = time.time_ns() // 10**9 * 10**9

    def path(self) -> str:
        self._end_ns -= 1_000_000
        return f"/api/v1/segments/{SegmentName.new(self._service, self._end_ns).path}"

    def push(self, body: bytes) -> int:
        """Push a segment and return the HTTP status of the response."""
        path = self.path()
        try:
            return self._posted(path, body)
        except (http.client.HTTPException, ConnectionError):  # the server closes idle connections
            self._connection.close()
            return self._posted(path, body)

    def _posted(self, path: str, body: bytes) -> int:
        self._connection.request("POST", path, body)
        answer = self._connection.getresponse()
        answer.read()
        return answer.status


class Attack:
    """An attack on a server by too many, too large or too slow requests.

    Attributes:
        ends: Event that ends the attack.
        statuses: Number of responses by status.
    """

    def __init__(self, port: int, body: bytes) -> None:
        self._port, self._body = port, body
        self.ends = threading.Event()
        self.statuses = Counter[int]()

    def _again(self, send: Callable[[], int], every_s: float = _EVERY_S) -> None:
        while not self.ends.is_set():
            began = time.monotonic()
            try:
                self.statuses[send()] += 1
            except (OSError, http.client.HTTPException):
                self.statuses[0] += 1
            self.ends.wait(max(every_s - (time.monotonic() - began), 0))

    def inflating(self) -> None:
        sender = Sender(self._port, "large")
        self._again(lambda: sender.push(self._body))

    def flood(self) -> None:
        self._all_at_once(bytes(range(256)) * ((1 << 24) // 256))

    def new(self) -> None:
        self._all_at_once(self._body)

    def _all_at_once(self, body: bytes) -> None:
        def one(number: int) -> None:
            sender = Sender(self._port, f"flood-{number}")
            self._again(lambda: sender.push(body), 0.0)

        threads = [threading.Thread(target=one, args=(number,)) for number in range(_FLOOD)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def stated(self) -> None:
        self._again(lambda: self._gigabyte(f"Content-Length: {_GIGABYTE}", b"", b""))

    def chunked(self) -> None:
        self._again(lambda: self._gigabyte("Transfer-Encoding: chunked", b"%x\r\n" % len(_PIECE), b"\r\n"))

    def _gigabyte(self, length: str, before: bytes, after: bytes) -> int:
        head = f"POST {Sender(self._port, 'giga').path()} HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self._port), timeout=30) as client:
            client.sendall(head.encode())
            with contextlib.suppress(ConnectionError):
                for _ in range(_GIGABYTE // len(_PIECE)):
                    client.sendall(before + _PIECE + after)
                    if self.ends.is_set():
                        break
            found = client.recv(1000)
        return int(found.split()[1]) if found else 0

    def slow(self) -> None:
        clients = []
        for _ in range(_SLOW):
            client = socket.create_connection(("127.0.0.1", self._port))
            head = (
                f"POST {Sender(self._port, 'slow').path()} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
            )
            client.sendall(head.encode())
            clients.append(client)
        while not self.ends.wait(1):
            for client in clients:
                with contextlib.suppress(ConnectionError):
                    client.send(b"x")
        for client in clients:
            client.close()


def main() -> None:
    kind, port, body = sys.argv[1:]
    attack = Attack(int(port), Path(body).read_bytes())
    thread = threading.Thread(target=getattr(attack, kind))
    thread.start()
    sys.stdin.read()
    attack.ends.set()
    thread.join(_END_S)
    print(json.dumps(dict(attack.statuses)), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
