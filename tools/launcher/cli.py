"""The command line of run.py: reads the arguments, makes the environment, and continues inside
it.
"""

from __future__ import annotations

import argparse
import functools
import os
import subprocess
import sys
from pathlib import Path

from . import environment, hosts, paths
from .errors import LaunchError, disk_sentence

# set for the process in the environment: the folder of ComfyUI, found before
_READY = "GLASSBOX_COMFYUI"
_DEVELOPER = {"test", "bench", "study", "models", "fuzz"}
_PASSING_ON = _DEVELOPER | {"batch"}  # what follows is for them to read
_INTERRUPTED = 130


def main(argv: list[str]) -> int:
    """Run the command in `argv` and return its exit code; foreseeable failures end with one
    sentence.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # a console of few characters must not stop a command
    try:
        arguments = _parse(argv)
        if _READY in os.environ and paths.inside_venv():
            return _command(arguments, Path(os.environ[_READY]))
        if arguments.command == "test" and hosts.BOTH in arguments.rest:
            return hosts.run(arguments.rest)
        comfyui = environment.ensure(
            arguments.command in _DEVELOPER or getattr(arguments, "screenshots", False)
        )
        return _go_on_inside(argv, comfyui)
    except LaunchError as error:
        return _fail(str(error))
    except OSError as error:
        sentence = disk_sentence(error)
        if sentence is None:
            raise
        return _fail(sentence)
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        return _INTERRUPTED


def _fail(sentence: str) -> int:
    print(sentence, file=sys.stderr)
    return 1


def _go_on_inside(argv: list[str], comfyui: Path) -> int:
    """Run the same command with the Python of the virtual environment."""
    command = [str(paths.venv_python()), "-P", str(paths.ROOT / "run.py"), *argv]
    variables = {**os.environ, _READY: str(comfyui)}
    sys.stdout.flush()
    if os.name != "nt":
        os.execve(command[0], command, variables)
    with subprocess.Popen(command, env=variables) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:  # the process inside gets it too, and decides
                continue


def _command(arguments: argparse.Namespace, comfyui: Path) -> int:
    """Run a command inside the environment; each module is imported only where it is needed."""
    match arguments.command:
        case "demo":
            from . import demo, screenshots

            settings = screenshots.settings_of(arguments.theme, arguments.locale)
            paired = functools.partial(screenshots.paired, newest=arguments.newest_front_end)
            return demo.run(
                comfyui,
                arguments.only,
                arguments.all,
                arguments.out,
                arguments.port,
                arguments.keep_open,
                arguments.screenshots,
                arguments.newest_front_end,
                paired if arguments.pairs else lambda *_: settings,
            )
        case "serve":
            from . import serve

            return serve.run(comfyui, arguments.port, arguments.browser)
        case "test":
            from . import suite

            return suite.run(arguments.rest)
        case "fuzz":
            from . import studies

            fuzz = studies.load_module("fuzz", "robustness", paths.ROOT / "tests" / "robustness")
            return fuzz.run(comfyui, arguments.rest)
        case "models":
            from . import studies

            return studies.load_module("models.matrix", "studies").run(comfyui, arguments.rest)
        case "check":
            from . import check

            return check.run(comfyui, arguments.checkpoint, arguments.port)
        case "batch":
            from .batch import command

            return command.run(arguments.rest)
        case _:
            from . import studies

            return studies.run(arguments.command, arguments.rest)


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "run.py",
        description=(
            "ComfyUI-Glassbox. The first run of a command installs what it needs into .venv and "
            ".cache."
        ),
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo", help="run the demo templates 01 to 10 in a real ComfyUI and save the images"
    )
    demo.add_argument("--only", metavar="NAME", help="only this workflow")
    demo.add_argument(
        "--all",
        action="store_true",
        help="all demo workflows, also those that the template browser does not show",
    )
    demo.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        default=paths.OUT,
        help="the folder for the images (default: .cache/out)",
    )
    demo.add_argument(
        "--screenshots",
        action="store_true",
        help="also save a screenshot of every workflow on the canvas",
    )
    demo.add_argument(
        "--theme",
        choices=("dark", "light"),
        default="dark",
        help="of the screenshots (default: dark)",
    )
    demo.add_argument(
        "--locale", choices=("en", "zh"), default="en", help="of the screenshots (default: en)"
    )
    demo.add_argument(
        "--newest-front-end",
        action="store_true",
        help="use the newest front end that is tested, not ComfyUI's own",
    )
    demo.add_argument(
        "--pairs",
        action="store_true",
        help=(
            "take themes and languages in turns: both front ends then show all pairs of them with "
            "the renderers"
        ),
    )
    demo.add_argument("--keep-open", action="store_true", help="keep the canvas open afterwards")
    serve = commands.add_parser("serve", help="open the canvas with the pack in a browser")
    serve.add_argument(
        "--no-browser", dest="browser", action="store_false", help="print the address only"
    )
    check = commands.add_parser(
        "check", help="run every family on your own checkpoint and write a report"
    )
    check.add_argument(
        "--checkpoint", metavar="FILE", type=Path, required=True, help="a .safetensors checkpoint"
    )
    for command in (demo, serve, check):
        command.add_argument(
            "--port", type=int, help="a loopback port for ComfyUI (default: any free one)"
        )
    # Their further arguments, --help among them, belong to what they start.
    commands.add_parser(
        "test",
        add_help=False,
        help=(
            "check style and types, run the tests (--all: slow ones too, --endurance: kills and "
            "clusters too, --both-hosts: on the oldest ComfyUI and on the newest); other arguments "
            "go to pytest"
        ),
    )
    commands.add_parser(
        "batch", add_help=False, help="run a workflow over a list, here or on Ray: batch --help"
    )
    commands.add_parser(
        "bench",
        add_help=False,
        help="compare speed and quality with common alternatives: bench NAME [--quick]",
    )
    commands.add_parser(
        "study", add_help=False, help="measure the claims on the demo world: study NAME [--quick]"
    )
    commands.add_parser(
        "models",
        add_help=False,
        help="try every node on every network, in small: models [--only NODE] [--network NAME]",
    )
    commands.add_parser(
        "fuzz", add_help=False, help="try random prompts for every node: fuzz --minutes N"
    )
    arguments, arguments.rest = parser.parse_known_args(argv)
    if arguments.command in _DEVELOPER - {"models"} and arguments.rest[:1] in (["--help"], ["-h"]):
        parser.parse_args(["--help"])
    if arguments.rest and arguments.command not in _PASSING_ON:
        parser.error(f"unknown argument: {arguments.rest[0]}")
    return arguments
