"""`python -m tests.replay record|accept [NAME...]`: recreate the saved recordings, or their expected outputs."""

from __future__ import annotations

import sys

from tests.replay.expected import EXPECTED, as_text
from tests.replay.playing import LOGS, outputs, unpacked
from tests.replay.record import SCENES, record


def accept(name: str) -> None:
    log = LOGS / f"{name}.zip"
    with unpacked(log) as files:
        (EXPECTED / f"{name}.txt").write_text(as_text(outputs(log, files)))


def main(action: str, *names: str) -> None:
    for name in names or SCENES:
        if action == "record":
            print(record(name))
        accept(name)


if __name__ == "__main__":
    main(*sys.argv[1:])
