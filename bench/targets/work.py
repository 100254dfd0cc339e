"""`python3 work.py SECONDS` -> {"work": rounds}: Python code that calls extension modules."""

import hashlib
import json
import re
import sqlite3
import sys
import time
import zlib


def records(seed):
    return [{"id": (seed * 31 + i * 17) % 1009, "name": f"record {i}", "tags": ["a", "b", str(i)]} for i in range(200)]


def stored(rows):
    database = sqlite3.connect(":memory:")
    database.execute("create table r (id integer, name text)")
    database.executemany("insert into r values (?, ?)", [(row["id"], row["name"]) for row in rows])
    return database.execute("select count(*), sum(id) from r where name like '%1%'").fetchone()


def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def one(seed):
    rows = sorted(records(seed), key=lambda row: row["id"])
    text = json.dumps(rows)
    words = len(re.findall(r"[a-z]+ \d+", text))
    packed = zlib.compress(text.encode())
    return words, hashlib.sha256(packed).hexdigest(), stored(rows), fibonacci(14), len(json.loads(text))


end = time.monotonic() + float(sys.argv[1])
work = 0
while time.monotonic() < end:
    one(work)
    work += 1
print(json.dumps({"work": work}))
