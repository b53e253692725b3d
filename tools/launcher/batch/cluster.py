"""A job on a Ray cluster: one actor per GPU, or per so many cores, and a driver that hands out
pieces.

The driver keeps only the pieces that are under way. Short pieces are handed out in groups, since a
call of an actor costs milliseconds; each piece still has its result on disk as soon as it is done.
An actor that dies, or that takes much longer for a piece than any has taken, is replaced; the piece
that it was running is tried again, and counts as failed when that happens three times. What waits
behind a long piece goes to a worker that has nothing to do.
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
from ..errors import LaunchError, missing_package
from .job import Job, Piece
from .ledger import Ledger
from .store import Store
from .worker import TRIES, Settings, other_files

LOCAL = "local"
_UNDER_WAY = 2  # groups of pieces handed to an actor: the one that it runs, and the next
_GROUP = 0.5  # seconds that a group should take, where a piece takes less
_LARGEST = 100  # pieces in a group
_LONG = (
    4 * _GROUP
)  # seconds without a sign of a group, after which idle workers take what has not begun of it
_LOOK = 5.0  # seconds between two looks for nodes that have come or gone
_FIRST_DEADLINE, _LEAST_DEADLINE = (
    3600.0,
    600.0,
)  # seconds of a piece before one is done, and at least after it
_PACE = 20  # times the longest piece so far, which a piece may take
_BOOTS = 3  # so often in a row an actor may die while it starts
_STARTS = (
    3  # of Ray on this machine: its parts wait 15 s for each other, which is short on a busy one
)
_BOOT, _TAKE, _RUN = "boot", "take", "run"


class _GroupError(Exception):
    """A piece of a group failed: how many before it are done, and why."""

    def __init__(self, done: int, reason: str):
        super().__init__(done, reason)
        self.done, self.reason = done, reason


class BatchWorker:
    """What Ray runs on a worker; it is sent as it is, so it may use nothing of this package that it
    has not loaded.

    Ray's dashboard lists it by this name, with what it prints as its log.
    """

    def __init__(self, root: str, package: str, settings: bytes):
        self._root, self._package, self._settings = (
            os.environ.get("GLASSBOX_DIR", root),
            package,
            settings,
        )

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
            if self._worker.has(piece.key):  # by a worker that had nothing to do
                continue
            print(f"{bar}: piece {piece.name}", flush=True)
            try:
                self._worker.run(piece.key, piece.values)
            except self._module.PieceError as error:
                raise _GroupError(done, str(error)) from None
        return time.perf_counter() - begun


@dataclass(eq=False)
class _Member:
    """An actor, and the groups of pieces that it has been handed: the first is the one that it
    runs.
    """

    actor: object
    name: str = ""  # once it has started
    ready: bool = False  # once it has taken the job
    groups: dict = field(default_factory=dict)  # reference -> pieces
    size: int = 1  # pieces in its next group
    since: float = 0.0  # when it was last known to begin a piece
    done: int = 0  # pieces of its first group that were done then


def start(address: str, runtime_env: dict | None) -> str | None:
    """Connect to a cluster, or start one on this machine; the dashboard's address if there is one.

    Raises LaunchError where Ray cannot be imported or does not answer.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # An actor that ends is first "unavailable"; this long Ray finds out whether its process or its
    # machine has ended.
    os.environ.setdefault("RAY_timeout_ms_task_wait_for_death_info", "60000")
    if (
        address == LOCAL
    ):  # Ray then listens for this machine alone, as it always does on Windows and macOS
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
    except ImportError as error:
        install = f'{paths.venv_python()} -m pip install "ray[default]"'
        raise LaunchError(missing_package("--ray", "ray", error, install)) from error
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
        except (
            Exception
        ) as error:  # Ray raises this class itself where a process of its own does not start
            ray.shutdown()
            if left:
                continue
            hint = (
                "start it with `ray start`"
                if address != LOCAL
                else "see the logs of its last session in Ray's temporary folder"
            )
            raise LaunchError(
                f"Ray at {address} does not start or answer ({_line(error)}): {hint}."
            ) from error
    ray._private.worker._worker_logs_enabled = (
        False  # else a node that dies prints the last twenty lines of its log
    )
    return getattr(context, "dashboard_url", None)


