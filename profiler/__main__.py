"""Entry point of `python -m pyprof` and of the `pyprof` command."""

from __future__ import annotations

import _signal  # signal imports enum

# this comes before all other imports, which take long on a busy machine
if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # Ctrl-C during the imports ends the process without a traceback

import sys

if sys.argv[1:2] == ["record"]:
    _signal.pthread_sigmask(_signal.SIG_BLOCK, (_signal.SIGUSR1,))  # interrupts.listen() handles it

import gc

if len(sys.argv) > 1:
    from pyprof.cli.accelerated_start import prepare

    prepare(sys.argv[1:])

from pyprof.cli.main import run


def main() -> None:
    code = run(sys.argv[1:])
    gc.freeze()  # avoids a search for garbage in all objects at exit
    sys.exit(code)


if __name__ == "__main__":
    main()
