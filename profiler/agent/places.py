"""Where the agent's spool is, if nobody says."""

from __future__ import annotations

import os


def default_spool() -> str:
    """Of root the machine's; else the user's own."""
    if os.geteuid() == 0:
        return "/var/lib/pyprof/spool"
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(state, "pyprof", "spool")