class Cluster:
    """The actors of a job. ``workers`` None: as many as the cluster has room for, now and later.

    ``wait``: seconds within which a machine with room may join, which an autoscaler starts for an
    actor that waits; with 0 LaunchError is raised when there is room for none now. ``deadline``:
    seconds that a piece may take, 0 for any; None goes by the longest piece so far.
    """

    def __init__(
        self,
        settings: Settings,
        workers: int | None = None,
        wait: float = 0.0,
        deadline: float | None = None,
    ):
        import ray

        self._ray, self._settings, self._wanted = ray, settings, workers
        self._wait, self._deadline, self._longest = wait, deadline, 0.0
        need = {"num_cpus": 1, "num_gpus": settings.gpus}
        self._need = {"num_cpus": settings.threads or 1} if settings.cpu else need
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
        self._begun = time.monotonic()
        if not self._room():
            self._refuse_or_wait()
            print(
                f"No machine has room for a worker yet: waiting up to {wait / 60:.3g} minutes for "
                "one.",
                flush=True,
            )

    def read(self, saved: dict) -> tuple:
        """As ``Worker.read``, by the first worker that has started; the others go on starting
        meanwhile.
        """
        while not any(member.name for member in self._members):
            self._grow()
            self._act()
            if not self._room():
                self._refuse_or_wait()
        found = self._answer_of(self._started(), "read the workflow", "read", saved)
        if len(found) == 1:
            raise LaunchError(found[0])
        return found

    def take(self, job: Job) -> dict[str, str]:
        """As ``Worker.take``, by the first worker; those that follow must find the same files."""
        member = self._started()
        self._first = member.name, self._answer_of(member, "read its files", "take", job)
        return self._first[1]

    def wait(self) -> None:
        """Wait until every worker that there is room for has started."""
        while not self._members or not all(member.name for member in self._members):
            self._grow()
            self._act()

    def run(self, job: Job, todo: Iterable[Piece], store: Store, ledger: Ledger) -> None:
        """Run every piece that the store lacks; one that fails three times is named and left
        out.
        """
        self._job, self._store, self._ledger = self._ray.put(job), store, ledger
        for member in self._members:
            if member.name:
                self._call(_TAKE, member, member.actor.take.remote(self._job))
        missing = _missing(todo, store, ledger)
        while True:
            for member in sorted(
                self._members, key=lambda member: len(member.groups)
            ):  # idle ones first
                while (
                    member.ready and len(member.groups) < _UNDER_WAY and self._hand(member, missing)
                ):
                    pass
            if not self._again:
                self._again.extend(itertools.islice(missing, 1))
            if not self._again:
                self._share()
            self._end_stuck()
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

    def _refuse_or_wait(self) -> None:
        """Raise LaunchError when no machine with room has come in time."""
        if time.monotonic() - self._begun >= self._wait:
            waited = f" after {self._wait / 60:.3g} minutes" if self._wait else ""
            no_gpu = (
                f"No machine of the cluster has {self._settings.gpus:g} GPU for a worker{waited}: "
                "give --cpu or fewer --gpus, start it on machines that have one, or wait longer "
                "with --wait."
            )
            few_cores = (
                f"No machine of the cluster has {self._need['num_cpus']} cores{waited}: give fewer "
                "as --cores."
            )
            raise LaunchError(few_cores if self._settings.cpu else no_gpu)

    def _answer_of(self, member: _Member, doing: str, method: str, *given):
        """What a method of a worker returns; raises LaunchError with a sentence when it fails."""
        try:
            return self._ray.get(getattr(member.actor, method).remote(*given))
        except self._ray.exceptions.RayError as error:
            raise LaunchError(
                f"{member.name} cannot {doing}: {_line(getattr(error, 'cause', None) or error)}"
            ) from error

    def _share(self) -> None:
        """Nothing is left to hand out: idle workers take what waits behind a long piece, in its
        group or in the next.

        Ray answers for a group that waits only once its worker is free. That worker then finds the
        results, or makes them a second time, of which the first counts.
        """
        idle = sum(member.ready and not member.groups for member in self._members)
        for member in self._members:
            if idle > 0 and member.groups and time.monotonic() - member.since > _LONG:
                running, *waiting = member.groups.values()
                begun = 1 + sum(self._store.read(piece.key) is not None for piece in running)
                left = [*running[begun:], *(piece for group in waiting for piece in group)]
                del running[begun:]
                for group in waiting:
                    group.clear()
                self._again.extend(left)
                idle -= bool(left)

    def _allowed(self) -> float:
        """Seconds that a piece may take now."""
        if self._deadline is not None:
            return self._deadline or float("inf")
        return max(_LEAST_DEADLINE, _PACE * self._longest) if self._longest else _FIRST_DEADLINE

    def _end_stuck(self) -> None:
        """End the workers whose piece takes too long; what they have done of their group counts."""
        for member in [*self._members]:
            if not member.groups or time.monotonic() - member.since <= self._allowed():
                continue
            group = next(iter(member.groups.values()))
            done = sum(self._store.read(piece.key) is not None for piece in group)
            if done > member.done:
                member.since, member.done = time.monotonic(), done
            else:
                self._ray.kill(member.actor)
                self._died(
                    member, _RUN, TimeoutError(f"it took longer than {self._allowed():.4g} s")
                )

    def _started(self) -> _Member:
        return next(member for member in self._members if member.name)

    def _room(self) -> int:
        """How many actors the nodes that are alive have room for; without this machine's node none
        would ever start.
        """
        nodes, here = self._ray.nodes(), self._ray.get_runtime_context().get_node_id()
        if any(node["NodeID"] == here and not node["Alive"] for node in nodes):
            raise LaunchError(
                "Ray has ended on this machine: see its last session's logs in its temporary "
                "folder."
            )
        alive = [node["Resources"] for node in nodes if node["Alive"]]
        names = {"num_cpus": "CPU", "num_gpus": "GPU"}
        return sum(
            min(int(node.get(names[kind], 0) // count) for kind, count in self._need.items())
            for node in alive
        )

    def _grow(self) -> None:
        """Start the actors that are missing, for nodes that have come and for actors that have
        died.
        """
        if self._members and time.monotonic() - self._looked < _LOOK:
            return
        self._looked = time.monotonic()
        room = (
            self._room() or 1
        )  # one that waits for room is what an autoscaler starts a machine for
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
            if not member.groups:
                member.since, member.done = time.monotonic(), 0
            member.groups[reference] = group
            self._call(_RUN, member, reference)
        return bool(group)

    def _act(self) -> None:
        """Wait a while for an answer, and act on it."""
        done, _ = self._ray.wait(
            list(self._calls), num_returns=1, timeout=min(_LOOK, max(self._allowed() / 4, 0.1))
        )
        for reference in done:
            what, member = self._calls.pop(reference)
            try:
                answer = self._ray.get(reference)
            except self._ray.exceptions.RayTaskError as error:
                if (
                    isinstance(error.cause, OSError) and what != _RUN
                ):  # a file of this machine: another may do better
                    self._ray.kill(member.actor)
                    self._died(member, _BOOT, error.cause)
                    continue
                if not isinstance(error.cause, _GroupError):
                    doing = "run pieces" if what == _RUN else "start"
                    raise LaunchError(
                        f"{member.name or 'A worker'} cannot {doing}: {_line(error.cause)}"
                    ) from error
                group, done = member.groups.pop(reference), error.cause.done
                member.since, member.done = time.monotonic(), 0
                self._finished(min(done, len(group)))
                if done < len(group):  # else it is another worker's by now
                    self._failed(group[done], error.cause.reason)
                    self._again.extend(group[done + 1 :])
            except self._ray.exceptions.RayError as error:
                self._died(member, what, error)
            else:
                self._answered(what, member, reference, answer)

    def _answered(self, what: str, member: _Member, reference, answer) -> None:
        if what == _RUN:
            group = member.groups.pop(reference)
            member.since, member.done = time.monotonic(), 0
            self._longest = max(self._longest, answer / max(len(group), 1))
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
        """Forget an actor that died; the piece that it ran is tried again, and what waited behind
        was not to blame.
        """
        self._members.remove(member)
        self._calls = {
            reference: call for reference, call in self._calls.items() if call[1] is not member
        }
        unreachable = isinstance(error, self._ray.exceptions.ActorUnavailableError)
        lost = unreachable or "node has died" in str(error) or "node was terminated" in str(error)
        if unreachable:
            self._ray.kill(member.actor)  # should it still run
        if what == _BOOT and not lost:
            self._deaths += 1
            if self._deaths >= _BOOTS:
                raise LaunchError(
                    f"Workers end while they start ({_line(error)}): see Ray's logs, for example "
                    "for too little memory."
                ) from error
        handed = collections.deque(piece for group in member.groups.values() for piece in group)
        while handed and self._store.read(handed[0].key) is not None:
            handed.popleft()
            self._finished(1)
        stuck = isinstance(error, TimeoutError)
        if self._ledger and member.name:
            how = "is stuck" if stuck else "is lost with its machine" if lost else "ended"
            self._ledger.show(f"{member.name} {how}: another takes its place.")
        if handed and not lost:
            what_ended = (
                "the worker was ended in this piece"
                if stuck
                else "the worker ended while it ran this piece"
            )
            self._failed(handed.popleft(), f"{what_ended} ({_line(error)})")
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
