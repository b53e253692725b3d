"""The kernels compile for a GPU, which needs none: the interpreter lets pass what a compiler refuses."""

import os
import subprocess
import sys

import kernel_compile
import pytest
import repository

#: Of shared memory a block can have on every GPU since 2020.
SHARED = 99 * 1024
#: Kernels with products, which in float32 are others: three of TF32 for one, and tiles twice as large.
PRODUCTS = ["_products", "_best", "_apply", "_log_sums", "_means"]


@pytest.mark.parametrize(("number", "names"), [("bf16", []), ("fp32", PRODUCTS)])
def test_every_kernel_compiles(interpreter, number, names):
    helper = str(repository.ROOT / "tests" / "helpers" / "kernel_compile.py")
    command = [sys.executable, "-P", helper, "86", number, *names]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(repository.ROOT / "tests" / "helpers")
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    if "Cannot find" in run.stderr and "ptxas" in run.stderr:
        pytest.skip("this build of Triton brings no assembler")
    assert run.returncode == 0, run.stderr[-3000:]
    lines = [line.split() for line in run.stdout.splitlines()]
    assert [name for name, _ in lines] == [name for _, name, *_ in kernel_compile.KERNELS if not names or name in names]
    assert all(int(shared) <= SHARED for _, shared in lines)
