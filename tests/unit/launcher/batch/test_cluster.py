"""Jobs on a Ray cluster of several nodes in this machine: workers, nodes and drivers are killed in
the middle.
"""

import collections
import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import repository
import stand_in_engine
from stand_in_engine import results

from benchmarks.batch import machines
from tools.launcher.batch.cluster import BatchWorker, Cluster, start
from tools.launcher.batch.worker import Settings
from tools.launcher.errors import LaunchError

pytest.importorskip("ray", reason="long jobs on several machines need Ray")

_SECONDS = 600.0  # for the busiest machine
_running: list[subprocess.Popen] = []


class Job:
    """A job over lines, run by `run.py batch` in a process of its own."""

    def __init__(self, folder: Path, address: str | None, lines: list[str], *arguments: object):
        self.out = folder / "out"
        (folder / "w.json").write_text(json.dumps(stand_in_engine.PROMPT))
        (folder / "list.txt").write_text("\n".join(lines))
        self._command = [
            sys.executable,
            "-P",
            str(repository.ROOT / "run.py"),
            "batch",
            str(folder / "w.json"),
            "--over",
            str(folder / "list.txt"),
            "--map",
            "1.text",
            "--out",
            str(self.out),
            "--cpu",
            "--engine",
            stand_in_engine.__file__,
            *(["--ray", address, "--cores", "1"] if address else []),
            *map(str, arguments),
        ]

    def start(self, **environment) -> subprocess.Popen:
        from tools.launcher import comfyui

        process = subprocess.Popen(
            self._command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, "GLASSBOX_COMFYUI": str(comfyui.locate()), **environment},
            # A suite in the background ignores SIGINT, and its children would, too.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        _running.append(process)
        return process

    def run(self, **environment) -> tuple[int, str]:
        """The exit code and the output."""
        process = self.start(**environment)
        output, _ = process.communicate(timeout=_SECONDS)
        return process.returncode, output

    def texts(self) -> set[str]:
        """The texts of all results."""
        return {
            content.decode()
            for name, content in results(self.out).items()
            if name.endswith("text.txt")
        }

    def wait_for(self, count: int, process: subprocess.Popen) -> None:
        """Until so many results are there; a job that has ended with fewer shows why."""
        until = time.monotonic() + _SECONDS
        while len(self.texts()) < count:
            assert process.poll() is None or len(self.texts()) >= count, process.stdout.read()
            assert time.monotonic() < until, "no results come"
            time.sleep(0.05)


@pytest.fixture(scope="module")
def head():
    """A Ray cluster whose head runs no worker: tests add the machines that they need."""
    with machines.cluster(0) as (cluster, _):
        yield cluster


@pytest.fixture
def add_machine(head):
    """Adds a machine of so many cores to the cluster; after the test all leave it, and jobs that
    still run end.
    """
    yield lambda cores: head.add_node(**machines.node(cores))
    while _running:
        _running.pop().kill()
    for machine in list(head.worker_nodes):
        head.remove_node(machine)


def _workers(machine) -> list[psutil.Process]:
    """The processes of a machine that run pieces."""
    raylet = psutil.Process(machine.all_processes["raylet"][0].process.pid)
    titles = ("ray::piece", f"ray::{BatchWorker.__name__}")
    return [one for one in raylet.children() if one.cmdline()[0].startswith(titles)]


@pytest.mark.slow
@pytest.mark.endurance
def test_a_killed_worker_is_replaced_and_a_failing_piece_is_named(tmp_path, head, add_machine):
    """The worker's log, which Ray's dashboard shows, has the bar, and the piece that comes next."""
    lines = ["a", f"once {tmp_path / 'flag'}", "fail", "b"]
    add_machine(1)
    job = Job(tmp_path, head.address, lines)
    code, output = job.run()
    logs = "".join(
        path.read_text() for path in Path(head.head_node.get_logs_dir_path()).glob("worker-*.out")
    )
    assert "0/4, 0 failed: piece 0 (a)" in logs and "piece 3 (b)" in logs
    assert code == 1 and "3 pieces run" in output and "1 failed" in output, output
    assert job.texts() == set(lines) - {"fail"}
    assert "It fails: fail" in (tmp_path / "out" / "failures.csv").read_text()
    on_ray = results(job.out)
    lines.remove("fail")
    code, output = Job(
        tmp_path, None, lines
    ).run()  # without Ray, the same command finds all that is there
    assert code == 0 and "3 found" in output and results(job.out) == on_ray


