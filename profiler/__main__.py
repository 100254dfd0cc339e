"""Entry point of `python -m pyprof` and of the `pyprof` command."""

from __future__ import annotations

import gc
import signal
import sys

# this comes before all other imports, which take long on a busy machine
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during the imports ends the process without a traceback
if len(sys.argv) > 1:
    from pyprof.cli.before_imports import prepare

    prepare(sys.argv[1])

from pyprof.cli.main import run


def main() -> None:
    code = run(sys.argv[1:])
    gc.freeze()  # avoids a search for garbage in all objects at exit
    sys.exit(code)


if __name__ == "__main__":
    main()
