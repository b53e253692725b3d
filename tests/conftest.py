"""What all tests share: the pack and its launcher as packages, a real ComfyUI, and a browser.

- `from glassbox.nodes.common import ...` works in every test: the pack under that name, without
  ComfyUI.
- `app` is a ComfyUI inside the test's own process; `server` is one in a process of its own. A test
  requests one.
- `from tools.launcher import ...`, `from studies...` and `from benchmarks...` reach those folders
  of the repository, `from robustness import fuzz` what `run.py fuzz` runs.
"""

import contextlib
import gc
import os
import runpy
import sys
import types
import warnings
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(Path(__file__).resolve().parent / "helpers"))

import repository  # noqa: E402

load_package = runpy.run_path(str(ROOT / "run.py"))["load_package"]
for _name in ("tools", "studies", "benchmarks"):
    load_package(_name)
sys.modules["robustness"] = types.ModuleType(
    "robustness"
)  # what `run.py fuzz` runs, beside the tests of the same
sys.modules["robustness"].__path__ = [str(ROOT / "tests" / "robustness")]
repository.load_pack()
# A clock says how busy the machine is, not whether the code is right.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_collection_modifyitems(config, items):
    """Of the tests marked endurance, those of this commit's turn, where `run.py test` names one."""
    from tools.launcher import suite

    turn = os.environ.get(suite.TURN)
    if turn is None:
        return
    run, waiting = [], []
    for item in items:
        is_waiting = item.get_closest_marker("endurance") and zlib.crc32(
            item.nodeid.encode()
        ) % suite.TURNS != int(turn)
        (waiting if is_waiting else run).append(item)
    config.hook.pytest_deselected(items=waiting)
    items[:] = run


@pytest.fixture(scope="session")
def comfyui() -> Path:
    """The folder of the ComfyUI under test."""
    from tools.launcher import comfyui

    return comfyui.locate()


@pytest.fixture(scope="session")
def app(comfyui, tmp_path_factory):
    """ComfyUI in this process on the CPU, with the pack loaded as ComfyUI loads it; see
    `in_process.Comfy`.
    """
    from tools.launcher import in_process

    started = in_process.start(comfyui, tmp_path_factory.mktemp("comfy"))
    _freeze()
    return started


#: How much more memory Python's objects may take before they are put aside again.
_GROWTH = 1.2
#: The same of the whole process, tensors included, in bytes.
_GROWTH_IN_BYTES = 10**9
_frozen_blocks = 0
_frozen_bytes = 0


def _freeze() -> None:
    """Put all objects aside that live now: a search for circles, of which ComfyUI makes many, need
    not look through them again.
    """
    global _frozen_blocks, _frozen_bytes
    gc.unfreeze()  # what has died since in circles, models among it, is freed
    gc.collect()
    gc.freeze()
    _frozen_blocks = sys.getallocatedblocks()
    _frozen_bytes = _resident_bytes()


def _resident_bytes() -> int:
    import psutil

    return psutil.Process().memory_info().rss


@pytest.fixture(scope="module", autouse=True)
def no_dead_models(request):
    """Take what ComfyUI calls dead models from its list after each file, and name the file.

    A network that outlives its MODELs makes ComfyUI search all objects for circles before every
    later load, which takes seconds in a process that has run thousands of tests.
    """
    yield
    management = sys.modules.get("comfy.model_management")
    if management is None:
        return
    if any(loaded.is_dead() for loaded in _loaded(management)):
        gc.collect()
    dead = [loaded for loaded in _loaded(management) if loaded.is_dead()]
    if dead:
        names = sorted({type(loaded.real_model()).__name__ for loaded in dead})
        kept = [loaded for loaded in management.current_loaded_models if loaded not in dead]
        management.current_loaded_models[:] = kept
        warnings.warn(f"{request.node.name} left dead models: {', '.join(names)}", stacklevel=1)
    larger = sys.getallocatedblocks() > _GROWTH * _frozen_blocks
    if larger or _resident_bytes() > _frozen_bytes + _GROWTH_IN_BYTES:
        _freeze()


def _loaded(management: types.ModuleType) -> list:
    return [loaded for loaded in management.current_loaded_models if loaded.real_model is not None]


@pytest.fixture(scope="session")
def server(comfyui, tmp_path_factory):
    """A running ComfyUI server with the pack and the front end that belongs to it."""
    yield from _serve(comfyui, tmp_path_factory.mktemp("server"))


@pytest.fixture(scope="session")
def newest_server(comfyui, tmp_path_factory):
    """The same with the newest front end."""
    from tools.launcher.comfyui import newest_front_end

    yield from _serve(
        comfyui, tmp_path_factory.mktemp("newest"), "--front-end-root", str(newest_front_end())
    )


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


# One browser for each test module: while Playwright runs, asyncio.run() does not work in the same
# thread.
@pytest.fixture(scope="module")
def browser():
    """Chromium without a window; tests are skipped where it is missing, and fail there in CI."""
    from canvas_page import Browser

    from tools.launcher.errors import LaunchError

    with contextlib.ExitStack() as stack:
        try:
            launched = Browser(stack)
        except LaunchError as error:
            _cannot(str(error))
        yield launched


def _cannot(reason: str):
    if os.environ.get("CI", "").lower() in ("1", "true", "yes"):
        pytest.fail(f"{reason} In CI the browser tests must run.")
    pytest.skip(reason)