@pytest.mark.slow
@pytest.mark.endurance
def test_a_piece_that_always_ends_its_worker_is_named_after_three_times(
    tmp_path, head, add_machine
):
    """So short that they are handed out in groups: only the piece that ends the worker is to
    blame.
    """
    lines = [
        *map(str, range(150)),
        "die",
        *map(str, range(150, 180)),
        "fail",
        *map(str, range(180, 300)),
    ]
    (tmp_path / "base").mkdir()
    add_machine(2)
    job = Job(tmp_path, head.address, lines, "--base-directory", str(tmp_path / "base"))
    code, output = job.run()
    assert code == 1 and "300 pieces run" in output and "2 failed" in output, output
    assert job.texts() == set(lines) - {"die", "fail"}
    failures = list(csv.DictReader((tmp_path / "out" / "failures.csv").open()))
    assert {row["prompt"]: row["reason"].partition(" (")[0] for row in failures} == {
        "die": "the worker ended while it ran this piece",
        "fail": "It fails: fail",
    }
    tries = collections.Counter((tmp_path / "base" / "tries.txt").read_text().splitlines())
    assert tries == {line: 3 if line in ("die", "fail") else 1 for line in lines}


@pytest.mark.slow
@pytest.mark.endurance
def test_a_piece_whose_machine_dies_three_times_is_run_on_the_next(tmp_path, head, add_machine):
    (tmp_path / "base").mkdir()
    tries = tmp_path / "base" / "tries.txt"
    machine = add_machine(1)
    job = Job(
        tmp_path,
        head.address,
        [f"until {tmp_path / 'flag'}"],
        "--base-directory",
        str(tmp_path / "base"),
    )
    process = job.start()
    for times in range(1, 4):
        until = time.monotonic() + _SECONDS
        while not tries.exists() or len(tries.read_text().splitlines()) < times:
            assert time.monotonic() < until and process.poll() is None, process.stdout.read()
            time.sleep(0.1)
        head.remove_node(machine, allow_graceful=False)
        machine = add_machine(1)
    (tmp_path / "flag").touch()
    output, _ = process.communicate(timeout=_SECONDS)
    assert process.returncode == 0 and "1 pieces run" in output and "0 failed" in output, output


@pytest.mark.parametrize(("address", "starts"), [("local", 3), ("127.0.0.1:1", 1)])
def test_ray_that_does_not_start_on_this_machine_is_started_again(monkeypatch, address, starts):
    import ray

    tried = []

    def init(**given):
        tried.append(given["address"])
        raise RuntimeError("timed out\nmore")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(LaunchError, match=r"does not start or answer \(timed out\)"):
        start(address, None)
    assert tried == [address] * starts


def test_a_job_whose_own_node_has_died_ends(monkeypatch):
    import ray

    nodes = [{"NodeID": "here", "Alive": True, "Resources": {"CPU": 1}}]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(
        ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "here")
    )
    cluster = Cluster(Settings(Path()))
    nodes[0]["Alive"] = False
    with pytest.raises(LaunchError, match="Ray has ended on this machine"):
        cluster.read({})


def _nodes(monkeypatch, *nodes: dict) -> list[dict]:
    """A cluster in which Ray lists these nodes; a test may add some."""
    import ray

    listed = [
        {"NodeID": str(number), "Alive": True, "Resources": one} for number, one in enumerate(nodes)
    ]
    monkeypatch.setattr(ray, "nodes", lambda: listed)
    monkeypatch.setattr(
        ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "here")
    )
    return listed


def test_gpus_of_a_worker_decide_how_many_fit(monkeypatch):
    _nodes(monkeypatch, {"CPU": 16, "GPU": 4}, {"CPU": 16, "GPU": 1}, {"CPU": 64})
    rooms = {
        gpus: Cluster(Settings(Path(), cpu=False, gpus=gpus))._room()
        for gpus in (0.5, 1.0, 2.0, 4.0)
    }
    assert rooms == {0.5: 10, 1.0: 5, 2.0: 2, 4.0: 1}
    with pytest.raises(
        LaunchError, match="No machine of the cluster has 8 GPU for a worker: give --cpu"
    ):
        Cluster(Settings(Path(), cpu=False, gpus=8))


