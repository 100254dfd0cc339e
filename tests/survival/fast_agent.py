"""`python -m tests.survival.fast_agent SPOOL WORD TIMES`: run an agent with all configured times divided by TIMES.

It records processes with WORD in their command lines.
"""

from __future__ import annotations

import os
import signal
import sys

from pyprof.cli.signal_thread import listen
from pyprof.cli.terminal_output import Log
from pyprof.fleet.agent import config
from pyprof.fleet.agent.agent import Agent
from pyprof.fleet.agent.config import AgentConfig
from pyprof.fleet.systemd import Notifier
from pyprof.lazy_dataclasses import replace

DAYS_OF_AGE = 0.5
MAX_AGE_S = DAYS_OF_AGE * 86_400 / 100
MAX_BYTES = 3 << 20
_CONFIG = """\
[spool]
max_bytes = "{size}M"
[budget]
cpu = 60
[[rule]]
cmdline = "{word}"
service = "{{name}}"
"""


def loaded(spool: str, word: str, times: float) -> AgentConfig:
    found = config.parse(_CONFIG.format(word=word, size=MAX_BYTES >> 20), "fast")
    values = found.values
    shorter = replace(
        values,
        path=spool,
        every=values.every / times,
        durable=values.durable / times,
        over=values.over / times,
        last=values.last / times,
        max_age=DAYS_OF_AGE * 86_400 / times,
    )
    return replace(found, values=shorter)


def main(spool: str, word: str, times: str) -> None:
    log = Log(lambda text: print(text, file=sys.stderr, flush=True), True)
    agent = Agent(lambda: loaded(spool, word, float(times)), log, Notifier(os.environ))
    listen(lambda number: agent.reload() if number == signal.SIGHUP else agent.end())
    agent.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
