"""A job on a Ray cluster: one actor per GPU, or per so many cores, and a driver that hands out pieces.

The driver keeps only the pieces that are under way. Short pieces are handed out in groups, since a call of an actor
costs milliseconds; each piece still has its result on disk as soon as it is done. An actor that dies is replaced; the
piece that it was running is tried again, and counts as failed when that happens three times.
"""

from __future__ import annotations

import collections
import importlib
import itertools
import os
import pickle
import runpy
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from .. import paths
from ..errors import LaunchError
from .job import Job, Piece
from .ledger import Ledger
from .store import Store
from .worker import TRIES, Settings, other_files

LOCAL = "local"
_UNDER_WAY = 2  # groups of pieces handed to an actor: the one that it runs, and the next
_GROUP = 0.5  # seconds that a group should take, where a piece takes less
_LARGEST = 100  # pieces in a group
_LOOK = 5.0  # seconds between two looks for nodes that have come or gone
_BOOTS = 3  # so often in a row an actor may die while it starts
_STARTS = 3  # of Ray on this machine: its parts wait 15 s for each other, which is short on a busy one
_BOOT, _TAKE, _RUN = "boot", "take", "run"


class _GroupError(Exception):
    """A piece of a group failed: how many before it are done, and why."""

    def __init__(self, done: int, reason: str):
        super().__init__(done, reason)
        self.done, self.reason = done, reason


class BatchWorker:
    """What Ray runs on a worker; it is sent as it is, so it may use nothing of this package that it has not loaded.

    Ray's dashboard lists it by this name, with what it prints as its log.
    """

    def __init__(self, root: str, package: str, settings: bytes):
        self._root, self._package, self._settings = os.environ.get("GLASSBOX_DIR", root), package, settings

    def boot(self) -> dict:
        """Start ComfyUI; ``name`` of the worker, or the ``problem`` that ends the job."""
        launcher = os.path.join(self._root, "run.py")
        if not os.path.isfile(launcher):
            need = "put this repository there, or name its folder in GLASSBOX_DIR"
            return {"problem": f"{socket.gethostname()} has no {launcher}: {need}."}
        real = os.path.realpath
        sys.path[:] = [entry for entry in sys.path if real(entry or ".") != real(self._root)]
        runpy.run_path(launcher)["load_package"](self._package.split(".")[0])
        self._module = importlib.import_module(f"{self._package}.worker")
        try:
            self._worker = self._module.Worker(pickle.loads(self._settings))
        except self._module.LaunchError as error:
            return {"problem": str(error)}
        return {"name": self._worker.name}

    def read(self, saved: dict) -> tuple:
        try:
            return self._worker.read(saved)
        except self._module.LaunchError as error:
            return (str(error),)

    def take(self, job) -> dict:
        return self._worker.take(job)

    def run(self, group: list[Piece], bar: str) -> float:
        """Run pieces one after another, up to the first that fails; the seconds that they took.

        ``bar`` is the job's progress as it was when the pieces were handed out.
        """
        begun = time.perf_counter()
        for done, piece in enumerate(group):
            print(f"{bar}: piece {piece.name}", flush=True)
            try:
                self._worker.run(piece.key, piece.values)
            except self._module.PieceError as error:
                raise _GroupError(done, str(error)) from None
        return time.perf_counter() - begun


@dataclass(eq=False)
class _Member:
    """An actor, and the groups of pieces that it has been handed: the first is the one that it runs."""

    actor: object
    name: str = ""  # once it has started
    ready: bool = False  # once it has taken the job
    groups: dict = field(default_factory=dict)  # reference -> pieces
    size: int = 1  # pieces in its next group


