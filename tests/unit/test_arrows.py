"""No import of the pack runs against the arrows of its design."""

import ast

import import_arrows
import pytest
import repository


def test_no_arrow_runs_back():
    files = list(import_arrows.pack_files(repository.ROOT))
    assert [
        problem for file, source in files for problem in import_arrows.wrong_imports(file, source)
    ] == []
    assert [file for file, source in files if import_arrows.open_wildcards(source)] == []


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("kernels/eager.py", "from ..nodes.noise import pool"),
        ("kernels/eager.py", "import comfy.ops"),
        ("kernels/triton/nearest.py", "from ...nodes import common"),
        ("kernels/__init__.py", "import torch"),
        ("nodes/__init__.py", "import torch"),
        ("nodes/__init__.py", "from . import menu"),
        ("__init__.py", "from .nodes.menu import Glassbox"),
        ("__init__.py", "import numpy"),
        ("nodes/noise/pool.py", "import comfy.samplers"),
        ("nodes/noise/pool.py", "from comfy_api.latest import io"),
        ("nodes/noise/pool.py", "import folder_paths"),
        ("nodes/noise/pool.py", "from server import PromptServer"),
        ("nodes/noise/pool.py", "def f():\n    import nodes"),
        ("nodes/noise/pool.py", "from ..weights import space"),
        ("nodes/noise/pool.py", "from .. import weights"),
        ("nodes/noise/pool.py", "from ..weights.space import Space"),
        ("nodes/noise/pool.py", "from ..host import evaluate"),
        ("nodes/noise/pool.py", "from ..demo.architecture import SIZE"),
        ("nodes/noise/pool.py", "from . import nodes_immiscible"),
        ("nodes/noise/pool.py", "from .nodes_immiscible import Immiscible"),
        ("nodes/noise/pool.py", "from . import pool_comfy"),
        ("nodes/noise/pool.py", "from .pool_comfy import Pool"),
        ("nodes/noise/pool_comfy.py", "from . import nodes_immiscible"),
        ("nodes/noise/nodes_composition.py", "from . import nodes_immiscible"),
        ("nodes/noise/nodes_composition.py", "from .nodes_immiscible import pair"),
        ("nodes/noise/pool_comfy.py", "from ..weights import space"),
        ("nodes/noise/pool_comfy.py", "from ..weights import space_comfy"),
        ("nodes/common/lora_keys_comfy.py", "from ..host import evaluate"),
        ("nodes/noise/pool.py", "from ...kernels.triton import nearest"),
        ("nodes/noise/pool.py", "from ...kernels.triton.nearest import nearest"),
        ("nodes/noise/pool.py", "from ... import launch"),
        ("nodes/noise/pool.py", "import kernels"),
        ("nodes/noise/pool.py", "from glassbox.kernels import nearest"),
        ("nodes/noise/pool.py", "from tools.launcher import api"),
        ("nodes/noise/nodes_immiscible.py", "import comfy.utils"),
        ("nodes/noise/nodes_immiscible.py", "from comfy_api.internal import x"),
        ("nodes/noise/nodes_immiscible.py", "from ..weights import space"),
        ("nodes/common/lora_keys.py", "from ..host import evaluate"),
        ("nodes/common/lora_keys.py", "from ..noise import pool"),
        ("nodes/common/lora_keys.py", "import comfy.lora"),
        ("nodes/host/evaluate.py", "from ..noise import pool"),
        ("nodes/menu.py", "import comfy.utils"),
    ],
)
def test_a_wrong_arrow_is_found(file, source):
    assert import_arrows.wrong_imports(file, source)


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("__init__.py", "async def comfy_entrypoint():\n    from .nodes.menu import Glassbox"),
        ("kernels/__init__.py", "from .dispatch import nearest"),
        ("kernels/triton/nearest.py", "import torch\nfrom ..eager import nearest"),
        (
            "nodes/menu.py",
            "from comfy_api.latest import io\nfrom .noise.nodes_immiscible import Immiscible",
        ),
        (
            "nodes/noise/nodes_immiscible.py",
            "from comfy_api.latest import io\nfrom ..host import sampling\nfrom . import pool, "
            "pool_comfy",
        ),
        (
            "nodes/noise/pool_comfy.py",
            "import comfy.samplers\nfrom ..common import layout\nfrom ..host import "
            "sampling\nfrom . import pool",
        ),
        (
            "nodes/noise/pool.py",
            "import torch\nfrom ...kernels import nearest\nfrom ..common import bootstrap",
        ),
        ("nodes/noise/pool.py", "from ... import kernels\nfrom .assignment import assign"),
        ("nodes/host/evaluate.py", "import comfy.samplers\nfrom ..common import layout"),
        (
            "nodes/demo/model.py",
            "import comfy.model_base\nfrom ..host import sampling\nfrom .architecture import SIZE",
        ),
    ],
)
def test_a_right_arrow_is_let_through(file, source):
    assert import_arrows.wrong_imports(file, source) == []


def test_a_wildcard_is_found():
    assert import_arrows.open_wildcards("from .space import *")
    assert not import_arrows.open_wildcards("from .space import Space")


def _weight_reads(source: str) -> list[str]:
    """Where a file reads the weights of modules, not their shapes: dynamic VRAM keeps them
    elsewhere, unpatched.
    """
    tree = ast.parse(source)
    inner = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    inner |= {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "shape"
    }
    return [
        ast.unparse(node)
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr == "weight" and id(node) not in inner)
        or (
            isinstance(node, ast.Attribute)
            and node.attr == "state_dict"
            and "optimizer" not in ast.unparse(node)
        )
    ]


def test_weights_of_a_model_are_read_through_its_patcher():
    files = [
        (file, source)
        for file, source in import_arrows.pack_files(repository.ROOT)
        if "/demo/" not in file
    ]
    assert {file: found for file, source in files if (found := _weight_reads(source))} == {}


def test_a_read_of_a_weight_is_found():
    assert _weight_reads("x = layer.weight.float()") and _weight_reads("model.state_dict()")
    assert not _weight_reads("x = layer.weight.shape[1] + schedule.weight(u)")
