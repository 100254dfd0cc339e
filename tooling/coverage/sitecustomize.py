"""Starts coverage in the processes that tests start (`make coverage`): in those of pyprof, but in none of the programs
that pyprof profiles.

Any version of Python imports a module of this name when it starts, if the module's folder is on PYTHONPATH.
"""

import os
import re
import sys

_OURS = re.compile(r"(^|/)pyprof$|^pyprof\b|\bimport pyprof\b|\bfrom pyprof\b|\bfrom tests\b")

if "COVERAGE_PROCESS_START" in os.environ and any(map(_OURS.search, getattr(sys, "orig_argv", ())[1:4])):
    import coverage

    coverage.process_startup()
