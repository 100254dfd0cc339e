"""The systemd unit of the server: its rights and its limits (systemd.exec(5), systemd.service(5))."""

from __future__ import annotations

from collections.abc import Sequence

from pyprof.agent.systemd import quoted

USER = "pyprof-server"
_TEXT = """\
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


def text(command: Sequence[str], folders: Sequence[str]) -> str:
    """Return the text of the server's systemd unit.

    Args:
        command: Command line with absolute paths.
        folders: Folders that it writes to in addition to /var/lib/pyprof-server.

    Raises:
        ValueError: A path cannot be written in a unit.
    """
    writable = "".join(f"ReadWritePaths={quoted(folder)}\n" for folder in folders)
    words = " ".join(quoted(word).replace("$", "$$") for word in command)
    return _TEXT.format(user=USER, command=words, writable=writable)
