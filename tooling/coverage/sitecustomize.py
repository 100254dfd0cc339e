"""Coverage of what tests start (`make coverage`): each process of pyprof, and none of the programs that it looks at.

Python imports a module of this name when it starts, any version of it, if its folder is on PYTHONPATH.
"""

import os
import re
import sys

_OURS = re.compile(r"(^|/)pyprof$|^pyprof\b|\bimport pyprof\b|\bfrom pyprof\b|\bfrom tests\b")

if "COVERAGE_PROCESS_START" in os.environ and any(map(_OURS.search, getattr(sys, "orig_argv", ())[1:4])):
    import coverage

    coverage.process_startup()
