"""Files that have no name and stand in memory."""

from __future__ import annotations

import errno
import os

_NOEXEC_SEAL = 8
"""MFD_NOEXEC_SEAL (Linux 6.3): what is in it never runs as a program. A host may insist (vm.memfd_noexec = 2), and says
so in its log where none asks for it.
"""


def memory_file(name: str, sealing: bool = False) -> int:
    """A descriptor, closed on exec. sealing: it may be sealed. Raises OSError."""
    flags = os.MFD_CLOEXEC | (os.MFD_ALLOW_SEALING if sealing else 0)
    try:
        return os.memfd_create(name, flags | _NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create(name, flags)