def test_a_start_waits_for_a_machine_and_then_says_for_how_long_it_has(monkeypatch, capsys):
    """With an actor that waits, for which an autoscaler starts a machine."""
    import ray

    listed, clock, made = _nodes(monkeypatch, {"CPU": 4}), [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    cluster = Cluster(Settings(Path(), cpu=False), wait=120)
    assert "waiting up to 2 minutes" in capsys.readouterr().out
    boot = SimpleNamespace(remote=lambda: f"boot {len(made)}")
    cluster._actor = SimpleNamespace(remote=lambda *_: made.append(1) or SimpleNamespace(boot=boot))

    def look(*_, **__):
        clock[0] += 50
        return [], []

    monkeypatch.setattr(ray, "wait", look)
    with pytest.raises(LaunchError, match="has 1 GPU for a worker after 2 minutes"):
        cluster.read({})
    assert len(made) == 1
    listed[0]["Resources"]["GPU"] = 3
    clock[0] = 1e6
    cluster._grow()
    assert len(made) == 3


@pytest.mark.parametrize(
    ("longest", "given", "allowed"), [(0, None, 3600), (2, None, 600), (90, None, 1800), (90, 5, 5)]
)
def test_the_deadline_goes_by_the_longest_piece_unless_it_is_given(
    monkeypatch, longest, given, allowed
):
    _nodes(monkeypatch, {"CPU": 4})
    cluster = Cluster(Settings(Path()), deadline=given)
    cluster._longest = longest
    assert cluster._allowed() == allowed
    assert Cluster(Settings(Path()), deadline=0)._allowed() == float("inf")


@pytest.mark.slow
@pytest.mark.endurance
def test_a_worker_that_hangs_is_replaced_and_its_pieces_are_given_to_others(tmp_path):
    """On Ray in this machine: the first hang is forgiven, one at every try is named, a full disk
    counts as a try.
    """
    (tmp_path / "base").mkdir()
    lines = [
        *map(str, range(6)),
        f"hang {tmp_path / 'flag'}",
        "sleep 100000",
        "full",
        *map(str, range(6, 12)),
    ]
    job = Job(
        tmp_path,
        "local",
        lines,
        "--deadline",
        "4",
        "--workers",
        "2",
        "--base-directory",
        str(tmp_path / "base"),
    )
    code, output = job.run()
    assert code == 1 and "13 pieces run" in output and "2 failed" in output, output
    assert job.texts() == set(lines) - {"sleep 100000", "full"}
    assert output.count("is stuck: another takes its place") == 4, output
    failures = {
        row["prompt"]: row["reason"]
        for row in csv.DictReader((tmp_path / "out" / "failures.csv").open())
    }
    assert failures["sleep 100000"].startswith(
        "the worker was ended in this piece (it took longer than 4 s)"
    )
    assert "No space left on device" in failures["full"]
    tries = collections.Counter((tmp_path / "base" / "tries.txt").read_text().splitlines())
    assert tries == {
        line: {"sleep 100000": 3, "full": 3, lines[6]: 2}.get(line, 1) for line in lines
    }


@pytest.mark.slow
@pytest.mark.endurance
def test_what_waits_behind_a_long_piece_is_run_by_an_idle_worker(tmp_path):
    flag = tmp_path / "flag"
    lines = [f"until {flag} {number}" if number == 20 else str(number) for number in range(40)]
    job = Job(tmp_path, "local", lines, "--workers", "2")
    process = job.start()
    job.wait_for(39, process)
    flag.touch()
    output, _ = process.communicate(timeout=_SECONDS)
    assert process.returncode == 0 and "40 pieces run" in output, output


def test_without_ray_a_piece_that_ends_the_process_ends_the_command_and_what_was_done_is_kept(
    tmp_path,
):
    lines = ["a", "b", "die", "c"]
    job = Job(tmp_path, None, lines)
    assert job.run()[0] == 9 and job.texts() == {"a", "b"}
    code, output = Job(tmp_path, None, ["a", "b", "c"]).run()
    assert code == 0 and "1 pieces run" in output and "2 found" in output


@pytest.mark.slow
@pytest.mark.endurance
def test_results_are_the_same_with_any_number_of_workers(tmp_path, head, add_machine):
    lines = [f"line {number}" for number in range(40)]
    for name in ("alone", "two"):
        (tmp_path / name).mkdir()
    Job(tmp_path / "alone", None, lines).run()
    add_machine(2)
    Job(tmp_path / "two", head.address, lines).run()
    assert results(tmp_path / "alone" / "out") == results(tmp_path / "two" / "out")
    assert len(results(tmp_path / "two" / "out")) == 80


@pytest.mark.slow
@pytest.mark.endurance
def test_machines_that_die_in_the_middle(tmp_path, head, add_machine):
    lines = [f"sleep 0.2{number:03}" for number in range(60)]
    first, second, _ = add_machine(1), add_machine(1), add_machine(1)
    job = Job(tmp_path, head.address, lines)
    process = job.start()
    job.wait_for(10, process)
    head.remove_node(first, allow_graceful=False)
    job.wait_for(25, process)
    head.remove_node(second, allow_graceful=False)
    add_machine(1)  # and another comes
    output, _ = process.communicate(timeout=_SECONDS)
    assert process.returncode == 0, output
    assert job.texts() == set(lines) and "0 failed" in output


@pytest.mark.slow
@pytest.mark.endurance
def test_workers_that_are_killed_again_and_again(tmp_path, head, add_machine):
    lines = [f"sleep 0.2{number:03}" for number in range(40)]
    machine = add_machine(2)
    job = Job(tmp_path, head.address, lines)
    process = job.start()
    for count in (
        5,
        20,
    ):  # twice: a piece that three workers end with counts as failed, whatever ended them
        job.wait_for(count, process)
        _workers(machine)[0].kill()
    output, _ = process.communicate(timeout=_SECONDS)
    assert process.returncode == 0, output
    assert job.texts() == set(lines) and "ended: another takes its place" in output


@pytest.mark.slow
@pytest.mark.endurance
def test_a_driver_that_is_killed_goes_on_when_it_is_started_again(tmp_path, head, add_machine):
    lines = [f"sleep 0.1{number:03}" for number in range(60)]
    add_machine(2)
    job = Job(tmp_path, head.address, lines)
    process = job.start()
    job.wait_for(15, process)
    process.kill()
    process.communicate()
    before = {path: path.stat().st_mtime_ns for path in job.out.rglob("text.txt")}
    code, output = job.run()
    assert code == 0 and job.texts() == set(lines)
    assert {path: path.stat().st_mtime_ns for path in before} == before  # none was written twice
    found = int(output.partition(" found")[0].rpartition(" ")[2])
    assert found >= len(before)


@pytest.mark.parametrize(
    "address", [None, pytest.param("local", marks=[pytest.mark.slow, pytest.mark.endurance])]
)
def test_an_interrupted_job_goes_on_and_its_results_are_those_of_one_run(tmp_path, address):
    """Interrupted as by Ctrl-C; Ray on this machine listens for this machine alone, and ends with
    the job.
    """
    flag = tmp_path / "flag"
    lines = [*map(str, range(8)), *(f"until {flag} {number}" for number in range(32))]
    job = Job(tmp_path, address, lines)
    process = job.start()
    job.wait_for(5, process)
    family = psutil.Process(process.pid).children(recursive=True)
    if address:
        hosts = [
            at.laddr.ip
            for one in family
            for at in one.net_connections("tcp")
            if at.status == psutil.CONN_LISTEN
        ]
        assert len(hosts) >= 3 and {host.removeprefix("::ffff:") for host in hosts} == {"127.0.0.1"}
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=_SECONDS)
    assert (
        process.returncode == 130
        and "the same command continues" in output
        and "Traceback" not in output
    ), output
    assert psutil.wait_procs(family, timeout=60)[1] == []
    before = {path: path.stat().st_mtime_ns for path in job.out.rglob("text.txt")}
    assert 5 <= len(before) <= 8
    flag.touch()
    code, output = Job(tmp_path, None, lines).run()  # the same results, whoever makes them
    assert code == 0 and f"{len(before)} found" in output, output
    assert {path: path.stat().st_mtime_ns for path in before} == before
    (tmp_path / "whole").mkdir()
    whole = Job(tmp_path / "whole", None, lines)
    assert whole.run()[0] == 0 and results(whole.out) == results(job.out)
    assert (whole.out / "index.csv").read_bytes() == (job.out / "index.csv").read_bytes()


