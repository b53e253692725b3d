"""A ComfyUI server in a process of its own, as a context manager."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from . import environment
from .errors import LaunchError

LOOPBACK = "127.0.0.1"
_PYTORCH_ATTENTION = "--use-pytorch-cross-attention"
#: ComfyUI takes one of them.
_ATTENTIONS = {
    _PYTORCH_ATTENTION,
    "--use-split-cross-attention",
    "--use-quad-cross-attention",
    "--use-sage-attention",
    "--use-flash-attention",
}
_START_SECONDS = 900.0  # a busy machine may take many times the usual 20 s
_STOP_SECONDS = 15.0


def cpu_arguments(others: Sequence[str]) -> tuple[str, ...]:
    """ComfyUI's arguments on the CPU beside ``others``: with PyTorch's attention, which is faster
    there than ComfyUI's own, unless they name another.
    """
    return ("--cpu",) if _ATTENTIONS.intersection(others) else ("--cpu", _PYTORCH_ATTENTION)


def free_port(requested: int | None = None) -> int:
    """A free loopback port: the requested one, or any; raises LaunchError when the requested one is
    taken.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        if (
            os.name != "nt"
        ):  # as servers do: a port whose last connection has just closed counts as free
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, requested or 0))
        except (OSError, OverflowError) as error:
            raise LaunchError(
                f"Port {requested} cannot be used ({error}): give another one with --port, or "
                "leave --port out."
            ) from error
        return probe.getsockname()[1]


class Server:
    """Runs ComfyUI from `comfyui` on the base directory `base` (models, input, output,
    custom_nodes).

    Entering starts it and waits until it answers; leaving stops it, also after Ctrl-C or a failure.
    `port` None takes any free loopback port. `arguments` go to ComfyUI's main.py. `cpu` None: on
    the CPU where there is no GPU. There PyTorch's attention is faster than ComfyUI's own default.
    """

    def __init__(
        self,
        comfyui: Path,
        base: Path,
        arguments: Sequence[str] = (),
        port: int | None = None,
        cpu: bool | None = None,
    ):
        self.base = base
        self.log = base / "server.log"
        self.port = free_port(port)
        self.url = f"http://{LOOPBACK}:{self.port}"
        self._command = self._build_command(
            comfyui, arguments, environment.needs_cpu() if cpu is None else cpu
        )
        self._process: subprocess.Popen | None = None

    def _build_command(self, comfyui: Path, arguments: Sequence[str], cpu: bool) -> list[str]:
        boot = Path(__file__).with_name("boot.py")
        command = [sys.executable, "-P", str(boot), str(comfyui)]
        command += ["--base-directory", str(self.base), "--database-url", "sqlite:///:memory:"]
        command += ["--listen", LOOPBACK, "--port", str(self.port)]
        return [*command, *(cpu_arguments(arguments) if cpu else ()), *arguments]

    def __enter__(self) -> Server:
        (self.base / "custom_nodes").mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.base,
                env={**os.environ, "PYTHONIOENCODING": "utf-8"},
                **_detached(),
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exception) -> None:
        self.stop()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if not self.running():
                raise LaunchError(
                    f"ComfyUI stopped while starting ({self._last_words()}): see {self.log}."
                )
            with contextlib.suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(f"{self.url}/system_stats", timeout=5).close()
                return
            time.sleep(0.2)
        raise LaunchError(f"ComfyUI did not answer within {_START_SECONDS:.0f} s: see {self.log}.")

    def _last_words(self) -> str:
        lines = [
            line.strip() for line in self.log.read_text("utf-8", errors="replace").splitlines()
        ]
        return next((line for line in reversed(lines) if line), "without a word")

    def running(self) -> bool:
        """Whether the server's process is alive."""
        return self._process is not None and self._process.poll() is None

    @property
    def process_id(self) -> int:
        """The id of the server's process."""
        return self._process.pid

    def wait(self) -> None:
        """Block until the server ends of itself."""
        if self._process is not None:
            self._process.wait()

    def stop(self) -> None:
        """Stop the server and wait for its end: by closing its standard input, and by killing it as
        the last resort.
        """
        if self._process is None:
            return
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_SECONDS)
        finally:  # also after a second, impatient Ctrl-C
            if self.running():
                self._process.kill()
            self._process.wait()


def _detached() -> dict:
    """Keeps Ctrl-C in the terminal from reaching the server before the launcher has seen it."""
    if os.name == "nt":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}
