"""pip of the project's own environment, with its talk in a log and its failures as sentences."""

from __future__ import annotations

import subprocess
from pathlib import Path

from . import paths
from .errors import LaunchError

_REASONS = {
    "No space left": "the disk is full",
    "Read-only file system": "the disk is read-only",
    "Permission denied": "permission is denied on the disk",
    "NewConnectionError": "the package index cannot be reached: check the network",
    "NameResolutionError": "the package index cannot be reached: check the network",
    "ConnectTimeout": "the package index cannot be reached: check the network",
    "ReadTimeout": "the network is too slow or broke off",
    "ProxyError": "the proxy refuses the connection: check the network settings",
    "IncompleteRead": "the download broke off",
    "No matching distribution found": "the package index cannot be reached or has nothing for this Python and system",
}


def log_path() -> Path:
    """Where pip's talk of this run is written."""
    return paths.LOGS / "pip.log"


def install(*arguments: str) -> None:
    """Install into the environment; modules are compiled when first imported, which takes less time in all."""
    run("install", "--no-compile", *arguments)


def run(*arguments: str) -> None:
    """Run a pip command in the environment; raises LaunchError with the reason and the log's path if it fails."""
    log = log_path()
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [str(paths.venv_python()), "-P", "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    with log.open("a+b") as file:
        start = file.seek(0, 2)
        code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT).returncode
        file.seek(start)
        talk = file.read().decode(errors="replace")
    if code:
        raise LaunchError(f"pip {arguments[0]} failed ({_reason(talk)}): see {log}, then run this again.")


def _reason(talk: str) -> str:
    """The most telling reason in pip's talk, else its last line about an error."""
    for needle, sentence in _REASONS.items():
        if needle in talk:
            return sentence
    errors = [line.strip() for line in talk.splitlines() if line.startswith("ERROR:")]
    return errors[-1].removeprefix("ERROR: ") if errors else "it gave no reason"
