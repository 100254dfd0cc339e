"""A test that runs every example of docs/library.md in order on a real server under load."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.live, pytest.mark.system]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "library.md"
SERVER = """
import http.server, json, threading, time, zlib
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = render()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
def render():
    return zlib.compress(json.dumps([{"id": n, "name": f"row {n}"} for n in range(2000)]).encode())
def keep_house():
    end = time.monotonic() + 200
    while time.monotonic() < end:
        sum(range(50_000))
        time.sleep(0.002)
    server.shutdown()
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=keep_house, name="housekeeper", daemon=True).start()
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.fixture
def server() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port = int(process.stdout.readline())
    done = threading.Event()

    def load() -> None:
        while not done.is_set():
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=20) as answer:
                answer.read()

    client = threading.Thread(target=load)
    client.start()
    try:
        yield process.pid
    finally:
        done.set()
        client.join()
        process.kill()
        process.communicate()


def examples() -> list[tuple[int, str]]:
    """Return the code blocks of the page from top to bottom as (line number, code)."""
    text = PAGE.read_text()
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start(1)), match[1]) for match in found]


def test_examples_run_in_order(
    server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"pid": server}
    printed = []
    for line, code in examples():
        exec(compile("\n" * line + code, str(PAGE), "exec"), names)
        printed.append(capsys.readouterr().out)
    assert len(printed) >= 8
    assert all(text.strip() for text in printed)
    assert re.search("render|encoder|do_GET", printed[0] + printed[5] + printed[8])
    assert "samples, then" in printed[3]
    assert printed[6] == "True\n" * 2
    assert " -> " in printed[7]
    assert re.search("too short|has [0-9]+ samples for", printed[7])  # the latter on a busy machine
    assert "housekeeper" in printed[8]
    assert "no process" in printed[-1]
    assert (tmp_path / "server.html").stat().st_size > 10_000
