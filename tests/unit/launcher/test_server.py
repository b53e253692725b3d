"""The server process: started, watched and stopped, on a stand-in for ComfyUI."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from tools.launcher import server
from tools.launcher.errors import LaunchError


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(f"{url}/system_stats", timeout=2).close()
    except OSError:
        return False
    return True


def _ends_soon(url: str) -> bool:
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        if not _answers(url):
            return True
        time.sleep(0.1)
    return False


def test_runs_and_stops_cleanly(stand_in, tmp_path):
    with server.Server(stand_in, tmp_path / "base", cpu=False) as running:
        assert _answers(running.url)
    assert not _answers(running.url)
    assert "Stopped cleanly" in running.log.read_text()


def test_stops_after_ctrl_c(stand_in, tmp_path):
    with (
        pytest.raises(KeyboardInterrupt),
        server.Server(stand_in, tmp_path / "base", cpu=False) as running,
    ):
        raise KeyboardInterrupt
    assert not running.running()
    assert "Stopped cleanly" in running.log.read_text()


def test_stops_after_a_failure(stand_in, tmp_path):
    with (
        pytest.raises(ZeroDivisionError),
        server.Server(stand_in, tmp_path / "base", cpu=False) as running,
    ):
        raise ZeroDivisionError
    assert not running.running()


def test_ends_when_the_launcher_is_killed(stand_in, tmp_path, root):
    script = tmp_path / "launcher.py"
    script.write_text(
        "import runpy, sys, time\nfrom pathlib import "
        f"Path\nrunpy.run_path({str(root / 'run.py')!r})['load_package']('tools')\nfrom "
        f"tools.launcher.server import Server\nwith Server(Path({str(stand_in)!r}), "
        f"Path({str(tmp_path / 'base')!r}), cpu=False) as running:\n    print(running.url, "
        "flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-P", str(script)], stdout=subprocess.PIPE, text=True
    ) as launcher:
        url = launcher.stdout.readline().strip()
        assert _answers(url)
        launcher.kill()
    assert _ends_soon(url)


def test_failure_while_starting_is_one_sentence(stand_in, tmp_path):
    with pytest.raises(LaunchError, match="nothing works today") as caught:
        server.Server(stand_in, tmp_path / "base", ["--broken"], cpu=False).__enter__()
    assert "\n" not in str(caught.value)
    assert "server.log" in str(caught.value)


def test_busy_port_is_one_sentence(stand_in, tmp_path):
    with socket.socket() as other:
        other.bind((server.LOOPBACK, 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(LaunchError, match=f"Port {port} cannot be used.*--port"):
            server.Server(stand_in, tmp_path / "base", port=port, cpu=False)


def test_impossible_port_is_one_sentence():
    with pytest.raises(LaunchError, match="Port 99999 cannot be used"):
        server.free_port(99999)


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_a_server_that_ignores_the_end_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "_STOP_SECONDS", 0.5)
    folder = tmp_path / "comfyui"
    folder.mkdir()
    (folder / "main.py").write_text(
        "import signal, sys, http.server\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "class Answer(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200)\n"
        "        self.end_headers()\n"
        "port = int(sys.argv[sys.argv.index('--port') + 1])\n"
        "http.server.HTTPServer(('127.0.0.1', port), Answer).serve_forever()\n"
    )
    with server.Server(folder, tmp_path / "base", cpu=False) as running:
        pass
    assert running._process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("cpu", [True, False])
def test_on_the_cpu_attention_is_pytorch_s(tmp_path, cpu):
    command = server.Server(tmp_path, tmp_path / "base", ("--more",), cpu=cpu)._command
    assert ("--cpu" in command) == ("--use-pytorch-cross-attention" in command) == cpu
    assert command[-1] == "--more"


@pytest.mark.parametrize("other", ["split", "quad", "sage", "flash"])
def test_another_attention_that_is_named_stays(tmp_path, other):
    """ComfyUI takes one of them."""
    named = f"--use-{other}{'-cross' if other in ('split', 'quad') else ''}-attention"
    command = server.Server(tmp_path, tmp_path / "base", (named,), cpu=True)._command
    assert "--cpu" in command and named in command
    assert "--use-pytorch-cross-attention" not in command
