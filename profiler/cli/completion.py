"""`pyprof completion SHELL`: a completion script for the shell, made by shtab from the parser itself."""

from __future__ import annotations

import argparse
from typing import Any

from pyprof.cli.terminal_output import HelpFormatter


def add(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "completion",
        help="print a completion script for bash, zsh or tcsh",
        description="Print a completion script.\n\n  bash:  source <(pyprof completion bash)\n"
        "  zsh:   pyprof completion zsh > ~/.zfunc/_pyprof   (with fpath+=~/.zfunc before compinit)",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"))
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    import shtab

    from pyprof.cli.main import build_parser

    print(shtab.complete(build_parser(), arguments.shell))
    return 0
