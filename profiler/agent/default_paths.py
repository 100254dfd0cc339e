"""The default folder of the agent's spool."""

from __future__ import annotations

import os


def default_spool() -> str:
    """Return the default folder of the agent's spool: the machine's folder for root, and the user's own folder for
    other users.
    """
    if os.geteuid() == 0:
        return "/var/lib/pyprof/spool"
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(state, "pyprof", "spool")
