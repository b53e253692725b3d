"""uv in the project's environment: pip's configuration is passed on, output goes to a log, failures
are sentences.
"""

from __future__ import annotations

import ast
import os
import subprocess

from . import paths
from .errors import LaunchError

# The options of pip's configuration files and PIP_ variables, and the variables of uv that mean the
# same.
_OF_PIP = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "no-index": "UV_NO_INDEX",
    "find-links": "UV_FIND_LINKS",
    "constraint": "UV_CONSTRAINT",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}


def bootstrap() -> None:
    """Install uv itself, by pip."""
    _run("pip", ("install", "--disable-pip-version-check", "--no-input", "uv"), dict(os.environ))


def install(*arguments: str) -> None:
    """Run `uv pip install` in the environment; raises LaunchError with the reason and the log's
    path if it fails.
    """
    # Like pip: the best version of all indexes.
    settings = {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_NO_PROGRESS": "1",
        **pip_configuration(),
        **os.environ,
    }
    if (
        "--require-hashes" in arguments
    ):  # pinned already, and uv refuses constraints that carry no hash beside it
        settings.pop("UV_CONSTRAINT", None)
    _run("uv", ("pip", "install", "--python", str(paths.venv_python()), *arguments), settings)


def pip_configuration() -> dict[str, str]:
    """What pip is configured to do in the environment, as variables for uv."""
    listed = subprocess.run(
        [str(paths.venv_python()), "-P", "-m", "pip", "config", "list"],
        capture_output=True,
        text=True,
    ).stdout
    options = {}
    for line in listed.splitlines():  # section.option='value'; the section :env: holds variables
        place, _, value = line.partition("=")
        section, _, option = place.rpartition(".")
        if section in ("global", "install", ":env:"):
            options[("global", "install", ":env:").index(section), option] = ast.literal_eval(value)
    found = {}
    for (_, option), value in sorted(options.items()):
        if option in _OF_PIP:
            separator = "," if option == "find-links" else " "
            found[_OF_PIP[option]] = separator.join(value.split())
    return found


def _run(module: str, arguments: tuple[str, ...], variables: dict[str, str]) -> None:
    """Run pip or uv with its output in the log."""
    log = paths.LOGS / "install.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [str(paths.venv_python()), "-P", "-m", module, *arguments]
    with log.open("a+b") as file:
        start = file.seek(0, 2)
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=variables
        ).returncode
        file.seek(start)
        output = file.read().decode(errors="replace")
    if ended:
        # The first line of the error and the last of its causes, such as "Could not connect, are
        # you offline?"
        lines = [" ".join(line.split()) for line in output.splitlines()]
        first = next(
            (line[6:].strip() for line in lines if line.lower().startswith("error:")),
            "it gave no reason",
        )
        causes = [
            line.removeprefix("Caused by:").strip()
            for line in lines
            if line.startswith("Caused by:")
        ]
        reason = ": ".join([first, *causes[-1:]])
        raise LaunchError(
            f"{module} could not install packages ({reason}): see {log}, then run this again."
        )
