"""`python3 clocked_service.py FILE web|batch`: a service that records its own processor time, until it is killed.

Each line of FILE has the monotonic clock and the process's own processor time, both in nanoseconds. `web` answers
requests; the port of its server on 127.0.0.1 is in FILE.port. The services in C, JavaScript and Perl next to this file
write the same lines.
"""

import http.server
import json
import pathlib
import sys
import time
import zlib

ROWS = [{"id": n, "name": "x" * (n % 40)} for n in range(120)]


def record():
    out.write(f"{time.monotonic_ns()} {time.process_time_ns()}\n")


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps(ROWS).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        record()

    def log_message(self, *_):
        pass


def web(path):
    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    pathlib.Path(f"{path}.port").write_text(str(server.server_port))
    server.serve_forever()


def batch(_):
    while True:
        zlib.compress(json.dumps(ROWS * 4).encode())
        record()
        time.sleep(0.02)


with open(sys.argv[1], "a", buffering=1) as out:
    {"web": web, "batch": batch}[sys.argv[2]](sys.argv[1])
