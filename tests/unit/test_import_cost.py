"""What importing the pack costs, counted by what gets imported and not by the clock."""

import json
import subprocess
import sys

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
runpy.run_path({run!r})["load_package"]("launch")
from launch import boot
boot.prepare(Path({comfyui!r}), cpu=True)
import comfy.samplers, comfy.sd, nodes
from comfy_api.latest import io
pack = repository.load_pack()
before = set(sys.modules)
extension = asyncio.run(pack.comfy_entrypoint())
classes = asyncio.run(extension.get_node_list())
for node in classes:
    node.GET_SCHEMA()
print(json.dumps([name for name in sorted(set(sys.modules) - before) if not name.startswith("glassbox")]))
"""

# Beyond Python's own modules and what ComfyUI has loaded by itself: nothing. Heavy packages belong into functions.
_ALLOWED: set[str] = set()


def _new_modules(script: str, **values: str) -> set[str]:
    helpers = str(repository.ROOT / "tests" / "helpers")
    command = [sys.executable, "-P", "-c", script.format(helpers=helpers, **values)]
    answer = subprocess.run(command, capture_output=True, text=True, cwd=repository.ROOT / "tests")
    assert answer.returncode == 0, answer.stderr
    return set(json.loads(answer.stdout.splitlines()[-1]))


def _packages(modules: set[str]) -> set[str]:
    return {module.split(".")[0] for module in modules} - set(sys.stdlib_module_names)


def test_importing_the_pack_imports_nothing_but_itself():
    assert _packages(_new_modules(_LOAD)) == {repository.PACK}


def test_the_list_of_nodes_imports_nothing_beyond_comfyui(comfyui):
    modules = _new_modules(_MENU, comfyui=str(comfyui), run=str(repository.ROOT / "run.py"))
    assert _packages(modules) <= _ALLOWED


@pytest.mark.parametrize("heavy", ["import numpy", "import PIL.Image"])
def test_a_heavy_import_would_be_found(heavy):
    assert _packages(_new_modules(_LOAD.replace("repository.load_pack()", f"repository.load_pack()\n{heavy}"))) - {
        repository.PACK
    }
