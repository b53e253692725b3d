"""What importing the pack costs, counted by what gets imported and not by the clock."""

import functools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import repository

_LOAD = """
import json, sys
sys.path.insert(0, {helpers!r})
import repository
before = set(sys.modules)
repository.load_pack()
print(json.dumps(sorted(set(sys.modules) - before)))
"""

_MENU = """
import asyncio, json, runpy, sys
from pathlib import Path
sys.path.insert(0, {helpers!r})
import repository
runpy.run_path({run!r})["load_package"]("tools")
from tools.launcher import boot
boot.prepare(Path({comfyui!r}), cpu=True)
import comfy.samplers, comfy.sd, nodes
from comfy_api.latest import io
pack = repository.load_pack()
before = set(sys.modules)
extension = asyncio.run(pack.comfy_entrypoint())
classes = asyncio.run(extension.get_node_list())
for node in classes:
    node.GET_SCHEMA()
print(json.dumps(sorted(set(sys.modules) - before)))
"""

# Beyond Python's own modules and what ComfyUI has loaded by itself: nothing. Heavy packages belong
# into functions.
_ALLOWED: set[str] = set()
_WEB = repository.ROOT / "web"
_MOST_MODULES = 135  # of this pack, some 40 of them the files of nodes


def _new_modules(script: str, **values: str) -> set[str]:
    helpers = str(repository.ROOT / "tests" / "helpers")
    command = [sys.executable, "-P", "-c", script.format(helpers=helpers, **values)]
    answer = subprocess.run(command, capture_output=True, text=True, cwd=repository.ROOT / "tests")
    assert answer.returncode == 0, answer.stderr
    return set(json.loads(answer.stdout.splitlines()[-1]))


def _packages(modules: set[str]) -> set[str]:
    return {module.split(".")[0] for module in modules} - set(sys.stdlib_module_names)


@functools.cache
def _listing(comfyui: str) -> set[str]:
    """What is imported while ComfyUI collects the nodes and their schemas, beyond its own
    modules.
    """
    return _new_modules(_MENU, comfyui=comfyui, run=str(repository.ROOT / "run.py"))


def test_importing_the_pack_imports_nothing_but_itself():
    assert _packages(_new_modules(_LOAD)) == {repository.PACK}


def test_the_list_of_nodes_imports_nothing_beyond_comfyui(comfyui):
    assert _packages(_listing(str(comfyui))) - {repository.PACK} <= _ALLOWED


def test_the_list_of_nodes_imports_few_modules(comfyui):
    modules = _listing(str(comfyui))
    assert repository.PACK + ".nodes.menu" in modules
    print(f"{len(modules)} modules")
    assert len(modules) <= _MOST_MODULES


def _imported(script: Path) -> set[Path]:
    """The pack's own scripts that a script imports, at once or later."""
    named = re.findall(r'(?:from|import\() ?["`](\.[^"`$]+)["`]', script.read_text("utf-8"))
    found = {(script.parent / name).resolve() for name in named}
    return {path for path in found if path.is_relative_to(_WEB)}


def test_a_browser_loads_little_at_start():
    """The front end imports every .js of the pack, these import others, and a style sheet is added:
    60 kB, 12 files.
    """
    loaded, waiting = {_WEB / "glassbox.css"}, set(_WEB.rglob("*.js"))
    while waiting:
        script = waiting.pop()
        loaded.add(script)
        waiting |= _imported(script) - loaded
    size = sum(path.stat().st_size for path in loaded)
    print(f"{len(loaded)} files, {size} bytes")
    assert len(loaded) <= 12 and size <= 60_000


def test_every_script_that_is_imported_is_there_and_used():
    scripts = {path for path in _WEB.rglob("*.*") if path.suffix in (".js", ".mjs")}
    panels = re.findall(r'GBX_\w+: \["([\w/]+)", ', (_WEB / "glassbox.js").read_text("utf-8"))
    imported = {path for script in scripts for path in _imported(script)} | {
        _WEB / f"{name}.mjs" for name in panels
    }
    assert panels and imported <= scripts
    assert {path for path in scripts - imported if path.suffix == ".mjs"} == set()


@pytest.mark.parametrize("heavy", ["import numpy", "import PIL.Image"])
def test_a_heavy_import_would_be_found(heavy):
    assert _packages(
        _new_modules(_LOAD.replace("repository.load_pack()", f"repository.load_pack()\n{heavy}"))
    ) - {repository.PACK}
