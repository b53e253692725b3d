"""What the registry and pip read about the pack."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib

import repository
import yaml


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


def test_only_pyproject_waits_for_the_owner(root):
    """What only the owner can fill in is in one file, and publishing is refused until then."""
    files = subprocess.run(
        ["git", "grep", "-lw", "OWNER"], cwd=root, capture_output=True, text=True
    ).stdout.split()
    assert set(files) <= {
        "pyproject.toml",
        ".github/workflows/publish.yml",
        "tests/unit/launcher/test_metadata.py",
    }


def test_citation_has_the_version(root):
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert f"\nversion: {project['version']}\n" in (root / "CITATION.cff").read_text()


def test_github_workflows_can_be_read_and_name_a_workflow(root):
    for path in (root / ".github" / "workflows").glob("*.yml"):
        assert set(yaml.safe_load(path.read_text("utf-8"))) >= {"name", "jobs", "permissions"}
    (name,) = re.findall(r"--only (\w+)", (root / ".github" / "workflows" / "test.yml").read_text())
    assert repository.named(name) in repository.DEMOS


def test_ci_can_be_started(root):
    assert os.access(root / ".ci" / "run", os.X_OK)
