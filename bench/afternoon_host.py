"""The host of the benchmark bench.operators_afternoon: five services, an agent, and a server in a network namespace.

The services record their own processor time (targets/clocked_service.*). The server runs in a network namespace, so
that packets can be dropped, and its store is a ClickHouse server. The spool and the server's data have small disks
(tmpfs).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.targets import SOURCES
from pyprof.fleet import systemd as agent_unit
from pyprof.fleet import systemd as server_unit
from pyprof.lazy_dataclasses import dataclass, field
from tests.agent import unit_filter
from tests.server.cluster import CONFIG as STORE_CONFIG
from tests.server.cluster import SHARD, USERS
from tests.server.test_agent_clock_steps import library

SERVICES = ("web", "batch", "node", "perl", "native")
AGENT_ADDRESS, SERVER_ADDRESS, SERVER_PORT, AGENT_PORT = "10.57.0.1", "10.57.0.2", 4242, 9857
STORE_PORT, STORE_PASSWORD = 8123, "afternoon"
WRITE_TOKEN, READ_TOKEN = "write-of-the-afternoon", "read-of-the-afternoon"
WINDOW_S = 10
_REQUEST_S = 0.02
_START_S = 300
_DISK = "48m"
_AGENT = """\
[spool]
path = "{folder}/spool/data"
[windows]
every = "{window}s"
durable = "3s"
[budget]
cpu = {cpu}
over = "20s"
[http]
port = {port}
[labels]
host = "afternoon"
[[rule]]
cmdline = "{folder}/clock/"
service = "{{env:SERVICE}}"
[[push]]
name = "fleet"
type = "pyprof"
url = "{url}"
token_file = "{folder}/push.token"
timeout = "10s"
"""
_SERVER = """\
[server]
host = "{address}"
port = {port}
data = "{folder}/disk/data"
store = "clickhouse://default@127.0.0.1:{store}/pyprof"
store_password_file = "{folder}/store.password"
[[tenant]]
name = "staging"
write_token_file = "{folder}/write.token"
read_token_file = "{folder}/read.token"
"""
URL = f"http://{SERVER_ADDRESS}:{SERVER_PORT}"


def fetch(url: str, token: str = "", timeout: float = 5.0) -> tuple[int, str]:
    """Return the status and the body of an HTTP page. The status is 0 if there is no answer."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except (OSError, http.client.HTTPException):
        return 0, ""


@dataclass
class Seen:
    """The names of failures that the agent or the server has shown in one part of the benchmark, by the place where
    they were visible.

    Attributes:
        log, metric, health: Reasons, causes and events in the log, in the metric `failing`, and in /healthz.
        statuses: Statuses of the pages /healthz and /readyz, as "/readyz 503".
    """

    log: set[str] = field(default_factory=set)
    metric: set[str] = field(default_factory=set)
    health: set[str] = field(default_factory=set)
    statuses: set[str] = field(default_factory=set)


class Program:
    """A running agent or server: its process, its log, and its pages."""

    def __init__(self, command: list[str], log: Path, url: str, token: str) -> None:
        self._command, self.log, self.url, self._token = command, log, url, token
        self.process: subprocess.Popen[bytes] | None = None
        self.seen = Seen()
        self._read = 0

    def forget(self) -> None:
        """Begin a new part of the benchmark, for which no failure has been seen yet."""
        self.look()
        self.seen = Seen()

    def start(self, **environment: str) -> None:
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(self._command, stderr=out, env={**os.environ, **environment})
        until(lambda: fetch(f"{self.url}/healthz")[0], _START_S, f"{self._command[0]} answers, see {self.log}")

    def stop(self, number: int) -> None:
        """Send a signal to the agent or server, and wait for the end of its process."""
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(120)

    def look(self) -> None:
        """Read the log and the pages, and add the names of failures in them to those that were seen."""
        with self.log.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        self._read += text.rfind(b"\n") + 1
        for line in text[: text.rfind(b"\n") + 1].decode().splitlines():
            found = json.loads(line) if line.startswith("{") else {"level": "error", "event": f"no JSON: {line}"}
            if found["level"] != "info" or found["event"] in ("started", "files indexed"):
                self.seen.log |= {str(found[key]) for key in ("event", "reason", "cause", "client") if key in found}
        for page in ("/healthz", "/readyz"):
            status, body = fetch(f"{self.url}{page}")
            self.seen.statuses.add(f"{page} {status}")
            for failure in json.loads(body)["failures"] if body.startswith("{") else []:
                self.seen.health |= {failure[key] for key in ("reason", "cause") if key in failure}
        metrics = fetch(f"{self.url}/metrics", self._token)[1]
        self.seen.metric |= set(re.findall(r'_failing\{reason="(\w+)"\} 1', metrics))
        self.seen.metric |= set(re.findall(r"(windows_without_file) [1-9]", metrics))


