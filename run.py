"""The one command of ComfyUI-Glassbox: `python run.py demo`, and `python run.py --help` for the
others.

Needs Python 3.11 or newer and nothing else: it makes `.venv`, fetches what is missing, and
continues inside it.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent


def load_package(name: str) -> ModuleType:
    """Import one of the repository's folders as a package by its path, without putting the
    repository on sys.path.

    With the repository on the path, ComfyUI would import the pack's `nodes` instead of its own.
    """
    if name not in sys.modules:
        folder = ROOT / name
        spec = importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


def main() -> int:
    """Run the command named on the command line and return its exit code."""
    if sys.version_info < (3, 11):  # noqa: UP036, an older Python must get a sentence
        print(
            "ComfyUI-Glassbox needs Python 3.11 or newer; this is " + sys.version.split()[0] + ".",
            file=sys.stderr,
        )
        return 1
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != ROOT]
    load_package("tools")
    from tools.launcher import cli

    return cli.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
