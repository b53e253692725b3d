"""What the registry and pip read about the pack."""

from __future__ import annotations

import os
import re

import tomllib


def test_dependencies_are_the_same_everywhere(root):
    project = tomllib.loads((root / "pyproject.toml").read_text())
    listed = (root / "requirements.txt").read_text().split()
    assert project["project"]["dependencies"] == listed
    assert not {re.split(r"\W", name)[0].lower() for name in listed} & {
        "torch",
        "torchvision",
        "torchaudio",
        "numpy",
        "pillow",
    }


def test_the_registry_takes_the_name(root):
    project = tomllib.loads((root / "pyproject.toml").read_text())
    assert re.fullmatch(r"[a-z][a-z0-9-]{0,98}", project["project"]["name"])
    assert not project["project"]["name"].startswith("comfyui")
    assert project["tool"]["comfy"]["requires-comfyui"] == ">=0.3.75"


def test_ci_can_be_started(root):
    assert os.access(root / ".ci" / "run", os.X_OK)
