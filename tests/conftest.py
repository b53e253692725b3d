"""What all tests share: the pack and its launcher as packages, a real ComfyUI, and a browser.

- `from glassbox.nodes.common import ...` works in every test: the pack under that name, without ComfyUI.
- `app` is a ComfyUI inside the test's own process; `server` is one in a process of its own. A test requests one.
- `from tools.launcher import ...`, `from studies...` and `from benchmarks...` reach those folders of the repository,
  `from robustness import fuzz` what `run.py fuzz` runs.
"""

import contextlib
import os
import runpy
import sys
import types
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(Path(__file__).resolve().parent / "helpers"))

import repository  # noqa: E402

load_package = runpy.run_path(str(ROOT / "run.py"))["load_package"]
for _name in ("tools", "studies", "benchmarks"):
    load_package(_name)
sys.modules["robustness"] = types.ModuleType("robustness")  # what `run.py fuzz` runs, beside the tests of the same
sys.modules["robustness"].__path__ = [str(ROOT / "tests" / "robustness")]
repository.load_pack()
# A clock says how busy the machine is, not whether the code is right.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def comfyui() -> Path:
    """The folder of the ComfyUI under test."""
    from tools.launcher import comfyui

    return comfyui.locate()


@pytest.fixture(scope="session")
def app(comfyui, tmp_path_factory):
    """ComfyUI in this process on the CPU, with the pack loaded as ComfyUI loads it; see `in_process.Comfy`."""
    from tools.launcher import in_process

    return in_process.start(comfyui, tmp_path_factory.mktemp("comfy"))


@pytest.fixture(scope="session")
def server(comfyui, tmp_path_factory):
    """A running ComfyUI server with the pack and the front end that belongs to it."""
    yield from _serve(comfyui, tmp_path_factory.mktemp("server"))


@pytest.fixture(scope="session")
def newest_server(comfyui, tmp_path_factory):
    """The same with the newest front end."""
    from tools.launcher.comfyui import newest_front_end

    yield from _serve(comfyui, tmp_path_factory.mktemp("newest"), "--front-end-root", str(newest_front_end()))


def _serve(comfyui: Path, base: Path, *arguments: str):
    from tools.launcher.comfyui import prepare_base
    from tools.launcher.server import Server

    with Server(comfyui, prepare_base(base), arguments, cpu=True) as running:
        yield running


@pytest.fixture(scope="session")
def client(server):
    """The API of the running server."""
    from tools.launcher.api import Client

    return Client(server.url)


@pytest.fixture(scope="session")
def object_info(client) -> dict:
    """The description of every node class of the running server."""
    return client.object_info()


@pytest.fixture(scope="session")
def pack_info(object_info) -> dict:
    """The same for the nodes of this pack alone."""
    return {name: info for name, info in object_info.items() if repository.is_ours(info)}


# One browser for each test module: while Playwright runs, asyncio.run() does not work in the same thread.
@pytest.fixture(scope="module")
def browser():
    """Chromium without a window; tests are skipped where it is missing, and fail there in CI."""
    from tools.launcher.canvas import chromium
    from tools.launcher.errors import LaunchError

    with contextlib.ExitStack() as stack:
        try:
            launched = stack.enter_context(chromium())
        except LaunchError as error:
            _cannot(str(error))
        yield launched


def _cannot(reason: str):
    if os.environ.get("CI", "").lower() in ("1", "true", "yes"):
        pytest.fail(f"{reason} In CI the browser tests must run.")
    pytest.skip(reason)
