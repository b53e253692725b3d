"""The CUDA C++ sources: compiled by NVRTC for GPUs that need not be there, and run on the CPU by a
host's compiler.
"""

import ctypes
import shutil
import subprocess

import kernel_inputs
import pytest
import repository
import torch
from glassbox.kernels import dispatch, self_check, table
from glassbox.kernels.cuda import launch, nvrtc

from benchmarks.kernels import static

F32, BF16, F16, I8 = torch.float32, torch.bfloat16, torch.float16, torch.int8
#: The oldest and the newest; `run.py bench kernels --static` compiles for all of them.
TARGETS = [static.TURING, *(target for target in static.TARGETS if target.name == "sm_120")]
SOURCES = list(static.sources())
CASES = [
    ("nearest_drawn", F32, (2, 1030, 3)),
    ("nearest_drawn", BF16, (1, 8, 5)),
    ("nearest_drawn", F16, (3, 7, 1)),
    ("flat_weights", BF16, (9, 1304)),
    ("flat_weights", F16, (8, 513)),
    ("flat_weights", I8, (11, 4096)),
    ("flat_weights", I8, (7, 2051)),
    ("low_rank_apply", F32, (1, 1, 1)),
    ("low_rank_apply", BF16, (65, 132, 4)),
    ("low_rank_apply", F16, (33, 63, 40)),
]


@pytest.fixture(scope="module")
def library():
    pytest.importorskip("triton", reason="Triton is not installed: its tools read what NVRTC makes")
    try:
        return static.nvrtc()
    except FileNotFoundError as error:
        pytest.skip(str(error))


def check(library, sources, target):
    for name, constants in sources:
        found = static.of_source(library, name, constants, target)
        assert sorted(found) == sorted(launch.FUNCTIONS[name])
        for usage in found.values():
            assert static.source_problems(name, constants, target, usage) == []


def test_sources_compile_for_geforce(library):
    check(library, [source for source in SOURCES if source[1]["NUMBER"] == 1], static.TARGETS[2])


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_every_source_compiles(library, target):
    check(library, SOURCES, target)


def test_a_compile_error_names_file_and_line(library):
    with pytest.raises(RuntimeError, match=r"nearest_drawn\.cu\(\d+\): error: .*ROUNDS"):
        nvrtc.compiled(library, "nearest_drawn", "89", {"NUMBER": 0})


def test_pytorch_has_what_loads_them():
    """Names without a promise, which is why a failure there leaves the kernels out."""
    from torch.cuda import _utils

    assert callable(_utils._get_nvrtc_library) and callable(_utils._cuda_load_module)


@pytest.fixture
def on_cpu(monkeypatch, tmp_path):
    """The launchers with kernels that a host's compiler has made."""
    if not shutil.which("g++"):
        pytest.skip("g++ is not installed")

    def kernels(name, **constants):
        exported = [
            f'extern "C" bool run_{function}'
            "(int across, int down, int threads, int given, void **from) {\n"
            f"    return launch<{function}>(across, down, threads, given, from);\n}}"
            for function in launch.FUNCTIONS[name]
        ]
        header = repository.ROOT / "tests" / "helpers" / "cuda_on_cpu.h"
        text = "\n".join([f'#include "{header}"', nvrtc.source(name), *exported])
        made = tmp_path / f"{name}{len(list(tmp_path.iterdir()))}.so"
        defined = [f"-D{key}={value}" for key, value in constants.items()]
        flags = ["-std=c++17", "-O1", "-w", "-fno-strict-aliasing", "-shared", "-fPIC"]
        subprocess.run(
            ["g++", *flags, *defined, "-x", "c++", "-", "-o", str(made)],
            input=text,
            text=True,
            check=True,
        )
        loaded = ctypes.CDLL(str(made))
        return {
            function: runner(getattr(loaded, f"run_{function}"))
            for function in launch.FUNCTIONS[name]
        }

    def runner(run):
        run.restype = ctypes.c_bool

        def launched(grid, block, arguments):
            values = [
                ctypes.c_void_p(given.data_ptr())
                if isinstance(given, torch.Tensor)
                else ctypes.c_int(given)
                for given in arguments
            ]
            pointers = (ctypes.c_void_p * len(values))(
                *(ctypes.addressof(value) for value in values)
            )
            assert grid[2:] == (1,) and block[1:] == (1, 1)
            assert run(grid[0], grid[1], block[0], len(values), pointers)

        return launched

    monkeypatch.setattr(launch, "kernels", kernels)


@pytest.mark.parametrize(("operation", "dtype", "sizes"), CASES)
def test_against_eager(on_cpu, monkeypatch, operation, dtype, sizes):
    """With the tolerance of sums in float32 in another order."""
    monkeypatch.setattr(
        self_check, "TABLE", {operation: table.Operation(operation, tolerance=3e-6)}
    )
    arguments = getattr(kernel_inputs, operation)(dtype, *sizes)
    assert table.unfit(table.TABLE[operation].kernels["cuda"], arguments) is None
    found, wanted = (
        dispatch.function(backend, operation)(**arguments) for backend in ("cuda", "eager")
    )
    assert self_check.disagreement(operation, found, wanted, arguments) is None


def test_every_kernel_has_cases():
    assert {operation for operation, *_ in CASES} == {
        operation for operation, entry in table.TABLE.items() if "cuda" in entry.kernels
    }