@pytest.mark.slow
@pytest.mark.endurance
def test_workers_use_the_repository_and_the_variables_that_they_are_given(
    tmp_path, head, add_machine
):
    (tmp_path / "repository").symlink_to(repository.ROOT)
    variables = tmp_path / "env.json"
    add_machine(1)
    job = Job(tmp_path, head.address, ["a"], "--runtime-env", variables)
    variables.write_text(json.dumps({"env_vars": {"GLASSBOX_DIR": "/nowhere"}}))
    code, output = job.run()
    assert code == 1 and "has no /nowhere/run.py" in output and "Traceback" not in output, output
    given = {"GLASSBOX_DIR": str(tmp_path / "repository"), "STAND_IN_DIGEST": "1"}
    variables.write_text(json.dumps({"env_vars": given}))
    code, output = job.run()
    assert code == 0, output
    here = Job(tmp_path, None, ["a"])
    assert "1 pieces run" in here.run()[1] and "1 found" in here.run(STAND_IN_DIGEST="1")[1]


@pytest.mark.slow
@pytest.mark.endurance
def test_workers_with_different_checkpoints_end_the_job(tmp_path, head, add_machine):
    """The stand-in reads its checkpoint's digest from a file, which changes after the first worker
    has read it.
    """
    base = tmp_path / "base"
    base.mkdir()
    lines = ["a", "b", "c", f"until {tmp_path / 'never'}"]
    add_machine(1)
    job = Job(tmp_path, head.address, lines, "--base-directory", str(base))
    process = job.start()
    job.wait_for(3, process)
    (base / "digest.txt").write_text("1")
    add_machine(1)
    output, _ = process.communicate(timeout=_SECONDS)
    assert process.returncode == 1
    assert (
        "The file base.safetensors is not the same everywhere" in output
        and "Traceback" not in output
    )
