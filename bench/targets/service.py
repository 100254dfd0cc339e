"""`python3 service.py SECONDS` -> {"work": requests served}: eight threads that are busy for a tenth of the time."""

import json
import queue
import sys
import threading
import time

requests = queue.Queue()
served = 0


def answer(n):
    rows = [{"id": (n * 31 + i * 17) % 1009, "name": f"record {i}"} for i in range(60)]
    return json.dumps(sorted(rows, key=lambda row: row["id"]))


def serve():
    global served
    while True:
        answer(requests.get())
        served += 1


for _ in range(8):
    threading.Thread(target=serve, daemon=True).start()
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    began = time.process_time()
    for n in range(8):
        requests.put(n)
    time.sleep(max(9 * (time.process_time() - began), 0.01))
print(json.dumps({"work": served}))
