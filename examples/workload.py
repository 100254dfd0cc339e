"""An example program for the README's first recording: four threads that spend their time in native code.

    python examples/workload.py [SECONDS]

It needs only the standard library. It ends by itself after SECONDS (30) and then prints one line.
"""

from __future__ import annotations

import bz2
import hashlib
import json
import lzma
import random
import re
import sqlite3
import sys
import threading
import time
import xml.parsers.expat
import zlib
from collections.abc import Callable
from decimal import Decimal, getcontext

WORDS = [
    "stack",
    "frame",
    "sample",
    "thread",
    "module",
    "symbol",
    "unwind",
    "mapping",
    "register",
    "address",
    "table",
    "profile",
    "signal",
]


class Compression:
    """A thread that compresses one text with zlib, bz2 and lzma, which release the GIL while they work."""

    def __init__(self) -> None:
        chance = random.Random(1)
        self.text = " ".join(f"{chance.choice(WORDS)}{chance.randrange(5000)}" for _ in range(12_000)).encode()

    def round(self) -> None:
        for level in (1, 6, 9):
            packed = zlib.compress(self.text, level)
            assert zlib.decompress(packed) == self.text
        bz2.decompress(bz2.compress(self.text))
        lzma.compress(self.text[:40_000], preset=4)


class Database:
    """A thread that runs SQL with a function, an aggregate and a collation written in Python: native code calls Python
    code.
    """

    def __init__(self) -> None:
        self.db: sqlite3.Connection | None = None

    def open(self) -> sqlite3.Connection:
        db = sqlite3.connect(":memory:")
        db.create_function("score", 2, lambda word, n: len(word) * n % 97, deterministic=True)
        db.create_collation("by_length", lambda a, b: len(a) - len(b) or (a > b) - (a < b))
        db.execute("create table samples (id integer primary key, word text, weight real)")
        rows = ((n, WORDS[n % len(WORDS)] + str(n % 71), n * 0.75) for n in range(6000))
        db.executemany("insert into samples values (?, ?, ?)", rows)
        db.execute("create index by_word on samples (word)")
        return db

    def round(self) -> None:
        self.db = self.db or self.open()
        self.db.execute("select word, count(*), sum(weight) from samples group by word order by 3 desc").fetchall()
        self.db.execute("select max(score(word, id)) from samples where id % 3 = 0").fetchall()
        self.db.execute("select distinct word from samples order by word collate by_length limit 40").fetchall()
        self.db.execute(
            "with recursive c(x) as (select 1 union all select x + 1 from c where x < 40000) "
            "select sum(x * x % 7), max(printf('%.3f', x / 3.0)) from c"
        ).fetchall()


class Documents:
    """A thread that works with json, regular expressions, XML, sorting and decimal numbers."""

    def __init__(self) -> None:
        self.data = {
            f"{word}{n}": {"id": n, "tags": WORDS[: n % 9], "share": n / 7} for n in range(60) for word in WORDS
        }
        self.pattern = re.compile(r'"(\w+?)(\d+)": \{"id": (\d+)')
        getcontext().prec = 60

    def round(self) -> None:
        text = json.dumps(self.data, indent=1, sort_keys=True)
        assert len(json.loads(text)) == len(self.data)
        names = [match.group(1, 3) for match in self.pattern.finditer(json.dumps(self.data))]
        names.sort(key=lambda pair: (int(pair[1]) % 17, pair[0]))
        elements = 0

        def start(name: str, attributes: dict[str, str]) -> None:
            nonlocal elements
            elements += len(name) + len(attributes)

        parser = xml.parsers.expat.ParserCreate()
        parser.StartElementHandler = start
        parser.Parse("<all>" + "".join(f"<{name} id='{number}'/>" for name, number in names) + "</all>", True)
        sum((Decimal(n).sqrt() for n in range(2, 150)), Decimal(0))


class Digests:
    """A thread that computes hashes and derives keys. The functions release the GIL for large inputs."""

    def __init__(self) -> None:
        self.block = bytes(range(256)) * 2000

    def round(self) -> None:
        for name in ("sha256", "sha512", "sha3_256", "blake2b", "md5"):
            hashlib.new(name, self.block).digest()
        hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 4000)


def work(round_: Callable[[], None], until: float, rounds: dict[str, int]) -> None:
    name = threading.current_thread().name
    while time.monotonic() < until:
        round_()
        rounds[name] = rounds.get(name, 0) + 1


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    until = time.monotonic() + seconds
    rounds: dict[str, int] = {}
    jobs = {
        "compression": Compression().round,
        "database": Database().round,
        "documents": Documents().round,
        "digests": Digests().round,
    }
    threads = [threading.Thread(target=work, name=name, args=(job, until, rounds)) for name, job in jobs.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{seconds:g} s:", ", ".join(f"{count} rounds of {name}" for name, count in sorted(rounds.items())))


if __name__ == "__main__":
    main()