def until(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Wait until a condition holds, at most for a given time.

    Raises:
        TimeoutError: The condition did not hold within this time.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {seconds:.0f} s still not: {what}")
        time.sleep(0.2)


class Host:
    """The services, the agent and the server of the benchmark, in a folder. Agent and server run with the system calls
    and capabilities that their systemd units permit.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.namespace = f"pyprof-{os.getpid()}"
        inside = ["ip", "netns", "exec", self.namespace]
        agent, server = (self._command(name) for name in ("agent", "server"))
        self.server = Program([*inside, *server], folder / "server.log", URL, READ_TOKEN)
        self.agent = Program(agent, folder / "agent.log", f"http://127.0.0.1:{AGENT_PORT}", "")
        self._store_command = [*inside, "clickhouse-server", f"--config-file={folder}/store/config.xml"]
        self.store: subprocess.Popen[bytes] | None = None
        self._services: list[subprocess.Popen[bytes]] = []
        self._ended = threading.Event()

    def _command(self, name: str) -> list[str]:
        unit, config = self.folder / f"{name}.service", self.folder / f"{name}.toml"
        own = [sys.executable, "-m", "pyprof", name, "--config", str(config), "--log", "json"]
        return [sys.executable, unit_filter.__file__, str(unit), *own]

    @contextlib.contextmanager
    def running(self) -> Iterator[Host]:
        """Start the services, the agent and the server, and end them when the context is left."""
        with contextlib.ExitStack() as stack:
            for name, where in (("spool", "spool"), ("disk", "disk")):
                (self.folder / where).mkdir()
                run("mount", "-t", "tmpfs", "-o", f"size={_DISK},mode=755", name, str(self.folder / where))
                stack.callback(run, "umount", "-l", str(self.folder / where))
            self._lay_network()
            stack.callback(run, "ip", "netns", "del", self.namespace)
            stack.callback(self._end)
            self._write_files()
            self._start_services()
            self.start_store()
            self.server.start()
            self.agent.start()
            yield self

    def write_agent_config(self, cpu: float = 3.0, url: str = URL, more: str = "") -> None:
        text = _AGENT.format(folder=self.folder, window=WINDOW_S, cpu=cpu, port=AGENT_PORT, url=url)
        (self.folder / "agent.toml").write_text(text + more)

    def write_push_token(self, token: str, mode: int = 0o600) -> None:
        path = self.folder / "push.token"
        path.write_text(f"{token}\n")
        path.chmod(mode)

    def start_store(self) -> None:
        self.store = subprocess.Popen(self._store_command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        ping = ["ip", "netns", "exec", self.namespace, sys.executable, "-c", _PING.format(port=STORE_PORT)]
        until(lambda: subprocess.run(ping, stderr=subprocess.DEVNULL).returncode == 0, _START_S, "ClickHouse answers")

    def faked_clock(self) -> dict[str, str]:
        """Return the environment variables with which libfaketime sets an agent's wall clock by the file `offset`."""
        offset = self.folder / "offset"
        offset.write_text("+0\n")
        return {
            "LD_PRELOAD": library(),
            "FAKETIME_TIMESTAMP_FILE": str(offset),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }

    def _lay_network(self) -> None:
        name, (here, there) = self.namespace, (f"a{os.getpid()}", f"b{os.getpid()}")
        run("ip", "netns", "add", name)
        run("ip", "link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
        run("ip", "addr", "add", f"{AGENT_ADDRESS}/30", "dev", here)
        run("ip", "link", "set", here, "up")
        run("ip", "-n", name, "addr", "add", f"{SERVER_ADDRESS}/30", "dev", there)
        run("ip", "-n", name, "link", "set", there, "up")
        run("ip", "-n", name, "link", "set", "lo", "up")

    def _write_files(self) -> None:
        store, names = self.folder / "store", {"write": WRITE_TOKEN, "read": READ_TOKEN}
        for name in ("data", "empty"):
            (store / name).mkdir(parents=True)
        shard = SHARD.format(tcp=STORE_PORT + 1)
        text = STORE_CONFIG.format(folder=store, http=STORE_PORT, tcp=STORE_PORT + 1, shards=shard)
        (store / "config.xml").write_text(text)
        (store / "users.xml").write_text(USERS.replace("<password>", f"<password>{STORE_PASSWORD}"))
        secrets = {**{f"{name}.token": text for name, text in names.items()}, "store.password": STORE_PASSWORD}
        for name, text in secrets.items():
            (self.folder / name).write_text(f"{text}\n")
            (self.folder / name).chmod(0o600)
        server = _SERVER.format(address=SERVER_ADDRESS, port=SERVER_PORT, folder=self.folder, store=STORE_PORT)
        (self.folder / "server.toml").write_text(server)
        (self.folder / "agent.service").write_text(agent_unit.agent_unit(["pyprof"], (), pushes=True))
        (self.folder / "server.service").write_text(server_unit.server_unit(["pyprof"], ()))
        self.write_agent_config()
        self.write_push_token(WRITE_TOKEN)

    def _start_services(self) -> None:
        clock, script = self.folder / "clock", SOURCES / "clocked_service"
        clock.mkdir()
        binary = self.folder / "native"
        run("cc", "-O2", "-g", "-o", str(binary), f"{script}.c")
        commands = {
            "web": [sys.executable, f"{script}.py", f"{clock}/web", "web"],
            "batch": [sys.executable, f"{script}.py", f"{clock}/batch", "batch"],
            "node": ["node", f"{script}.js", f"{clock}/node"],
            "perl": ["perl", f"{script}.pl", f"{clock}/perl"],
            "native": [str(binary), f"{clock}/native"],
        }
        for name, command in commands.items():
            self._services.append(subprocess.Popen(command, env={**os.environ, "SERVICE": name}))
        until((clock / "web.port").exists, _START_S, "the service web listens")
        threading.Thread(target=self._ask_web, args=((clock / "web.port").read_text(),), daemon=True).start()

    def _ask_web(self, port: str) -> None:
        while not self._ended.wait(_REQUEST_S):
            fetch(f"http://127.0.0.1:{port}/")

    def _end(self) -> None:
        self._ended.set()
        for process in (*self._services, self.agent.process, self.server.process, self.store):
            if process is not None:
                process.kill()
                process.wait()


_PING = "import socket; socket.create_connection(('127.0.0.1', {port}), 2)"


def run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=60)


def fill(disk: Path) -> None:
    """Fill a small disk with a file, so that other programs find it full."""
    with contextlib.suppress(OSError), (disk / "others").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def empty(disk: Path) -> None:
    (disk / "others").unlink()


def copy_files(source: Path, target: Path) -> None:
    """Replace a folder by a copy of another one. Files that are deleted during the copy are left out."""
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-a", str(source), str(target)], timeout=60)
