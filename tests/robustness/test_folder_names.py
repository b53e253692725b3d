"""The repository in a folder of any name: style, types and a real ComfyUI, as `run.py test` starts
them there.
"""

import os
import shutil
import subprocess
import sys

import pytest
import repository

from tools.launcher import paths

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name == "nt", reason="links the environment")]

_FEW_TESTS = ("tests/unit/test_arrows.py", "tests/comfy/test_node_contract.py")


@pytest.fixture(params=["Glaskästchen 2"])
def clone(request, tmp_path, comfyui):
    """A copy of the tracked files with the environment and ComfyUI of this one."""
    folder = tmp_path / request.param
    for path in repository.tracked_files():
        target = folder / path.relative_to(repository.ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    (folder / ".venv").symlink_to(paths.VENV)
    (folder / ".cache").mkdir()
    for found in [comfyui, *paths.CACHE.glob("frontend-*")]:
        (folder / ".cache" / found.name).symlink_to(found)
    if (paths.CACHE / "mypy").is_dir():
        shutil.copytree(
            paths.CACHE / "mypy", folder / ".cache" / "mypy"
        )  # else it checks every library again
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    return folder


def test_suite_passes_in_a_folder_of_any_name(clone, comfyui):
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    variables |= {"GLASSBOX_COMFYUI": str(comfyui), "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-P", "run.py", "test", *_FEW_TESTS, "-q", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        command, cwd=clone, env=variables, capture_output=True, text=True, encoding="utf-8"
    )
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-4000:]
    assert "All checks passed!" in ran.stdout and " passed" in ran.stdout
