"""gdb stubs: gdbserver, qemu-user, qemu-system-arm, and a relay through which several debuggers see one state."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyprof.collectors.gdb_stub.remote_serial import PacketKind, PacketLink, PacketReader, build_packet
from tests.support import need


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        port: int = listener.getsockname()[1]
        return port


def _listens(port: int, process: subprocess.Popen[bytes]) -> bool:
    """Return True if a process listens on the port, from /proc/net/tcp.

    A test connection would be the stub's only one.
    """
    del process
    wanted = f":{port:04X} "
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table) as lines:
            if any(wanted in line and " 0A " in line for line in lines):
                return True
    return False


@contextmanager
def stub_process(command: Sequence[str | Path], port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a stub and wait until it listens. Its output is discarded.

    On some processors gdbserver 13 prints a warning whenever a thread resumes, and would block if no process read it.
    """
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen([str(word) for word in command], stdin=nowhere, stdout=nowhere, stderr=nowhere)
    try:
        deadline = time.monotonic() + 30
        while not _listens(port, process):
            assert process.poll() is None, f"{command} ended"
            assert time.monotonic() < deadline, f"{command} does not listen"
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.wait(timeout=30)


@contextmanager
def gdbserver(pid: int) -> Iterator[str]:
    """Attach gdbserver to a process and yield its address."""
    port = free_port()
    with stub_process([need("gdbserver"), "--attach", f"localhost:{port}", str(pid)], port):
        yield f"localhost:{port}"


@contextmanager
def qemu_user(emulator: str, program: Path, *arguments: str) -> Iterator[str]:
    """Start a program in qemu-user, stopped at its first instruction, and yield the stub's address."""
    port = free_port()
    triplet = {
        "qemu-aarch64": "aarch64",
        "qemu-s390x": "s390x",
        "qemu-ppc64le": "powerpc64le",
        "qemu-riscv64": "riscv64",
    }
    library = f"/usr/{triplet[emulator]}-linux-gnu" if emulator in triplet else "/usr/arm-linux-gnueabihf"
    with stub_process([need(emulator), "-L", library, "-g", str(port), program, *arguments], port):
        yield f"localhost:{port}"


@contextmanager
def qemu_system_arm(program: Path) -> Iterator[str]:
    """Run a program on an emulated Cortex-M3 board and yield the stub's address."""
    port = free_port()
    machine = ["-M", "lm3s6965evb", "-display", "none", "-serial", "none", "-monitor", "none"]
    with stub_process([need("qemu-system-arm"), *machine, "-kernel", program, "-gdb", f"tcp:localhost:{port}"], port):
        yield f"localhost:{port}"


class Relay:
    """A relay in front of a stub whose target is stopped. It serves one debugger after another.

    The relay itself answers detach and kill, so that a debugger's exit does not change the target.
    """

    def __init__(self, address: str, hidden: Sequence[str]) -> None:
        """Connect to the stub.

        Args:
            address: Address of the stub.
            hidden: Requests that are answered as unsupported.
        """
        self._hidden = tuple(name.encode() for name in hidden)
        self.upstream = PacketLink.connect(address)
        self.upstream.acknowledge()
        self.upstream.request(b"qSupported:multiprocess+;xmlRegisters=i386;vContSupported+")
        self.upstream.request(b"?")
        self._listener = socket.create_server(("localhost", 0))
        self.address = f"localhost:{self._listener.getsockname()[1]}"
        self.asked: list[bytes] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def run_to(self, avma: int, kind: int) -> None:
        """Let the target run to an address.

        Args:
            avma: The address.
            kind: Size of the instruction there in bytes.
        """
        assert self.upstream.request(b"Z0,%x,%x" % (avma, kind)) == b"OK"
        stop = self._go_on(b"vCont;c")
        while stop.startswith((b"T1e", b"T1f")):  # the program handles SIGUSR1 and SIGUSR2
            stop = self._go_on(b"vCont;C" + stop[1:3])
        assert stop.startswith(b"T05"), stop
        assert self.upstream.request(b"z0,%x,%x" % (avma, kind)) == b"OK"

    def _go_on(self, how: bytes) -> bytes:
        self.upstream.send(how)
        return self.upstream.receive(30)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, contextlib.suppress(OSError):
                client.settimeout(60)
                self._one(client)

    def _one(self, client: socket.socket) -> None:
        reader = PacketReader()
        while data := client.recv(1 << 16):
            reader.feed_bytes(data)
            while (found := reader.next_item()) is not None:
                if found.kind is not PacketKind.PACKET:
                    continue
                self.asked.append(found.payload)
                reply = self._reply(found.payload)
                client.sendall(b"+" + build_packet(reply))

    def _reply(self, payload: bytes) -> bytes:
        if payload[:1] in (b"D", b"k") or payload.startswith(b"vKill"):
            return b"OK"
        if payload.startswith((b"QStartNoAckMode", *self._hidden)):
            return b""
        self.upstream.send(payload)
        reply = self.upstream.receive(30)
        if payload.startswith(b"qSupported"):
            items = reply.split(b";")
            reply = b";".join(i for i in items if not i.startswith((b"QStartNoAckMode", *self._hidden)))
        return reply

    def close(self) -> None:
        self._listener.close()
        self.upstream.close()


@contextmanager
def relay(address: str, *hidden: str) -> Iterator[Relay]:
    made = Relay(address, hidden)
    try:
        yield made
    finally:
        made.close()
