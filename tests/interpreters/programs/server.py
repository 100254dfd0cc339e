"""A web server of the standard library with a client in a thread, a pool that waits, a queue, a sleeper."""

import concurrent.futures
import http.server
import queue
import socket
import threading
import time


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        threading.Event().wait(1000)


def client(port):
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        connection.recv(1000)


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=client, args=(server.server_port,), daemon=True, name="client").start()
pool = concurrent.futures.ThreadPoolExecutor(2)
for _ in range(2):
    pool.submit(time.sleep, 0)
threading.Thread(target=queue.Queue().get, daemon=True, name="getter").start()
threading.Thread(target=lambda: max([1], key=lambda n: time.sleep(1000)), daemon=True, name="key").start()
print("ready", flush=True)
server.serve_forever(poll_interval=1000)
