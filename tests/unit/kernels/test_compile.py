"""The kernels compile for a GPU, which needs none: the interpreter lets pass what a compiler refuses."""

import os
import subprocess
import sys

import kernel_compile
import pytest
import repository

#: Of shared memory a block can have on every GPU since 2020.
SHARED = 99 * 1024


def test_every_kernel_compiles(interpreter, tmp_path):
    command = [sys.executable, "-P", str(repository.ROOT / "tests" / "helpers" / "kernel_compile.py"), "86", "bf16"]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(repository.ROOT / "tests" / "helpers")
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    if "Cannot find" in run.stderr and "ptxas" in run.stderr:
        pytest.skip("this build of Triton brings no assembler")
    assert run.returncode == 0, run.stderr[-3000:]
    lines = [line.split() for line in run.stdout.splitlines()]
    assert [name for name, _ in lines] == [name for _, name, *_ in kernel_compile.KERNELS]
    assert all(int(shared) <= SHARED for _, shared in lines)
