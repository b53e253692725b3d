"""A missing package is named with its command; a broken one with the cause."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from absent_packages import make_absent
from glassbox.nodes.activations import kmeans, overlays
from glassbox.nodes.common import peft_files
from glassbox.nodes.common.training import training_loop
from glassbox.nodes.neurons import score_threshold
from glassbox.nodes.noise import scratch_training
from glassbox.nodes.weights import directions
from repository import ROOT

_CAUSE = "DLL load failed while importing _core: The specified module could not be found."


def _optimizer(name: str) -> Callable[[], object]:
    return lambda: training_loop.make_optimizer(name, [torch.nn.Parameter(torch.ones(1))], 0.1)


def _hyperplane() -> object:
    numbers = np.array([[0.0], [1.0], [2.0], [3.0]])
    return directions._hyperplane(directions.FitMethod.SVM, numbers, numbers[:, 0])


#: (name on import, pip's name, what needs it)
USES: dict[str, tuple[str, str, Callable[[], object]]] = {
    "digits": ("sklearn", "scikit-learn", scratch_training.digits),
    "clusters": ("sklearn", "scikit-learn", lambda: kmeans.cluster(torch.rand(1, 4, 6, 6), 2, 0)),
    "directions": ("sklearn", "scikit-learn", _hyperplane),
    "auroc": ("sklearn", "scikit-learn", lambda: score_threshold.auroc((0.9,), (0.1,))),
    "colors": ("matplotlib", "matplotlib", lambda: overlays.viridis(torch.rand(2, 2))),
    "Prodigy": ("prodigyopt", "prodigyopt", _optimizer("Prodigy")),
    "AdamW8bit": ("bitsandbytes", "bitsandbytes", _optimizer("AdamW8bit")),
    "peft": ("peft", "peft", peft_files.package),
}


@pytest.mark.parametrize("use", USES)
def test_a_missing_package_is_named_with_its_command(use, monkeypatch):
    package, install, work = USES[use]
    make_absent(package, monkeypatch)
    with pytest.raises(
        (RuntimeError, ValueError), match=f" needs {install}: pip install {install}"
    ):
        work()


@pytest.mark.parametrize("use", USES)
def test_a_broken_package_is_named_with_its_cause(use, monkeypatch):
    """Installing it again would not help: no command is given."""
    package, install, work = USES[use]
    make_absent(package, monkeypatch, cause=_CAUSE)
    with pytest.raises((RuntimeError, ValueError)) as caught:
        work()
    assert f"needs {install}, which is installed but cannot be imported" in str(caught.value)
    assert _CAUSE in str(caught.value)
    assert "pip install" not in str(caught.value)


def test_a_package_that_lacks_another_names_that(monkeypatch):
    """``No module named 'joblib'`` inside of scikit-learn is no lack of scikit-learn."""
    make_absent("sklearn", monkeypatch, cause="No module named 'joblib'")
    with pytest.raises(RuntimeError, match="cannot be imported here: No module named 'joblib'"):
        scratch_training.digits()


def test_every_caught_import_error_says_which_of_the_two_it_is():
    handlers = 0
    files = [*(ROOT / "nodes").rglob("*.py"), *(ROOT / "tools").rglob("*.py")]
    for file in sorted(files):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ExceptHandler) or node.type is None:
                continue
            if "ImportError" not in ast.unparse(node.type):
                continue
            handlers += 1
            where = f"{Path(os.path.relpath(file, ROOT))}:{node.lineno}"
            body = "\n".join(map(ast.unparse, node.body))
            # Importing torchvision a second time reports nothing: what then fails is raised.
            assert "missing_package(" in body or "_import_torchvision()" in body, where
    assert handlers == 11
