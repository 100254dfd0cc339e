"""Python above C above Python, in two threads: callbacks, generators, recursion, a C extension of the library."""

import json
import re
import threading
import zlib


def key(number: int) -> int:
    return -(number * 7919 % 1013)


def squares(top: int):
    for number in range(top):
        yield number * number


def recursion(depth: int) -> int:
    return recursion(depth - 1) + 1 if depth else sum(squares(300))


class Table:
    def __init__(self) -> None:
        self.rows = [{"n": n, "text": "x" * (n % 40)} for n in range(200)]

    def dumped(self) -> str:
        return json.dumps(self.rows, default=str)

    def ordered(self) -> list[int]:
        return sorted(range(800), key=key)


def packing() -> None:
    data = b"the quick brown fox" * 4000
    while True:
        zlib.compress(data, 6)
        re.sub(rb"[aeiou]+", lambda found: found[0].upper(), data[:4000])


def main() -> None:
    threading.Thread(target=packing, name="packer", daemon=True).start()
    print("ready", flush=True)
    table = Table()
    while True:
        recursion(40)
        table.dumped()
        table.ordered()


main()
