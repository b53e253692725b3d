"""A Ray cluster of several nodes in one machine, for tests and measurements, that starts on a busy
machine too.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import time
from collections.abc import Iterator
from unittest import mock

_PATIENCE = 600.0  # seconds for a node to start; Ray's own are 30
_ENVIRONMENT = {
    "RAY_agent_register_timeout_ms": "600000",
    # a node that was killed is known to be dead after 5 s; Ray's own 3 s make 14
    "RAY_health_check_period_ms": "500",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray's own is 15: workers would wait for whatever else the machine does
    "RAY_worker_niceness": "0",
}
_START_RAYLET_NODE, _START_RAYLET_SESSION = 2, 11  # places of two arguments of Ray's start_raylet


#: Below the ports that systems give to outgoing connections, one of which may be taken before an
#: agent listens there.
_ports = itertools.cycle(range(20_000 + os.getpid() % 100 * 100, 30_000))


def _free_port() -> int:
    """A port that nothing listens at; another one with each call."""
    for port in _ports:
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            return port


def node(cores: int) -> dict:
    """The arguments of ``add_node``: cores, and ports of the node's own, so that it need not wait
    for its agents.
    """
    names = (
        "metrics_agent_port",
        "metrics_export_port",
        "dashboard_agent_listen_port",
        "runtime_env_agent_port",
    )
    return {"num_cpus": cores, **{name: _free_port() for name in names}}


@contextlib.contextmanager
def cluster(head: int, *nodes: int) -> Iterator[tuple]:
    """A cluster and its nodes: the head with ``head`` cores (0: no worker runs there) and further
    ones with ``nodes``.

    Ray waits 15 s for the port of a node's agent, which reports to the dashboard and takes longer
    to start where many processes share the cores; the port is noted beforehand here.
    """
    from ray._private import services
    from ray._raylet import DASHBOARD_AGENT_LISTEN_PORT_NAME, persist_port
    from ray.cluster_utils import Cluster

    start_raylet, get_node = services.start_raylet, services.get_node

    def start(*given, **named):
        port = named["dashboard_agent_listen_port"] or _free_port()
        persist_port(
            given[_START_RAYLET_SESSION],
            given[_START_RAYLET_NODE],
            DASHBOARD_AGENT_LISTEN_PORT_NAME,
            port,
        )
        return start_raylet(*given, **{**named, "dashboard_agent_listen_port": port})

    def get(*given):
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                return get_node(*given)
            except RuntimeError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.5)

    with (
        mock.patch.object(services, "start_raylet", start),
        mock.patch.object(services, "get_node", get),
        mock.patch.dict("os.environ", _ENVIRONMENT),
    ):
        made = Cluster(
            initialize_head=True, head_node_args={**node(head), "include_dashboard": False}
        )
        try:
            yield made, [made.add_node(**node(cores)) for cores in nodes]
        finally:
            made.shutdown()
