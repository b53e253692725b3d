"""Precision auto: bf16 where the device multiplies it, else fp32."""

import json
import os
import platform
import subprocess
import sys
import types
from pathlib import Path

import pytest
import repository
import torch
from glassbox.nodes.host import precision

_CPU = torch.device("cpu")
_ASK = """
import sys
sys.path.insert(0, {helpers!r})
import repository
import torch
repository.load_pack()
from glassbox.nodes.host.precision import resolve_precision
print(resolve_precision("auto", torch.device("cpu")))
"""


def _resolved(**environment: str) -> str:
    """What auto is on the CPU in a process with these variables."""
    script = _ASK.format(helpers=str(repository.ROOT / "tests" / "helpers"))
    clean = {name: value for name, value in os.environ.items() if not name.endswith("MAX_CPU_ISA")}
    answer = subprocess.run(
        [sys.executable, "-P", "-c", script],
        capture_output=True,
        text=True,
        env={**clean, **environment},
        cwd=repository.ROOT / "tests",
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.split()[-1]


def _flags() -> set[str]:
    cpuinfo = Path("/proc/cpuinfo")
    if platform.machine() != "x86_64" or not cpuinfo.exists():
        pytest.skip("this machine does not list its processor's instructions in /proc/cpuinfo")
    return set(
        next(line for line in cpuinfo.read_text().splitlines() if line.startswith("flags")).split()
    )


def test_auto_is_fp32_where_onednn_is_held_to_avx2():
    assert _resolved(ONEDNN_MAX_CPU_ISA="AVX2") == "fp32"
    assert _resolved(DNNL_MAX_CPU_ISA="avx512_core") == "fp32"


def test_auto_on_this_cpu_is_what_its_instructions_say():
    has_units = bool(_flags() & {"avx512_bf16", "amx_bf16"})
    assert _resolved() == ("bf16" if has_units else "fp32")
    assert _resolved(ONEDNN_MAX_CPU_ISA="DEFAULT") == ("bf16" if has_units else "fp32")


@pytest.mark.parametrize(("unit", "limit", "expected"), [
    ("_is_avx512_bf16_supported", "", "bf16"),
    ("_is_amx_tile_supported", "", "bf16"),
    ("_is_amx_tile_supported", "AVX512_CORE_BF16", "bf16"),
    ("_is_amx_tile_supported", "AVX512_CORE_VNNI", "fp32"),
    ("_is_avx2_supported", "", "fp32"),
])  # fmt: skip
def test_auto_asks_for_either_unit_and_for_onednns_limit(monkeypatch, unit, limit, expected):
    """On a processor with one unit, whatever this one has."""
    monkeypatch.setattr(torch, "cpu", types.SimpleNamespace(**{unit: lambda: True}))
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.delenv("DNNL_MAX_CPU_ISA", raising=False)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert precision.resolve_precision("auto", _CPU) == expected


def test_auto_is_fp32_where_pytorch_cannot_say(monkeypatch):
    """Builds without oneDNN (Apple's), and releases without these questions."""
    monkeypatch.setattr(torch, "cpu", types.SimpleNamespace())
    assert precision.resolve_precision("auto", _CPU) == "fp32"
    monkeypatch.setattr(torch, "cpu", types.SimpleNamespace(_is_avx512_bf16_supported=lambda: True))
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert precision.resolve_precision("auto", _CPU) == "fp32"


@pytest.mark.parametrize("supported", [False, True])
def test_comfyui_decides_for_a_gpu(monkeypatch, supported):
    devices = []
    management = types.ModuleType("comfy.model_management")
    management.should_use_bf16 = lambda device: devices.append(device) or supported
    package = types.ModuleType("comfy")
    package.model_management = management
    monkeypatch.setitem(sys.modules, "comfy", package)
    monkeypatch.setitem(sys.modules, "comfy.model_management", management)
    device = torch.device("cuda", 0)
    assert precision.resolve_precision("auto", device) == ("bf16" if supported else "fp32")
    assert devices == [device]


@pytest.mark.parametrize(("requested", "dtype"), [
    ("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)
])  # fmt: skip
def test_an_explicit_precision_stays(requested, dtype):
    resolved = precision.resolve_precision(requested, _CPU)
    assert resolved == requested and resolved.dtype == dtype
    assert precision.describe_precision(requested, resolved) == f"Precision: {requested}."
    assert "auto" in precision.describe_precision("auto", resolved)


def test_no_demo_workflow_names_bf16():
    """Demos run on laptops, whose processors take twenty times as long in it."""
    assert repository.DEMOS
    for path in repository.DEMOS:
        assert "bf16" not in path.read_text("utf-8"), path.name


def test_workflows_leave_the_precision_of_training_to_auto():
    """Whatever the model: the person's device decides."""
    trainers = {"GBX_TrainLoraImmiscible", "GBX_TrainSlider", "GBX_W2WInvert"}
    trainers |= {"GBX_W2WTrainSpace"}
    met = set()
    for path in repository.WORKFLOWS:
        for node in _nodes(json.loads(path.read_text("utf-8"))):
            if node["type"] in trainers:
                met.add(node["type"])
                assert "auto" in node["widgets_values"], (path.name, node["type"])
    assert met == trainers


def _nodes(workflow: dict) -> list[dict]:
    """The nodes of a workflow and of its subgraphs."""
    subgraphs = workflow.get("definitions", {}).get("subgraphs", [])
    return [node for graph in (workflow, *subgraphs) for node in graph["nodes"]]
