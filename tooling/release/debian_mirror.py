"""Finds the Debian mirror that this machine uses."""

from __future__ import annotations

import subprocess


def find_mirror() -> str:
    """Return the URL of the main archive in this machine's apt configuration, without a final slash.

    Raises:
        SystemExit: The configuration has no Debian archive.
    """
    command = ["apt-get", "indextargets", "--format", "$(SITE) $(COMPONENT) $(CODENAME)", "Created-By: Packages"]
    for line in subprocess.check_output(command, text=True).splitlines():
        site, component, codename = line.split()
        if component == "main" and not any(word in codename for word in ("security", "updates")):
            return site
    raise SystemExit("found no Debian archive in the apt configuration of this host")