def start(address: str, runtime_env: dict | None) -> str | None:
    """Connect to a cluster, or start one on this machine; the dashboard's address if there is one.

    Raises LaunchError where Ray is not installed or does not answer.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # An actor that ends is first "unavailable"; this long Ray finds out whether its process or its machine has ended.
    os.environ.setdefault("RAY_timeout_ms_task_wait_for_death_info", "60000")
    if address == LOCAL:  # Ray then listens for this machine alone, as it always does on Windows and macOS
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
    except ImportError:
        raise LaunchError(
            f'--ray needs Ray, which is not installed: {paths.venv_python()} -m pip install "ray[default]"'
        ) from None
    given = {
        "address": address,  # "local" starts a new one, though another may run on this machine
        "log_to_driver": False,
        "logging_level": "ERROR",
        "runtime_env": runtime_env or None,
    }
    if address == LOCAL:
        given |= {"num_cpus": os.cpu_count(), "dashboard_host": "127.0.0.1"}
    for left in reversed(range(_STARTS if address == LOCAL else 1)):
        try:
            context = ray.init(**given)
            break
        except Exception as error:  # Ray raises this class itself where a process of its own does not start
            ray.shutdown()
            if left:
                continue
            hint = (
                "start it with `ray start`"
                if address != LOCAL
                else "see the logs of its last session in Ray's temporary folder"
            )
            raise LaunchError(f"Ray at {address} does not start or answer ({_line(error)}): {hint}.") from error
    ray._private.worker._worker_logs_enabled = False  # else a node that dies prints the last twenty lines of its log
    return getattr(context, "dashboard_url", None)


class Cluster:
    """The actors of a job. ``workers`` None: as many as the cluster has room for, now and later.

    Raises LaunchError when there is room for none.
    """

    def __init__(self, settings: Settings, workers: int | None = None):
        import ray

        self._ray, self._settings, self._wanted = ray, settings, workers
        self._need = {"num_cpus": settings.threads or 1} if settings.cpu else {"num_cpus": 1, "num_gpus": 1}
        self._package = pickle.dumps(settings)
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        self._actor = ray.remote(max_restarts=0, **self._need)(BatchWorker)
        self._members: list[_Member] = []
        self._calls: dict = {}  # reference -> (what was called, of which member)
        self._again: collections.deque[Piece] = collections.deque()
        self._tries: collections.Counter[str] = collections.Counter()
        self._deaths, self._looked = 0, 0.0
        self._first: tuple[str, dict] | None = None
        self._job, self._store, self._ledger = None, None, None
        if not self._room():
            no_gpu = "The cluster has no GPU: give --cpu, or start it on machines that have one."
            few_cores = f"No machine of the cluster has {self._need['num_cpus']} cores: give fewer as --cores."
            raise LaunchError(few_cores if settings.cpu else no_gpu)

    def read(self, saved: dict) -> tuple:
        """As ``Worker.read``, by the first worker that has started; the others go on starting meanwhile."""
        while not any(member.name for member in self._members):
            self._grow()
            self._act()
        found = self._ray.get(self._started().actor.read.remote(saved))
        if len(found) == 1:
            raise LaunchError(found[0])
        return found

    def take(self, job: Job) -> dict[str, str]:
        """As ``Worker.take``, by the first worker; those that follow must find the same files."""
        self._first = self._started().name, self._ray.get(self._started().actor.take.remote(job))
        return self._first[1]

    def wait(self) -> None:
        """Wait until every worker that there is room for has started."""
        while not self._members or not all(member.name for member in self._members):
            self._grow()
            self._act()

    def run(self, job: Job, todo: Iterable[Piece], store: Store, ledger: Ledger) -> None:
        """Run every piece that the store lacks; one that fails three times is named and left out."""
        self._job, self._store, self._ledger = self._ray.put(job), store, ledger
        for member in self._members:
            if member.name:
                self._call(_TAKE, member, member.actor.take.remote(self._job))
        missing = _missing(todo, store, ledger)
        while True:
            for member in self._members:
                while member.ready and len(member.groups) < _UNDER_WAY and self._hand(member, missing):
                    pass
            if not self._again:
                self._again.extend(itertools.islice(missing, 1))
            if not self._again and not any(member.groups for member in self._members):
                return
            self._grow()
            self._act()

    def close(self) -> None:
        """End all actors, and leave the cluster."""
        for member in self._members:
            self._ray.kill(member.actor)
        self._members.clear()
        self._ray.shutdown()

    def _started(self) -> _Member:
        return next(member for member in self._members if member.name)

    def _room(self) -> int:
        """How many actors the nodes that are alive have room for; without this machine's node none would ever start."""
        nodes, here = self._ray.nodes(), self._ray.get_runtime_context().get_node_id()
        if any(node["NodeID"] == here and not node["Alive"] for node in nodes):
            raise LaunchError("Ray has ended on this machine: see its last session's logs in its temporary folder.")
        alive = [node["Resources"] for node in nodes if node["Alive"]]
        names = {"num_cpus": "CPU", "num_gpus": "GPU"}
        return sum(min(int(node.get(names[kind], 0) // count) for kind, count in self._need.items()) for node in alive)

    def _grow(self) -> None:
        """Start the actors that are missing, for nodes that have come and for actors that have died."""
        if self._members and time.monotonic() - self._looked < _LOOK:
            return
        self._looked = time.monotonic()
        room = self._room()
        for _ in range((self._wanted or room) - len(self._members)):
            member = _Member(self._actor.remote(str(paths.ROOT), __package__, self._package))
            self._members.append(member)
            self._call(_BOOT, member, member.actor.boot.remote())

    def _call(self, what: str, member: _Member, reference) -> None:
        self._calls[reference] = what, member

    def _hand(self, member: _Member, missing: Iterator[Piece]) -> bool:
        """Hand a member its next pieces; whether there are any."""
        group = [self._again.popleft() for _ in range(min(member.size, len(self._again)))]
        group += itertools.islice(missing, member.size - len(group))
        if group:
            reference = member.actor.run.options(name="piece").remote(group, self._ledger.line())
            member.groups[reference] = group
            self._call(_RUN, member, reference)
        return bool(group)

    def _act(self) -> None:
        """Wait a while for an answer, and act on it."""
        done, _ = self._ray.wait(list(self._calls), num_returns=1, timeout=_LOOK)
        for reference in done:
            what, member = self._calls.pop(reference)
            try:
                answer = self._ray.get(reference)
            except self._ray.exceptions.RayTaskError as error:
                if not isinstance(error.cause, _GroupError):
                    doing = "run pieces" if what == _RUN else "start"
                    raise LaunchError(f"{member.name or 'A worker'} cannot {doing}: {_line(error.cause)}") from error
                group = member.groups.pop(reference)
                self._finished(error.cause.done)
                self._failed(group[error.cause.done], error.cause.reason)
                self._again.extend(group[error.cause.done + 1 :])
            except self._ray.exceptions.RayError as error:
                self._died(member, what, error)
            else:
                self._answered(what, member, reference, answer)

    def _answered(self, what: str, member: _Member, reference, answer) -> None:
        if what == _RUN:
            group = member.groups.pop(reference)
            self._finished(len(group))
            member.size = max(1, min(int(len(group) * _GROUP / answer), 2 * len(group), _LARGEST))
        elif what == _BOOT and "problem" in answer:
            raise LaunchError(answer["problem"])
        elif what == _BOOT:
            member.name, self._deaths = answer["name"], 0
            if self._job is not None:
                self._call(_TAKE, member, member.actor.take.remote(self._job))
        else:
            trouble = other_files(member.name, answer, *self._first)
            if trouble:
                raise LaunchError(trouble)
            member.ready = True

    def _finished(self, count: int) -> None:
        for _ in range(count):
            self._ledger.finished()

    def _failed(self, piece: Piece, reason: str) -> None:
        """Try a piece again, or name it and leave it out after three times."""
        self._tries[piece.key] += 1
        if self._tries[piece.key] < TRIES:
            self._again.append(piece)
        else:
            self._ledger.skipped(piece, reason)

    def _died(self, member: _Member, what: str, error: Exception) -> None:
        """Forget an actor that died; the piece that it ran is tried again, and what waited behind was not to blame."""
        self._members.remove(member)
        self._calls = {reference: call for reference, call in self._calls.items() if call[1] is not member}
        unreachable = isinstance(error, self._ray.exceptions.ActorUnavailableError)
        lost = unreachable or "node has died" in str(error) or "node was terminated" in str(error)
        if unreachable:
            self._ray.kill(member.actor)  # should it still run
        if what == _BOOT and not lost:
            self._deaths += 1
            if self._deaths >= _BOOTS:
                raise LaunchError(
                    f"Workers end while they start ({_line(error)}): see Ray's logs, for example for too little memory."
                ) from error
        handed = collections.deque(piece for group in member.groups.values() for piece in group)
        while handed and self._store.read(handed[0].key) is not None:
            handed.popleft()
            self._finished(1)
        if self._ledger and member.name:
            self._ledger.show(
                f"{member.name} {'is lost with its machine' if lost else 'ended'}: another takes its place."
            )
        if handed and not lost:
            self._failed(handed.popleft(), f"the worker ended while it ran this piece ({_line(error)})")
        self._again.extend(handed)
        self._looked = 0.0  # replace it at once


def _missing(todo: Iterable[Piece], store: Store, ledger: Ledger) -> Iterator[Piece]:
    for piece in todo:
        if store.read(piece.key) is None:
            yield piece
        else:
            ledger.reused()


def _line(error: object) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
