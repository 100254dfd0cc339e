"""The agent and the server as services of systemd: their units with rights and limits, and notifications.

See systemd.exec(5), systemd.service(5) and sd_notify(3). Without systemd no notification is sent.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress


class Notifier:
    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        usec = environment.get("WATCHDOG_USEC", "")
        mine = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._every = int(usec) / 2e6 if usec.isascii() and usec.isdigit() and mine else 0.0
        self._next = 0.0
        self._reported = frozenset[str]()

    def send(self, state: str) -> None:
        if self._address:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
                out.settimeout(1.0)
                out.sendto(state.encode(), self._address)

    def reloading(self) -> None:
        self.send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def report(self, reasons: Set[str]) -> None:
        """Send the names of the agent's present conditions to systemd as its status text (`systemctl status`), if they
        have changed.
        """
        if reasons != self._reported:
            self._reported = frozenset(reasons)
            self.send(f"STATUS={'failing: ' if reasons else 'ok'}{', '.join(sorted(reasons))}")

    def alive(self) -> None:
        """Notify systemd's watchdog if a notification is due. The main loop calls this more often than is needed."""
        if self._every and time.monotonic() >= self._next:
            self._next = time.monotonic() + self._every
            self.send("WATCHDOG=1")


AGENT_UNIT_NAME = "pyprof-agent.service"
AGENT_UNIT_MARK = "# Written by pyprof agent install; written anew by it.\n"
AGENT_CAPABILITIES = {
    "CAP_BPF": "load the program in the kernel that takes samples",
    "CAP_PERFMON": "attach it to the processors, and sample by perf_events",
    "CAP_SYS_PTRACE": "read the memory and the files of other users' processes",
    "CAP_DAC_READ_SEARCH": "read programs and libraries that only their owner may read",
}
"""Capabilities that an agent which runs as root keeps, and the purpose of each."""
_AGENT_UNIT = """\
[Unit]
Description=pyprof agent: continuous profiling of this host
After=local-fs.target

[Service]
Type=notify
ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec=10
WatchdogSec=60
TimeoutStopSec=15
# What it may cost others: little of the processor when that is short, and no more memory than this.
Nice=5
# So that the process that looks names up may leave SCHED_IDLE again (RLIMIT_NICE, sched(7)).
LimitNICE=+5
CPUWeight=20
MemoryHigh=400M
MemoryMax=500M
TasksMax=256
LimitNOFILE=1048576
# What it may do.
CapabilityBoundingSet={capabilities}
NoNewPrivileges=yes
{group}# What it may write.
StateDirectory=pyprof
UMask=0077
ProtectSystem=strict
{writable}ProtectHome=read-only
# What it needs no access to.
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
RestrictAddressFamilies={sockets}
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
# @debug: ptrace and perf_event_open; seccomp: for the process that parses.
SystemCallFilter=@system-service @debug bpf seccomp
SystemCallErrorNumber=EPERM
{addresses}
[Install]
WantedBy=multi-user.target
"""


def agent_unit(command: Sequence[str], folders: Sequence[str], pushes: bool, group: str = "") -> str:
    """Return the text of the agent's systemd unit.

    Args:
        command: Command line with absolute paths.
        folders: Folders that the agent writes to in addition to /var/lib/pyprof.
        pushes: True if the agent connects to other hosts.
        group: Group whose members may request recordings, "" for none.
    """
    writable = "".join(f"ReadWritePaths={quoted(folder)}\n" for folder in folders)
    sockets = "AF_UNIX AF_INET AF_INET6" if pushes else "AF_UNIX AF_INET"
    addresses = "" if pushes else "IPAddressDeny=any\nIPAddressAllow=localhost\n"
    words = " ".join(quoted(word).replace("$", "$$") for word in command)
    capabilities = " ".join(AGENT_CAPABILITIES)
    return AGENT_UNIT_MARK + _AGENT_UNIT.format(
        command=words,
        capabilities=capabilities,
        group=f"SupplementaryGroups={quoted(group)}\n" if group else "",
        writable=writable,
        sockets=sockets,
        addresses=addresses,
    )


def quoted(word: str) -> str:
    """Quote one word of a command for a systemd unit.

    Raises:
        ValueError: A unit cannot contain this word.
    """
    if not word.isprintable():
        raise ValueError(f"{word!r} cannot be written in a systemd unit")
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"' if set(escaped) & set(" '\";\\") or not escaped else escaped


SERVER_USER = "pyprof-server"
_SERVER_UNIT = """\
# Written by pyprof server --print-unit.
# It runs as a separate user: useradd --system --home-dir /nonexistent --shell /usr/sbin/nologin {user}
[Unit]
Description=pyprof server: the profiles of a fleet
After=network-online.target local-fs.target
Wants=network-online.target

[Service]
Type=notify
User={user}
Group={user}
ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec=5
TimeoutStopSec=90
LimitNOFILE=65536
TasksMax=1024
# What it may do.
CapabilityBoundingSet=
NoNewPrivileges=yes
# What it may write.
StateDirectory=pyprof-server
StateDirectoryMode=0750
UMask=0027
ProtectSystem=strict
{writable}ProtectHome=yes
PrivateTmp=yes
# What it needs no access to.
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service seccomp
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""


def server_unit(command: Sequence[str], folders: Sequence[str]) -> str:
    """Return the text of the server's systemd unit.

    Args:
        command: Command line with absolute paths.
        folders: Folders that the server writes to in addition to /var/lib/pyprof-server.

    Raises:
        ValueError: A path cannot be written in a unit.
    """
    writable = "".join(f"ReadWritePaths={quoted(folder)}\n" for folder in folders)
    words = " ".join(quoted(word).replace("$", "$$") for word in command)
    return _SERVER_UNIT.format(user=SERVER_USER, command=words, writable=writable)
