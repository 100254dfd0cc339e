"""`pyprof agent install`: the systemd unit that runs the agent, and its explanation."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from typing import BinaryIO

from pyprof.agent import systemd
from pyprof.agent.config import AgentConfig
from pyprof.errors import UsageError
from pyprof.exporters import output_file
from pyprof.objfile.byte_source import open_regular

_CONFIG = "/etc/pyprof/agent.toml"


def make_folder(path: str) -> None:
    os.makedirs(path, 0o700, exist_ok=True)


def install(
    config: AgentConfig, path: str | None, folder: str, make: Callable[[str], None] = make_folder
) -> Iterator[str]:
    """Write the agent's systemd unit into a folder, and yield lines that say what was done.

    Args:
        path: Path of the configuration.
        folder: Folder for the unit.
        make: Creates the spool's folder if it is not the default one, because the service does not create it.
    """
    if path is None:
        raise UsageError(
            "the service needs a configuration, which says whose processes it records",
            f"pyprof agent --print-config > {_CONFIG}, edit it, then: pyprof agent install --config {_CONFIG}",
        )
    command = [sys.executable, "-m", "pyprof", "agent", "--config", os.path.abspath(path), "--log", "json"]
    spool = os.path.abspath(config.values.path) if config.values.path else ""
    if spool:
        command += ["--spool", spool]
    folders = [target.values["path"] for target in config.pushes if target.kind == "folder"]
    hosts = [target.values["url"] for target in config.pushes if target.kind != "folder"]
    try:
        text = systemd.text(command, [spool, *folders] if spool else folders, bool(hosts), config.values.group)
    except ValueError as error:
        raise UsageError(str(error)) from None
    to = os.path.join(folder, systemd.NAME)
    try:
        _write(to, text)
        if spool:
            make(spool)
    except OSError as error:
        reason = "it was not written by pyprof" if error.errno == errno.EEXIST else error.strerror
        raise UsageError(f"{to} cannot be written: {reason}", "--unit-dir DIR writes it elsewhere") from None
    yield f"wrote {to}"
    yield f"  it runs: {' '.join(command)}"
    yield "  as root, with nothing of root's rights but:"
    yield from (f"    {name:20} {meaning}" for name, meaning in systemd.CAPABILITIES.items())
    reaches = f"may reach any host, to push to {', '.join(hosts)}" if hosts else "reaches no other host"
    yield f"  it writes to {', '.join([spool or '/var/lib/pyprof', *folders])} only, and {reaches}"
    if config.values.group:
        yield f"  members of {config.values.group} may ask it for recordings (pyprof agent record)"
    yield "  it has at most 500 MB, and little of the processors while others need them"
    yield "next: systemctl daemon-reload && systemctl enable --now pyprof-agent"


def _write(to: str, text: str) -> None:
    """Write the systemd unit file.

    Raises:
        OSError: Writing failed; EEXIST if there is a file that pyprof did not write.
    """
    if output_file.stat_entry(to) is not None:
        with open(open_regular(to), "rb") as file:
            known = file.read(len(systemd.MARK))
        if known != systemd.MARK.encode():
            raise FileExistsError(errno.EEXIST, "there is another file", to)

    def write(out: BinaryIO) -> None:
        os.fchmod(out.fileno(), 0o644)
        out.write(text.encode())

    output_file.replace_file(to, write)
