"""A cluster of two ClickHouse servers on this machine, from Debian's package."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyprof.fleet.server.store.clickhouse_engine import HttpEngine, StoreAddress, StoreError, address
from tests.server.serving import free_port
from tests.support import need

PATIENCE_S = 60
CONFIG = """<yandex>
  <logger><level>error</level><log>{folder}/log</log><errorlog>{folder}/errors</errorlog></logger>
  <http_port>{http}</http_port><tcp_port>{tcp}</tcp_port><listen_host>127.0.0.1</listen_host>
  <path>{folder}/data/</path><tmp_path>{folder}/tmp/</tmp_path><users_config>{folder}/users.xml</users_config>
  <default_profile>default</default_profile><default_database>default</default_database>
  <mark_cache_size>5368709</mark_cache_size>
  <remote_servers><two>{shards}</two></remote_servers>
</yandex>"""
USERS = """<yandex>
  <profiles><default><max_memory_usage>2000000000</max_memory_usage></default></profiles>
  <users><default><password></password><networks><ip>127.0.0.1</ip></networks><profile>default</profile>
  <quota>default</quota></default></users><quotas><default></default></quotas>
</yandex>"""
SHARD = "<shard><replica><host>127.0.0.1</host><port>{tcp}</port></replica></shard>"


@contextmanager
def cluster(folder: Path, processes: list[subprocess.Popen[bytes]] | None = None) -> Iterator[str]:
    """Start the cluster and yield the address of its store once both servers respond; their processes are added to
    `processes`.
    """
    server = need("clickhouse-server")
    ports = [(free_port(), free_port()) for _ in range(2)]
    shards = "".join(SHARD.format(tcp=tcp) for _, tcp in ports)
    processes = [] if processes is None else processes
    try:
        for at, (http, tcp) in enumerate(ports):
            own = folder / f"node{at}"
            own.mkdir(parents=True)
            (own / "users.xml").write_text(USERS)
            (own / "config.xml").write_text(CONFIG.format(folder=own, http=http, tcp=tcp, shards=shards))
            command = [server, f"--config-file={own / 'config.xml'}"]
            processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=own))
        url = f"clickhouse://{','.join(f'127.0.0.1:{http}' for http, _ in ports)}/pyprof?cluster=two"
        _until_both_answer(ports, processes)
        yield url
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _until_both_answer(ports: list[tuple[int, int]], processes: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    for (http, _), process in zip(ports, processes, strict=True):
        while True:
            try:
                HttpEngine(StoreAddress("clickhouse", hosts=(("127.0.0.1", http),), database="ready"), 14)
                break
            except StoreError:
                assert process.poll() is None, "the server has ended"
                assert time.monotonic() < deadline, "the server does not answer"
                time.sleep(0.1)


def rows_by_server(url: str, table: str) -> list[int]:
    """Return the number of rows that each server stores locally."""
    found = []
    for host in address(url).hosts:
        engine = HttpEngine(StoreAddress("clickhouse", hosts=(host,)), 14)
        found.append(int(engine.rows(f"SELECT count() FROM {table}")[0][0]))
    return found
