"""`python -m pyprof` and the `pyprof` command."""

from __future__ import annotations

import sys

from pyprof.cli.main import run


def main() -> None:
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
