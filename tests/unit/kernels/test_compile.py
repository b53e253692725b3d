"""The kernels compile for GPUs that need not be there, without spills: the interpreter accepts
more.
"""

import os
import subprocess
import sys

import pytest
import repository

#: One product of each module and one kernel that reads, on one target.
FEW = ["products fp32", "apply bf16, factors fp32", "one_pass bf16", "combine i8"]
_CODE = """
import sys, runpy
load = runpy.run_path("run.py")["load_package"]
for name in ("tools", "studies", "benchmarks"):
    load(name)
from benchmarks.kernels import static
(target,), few = [t for t in static.TARGETS if t.name == sys.argv[1]], sys.argv[2:]
chosen = [v for v in static.variants() if not few or v.name in few]
assert len(chosen) == len(few) or not few
for variant in chosen:
    for problem in static.variant_problems(variant, target, static.compiled(variant, target)):
        print(f"{variant.name}: {problem}")
"""


def problems(*arguments: str) -> str:
    """What is wrong, a line each; in a process of its own, since the tests' own has the
    interpreter.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, "-P", "-c", _CODE, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        cwd=repository.ROOT,
        timeout=1800,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout


def test_some_kernels_compile_for_geforce(interpreter):
    assert problems("sm_89", *FEW) == ""


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_80", "sm_86", "sm_90", "gfx1100"])
def test_some_kernels_compile(interpreter, target):
    """`run.py bench kernels --static` compiles them all for every target."""
    assert problems(target, *FEW) == ""


@pytest.mark.slow
@pytest.mark.endurance
@pytest.mark.parametrize("target", ["sm_89", "sm_120", "gfx942"])
def test_every_kernel_compiles(interpreter, target):
    assert problems(target) == ""
