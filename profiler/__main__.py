"""`python -m pyprof` and the `pyprof` command."""

from __future__ import annotations

import gc
import signal
import sys

# all this comes before the rest is loaded, which takes long on a busy machine
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while we are still loading ends us without a traceback
if len(sys.argv) > 1:
    from pyprof.cli.startup import prepare

    prepare(sys.argv[1])

from pyprof.cli.main import run

GARBAGE = 20_000
"""So many new objects, and not 700, before Python looks for cycles: loading makes far more, and no cycles of size."""


def main() -> None:
    gc.set_threshold(GARBAGE)
    code = run(sys.argv[1:])
    gc.freeze()  # so that Python does not look through all there is at its end
    sys.exit(code)


if __name__ == "__main__":
    main()
