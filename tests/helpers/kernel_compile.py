"""Compile every Triton kernel for a GPU that need not be there: `python kernel_compile.py CAPABILITY TYPE [NAME ...]`.

CAPABILITY is a compute capability such as 86, TYPE fp32, bf16 or fp16. Prints a line a kernel: its name and the bytes
of shared memory that it takes. Ends with an error where one does not compile.
"""

from __future__ import annotations

import importlib
import sys

import repository

#: Module and kernel, the types of its pointers and floats (NUMBER: the type asked for), and its constants.
_NUMBER = "*NUMBER"
_ATTENTION = {"query": _NUMBER, "key": _NUMBER, "chosen": "*i32", "sums": "*fp32", "scale": "fp32"}
_POINT = {"coefficients": "*fp32", "scale": "*fp32", "mean": "*fp32", "deviation": "*fp32", "flat": "*fp32",
          "begun_and_made": "*i32", "table": "*i64", "strength": "fp32"}  # fmt: skip
KERNELS = [
    ("nearest_noise", "_moments", {"data": _NUMBER, "noise": "*fp32", "sums": "*fp32"}, {}),
    ("nearest_noise", "_blend", {"data": _NUMBER, "noise": "*fp32", "along": "*fp64", "scale": "*fp64",
                                 "result": "*fp32"}, {}),
    ("nearest_drawn", "_distances", {"data": _NUMBER, "seeds": "*i64", "distances": "*fp32"}, {}),
    ("nearest_drawn", "_draw", {"seeds": "*i64", "index": "*i64", "result": "*fp32"}, {}),
    ("assignment_cost", "_products", {"data": _NUMBER, "noise": _NUMBER, "products": "*fp32"}, {}),
    ("least_assignment", "_auction", {"cost": _NUMBER, "first_step": "*fp64", "last_step": "*fp64", "prices": "*fp64",
                                      "columns": "*i64"}, {"BLOCK": 1024, "ROWS": 8}),
    ("best_match", "_best", {"queries": _NUMBER, "targets": _NUMBER, "query_norms": "*fp32", "target_norms": "*fp32",
                             "best_target": "*i64", "best_query": "*i64"}, {"MUTUAL": True}),
    ("low_rank", "_combine", {"coefficients": "*fp32", "basis": _NUMBER, "scale": "*fp32", "sums": "*fp32"},
     {"SCALED": False, "GROUP": 1024, "ROWS": 8}),
    ("low_rank", "_combine", {"coefficients": "*fp32", "basis": "*i8", "scale": "*fp32", "sums": "*fp32"},
     {"SCALED": True, "GROUP": 1024, "ROWS": 8}),
    ("low_rank", "_apply", {"weight": _NUMBER, "up": _NUMBER, "down": _NUMBER, "result": _NUMBER, "strength": "fp32"},
     {}),
    ("low_rank", "_apply_all", _POINT | {"basis": _NUMBER}, {"SCALED": False, "GROUP": 1024, "FIELDS": 7}),
    ("low_rank", "_apply_all", _POINT | {"basis": "*i8"}, {"SCALED": True, "GROUP": 1024, "FIELDS": 7}),
    ("neuron_moments", "_activations", {"values": _NUMBER, "activations": "*fp32"}, {}),
    ("mean_attention", "_log_sums", _ATTENTION, {"WIDTH": 64, "ROWS": 64, "COLUMNS": 64}),
    ("mean_attention", "_log_sums", _ATTENTION, {"WIDTH": 256, "ROWS": 32, "COLUMNS": 32}),  # 160 channels of SD1.5
    ("mean_attention", "_means", _ATTENTION | {"tokens": "*i32", "result": "*fp32"},
     {"WIDTH": 64, "ROWS": 64, "COLUMNS": 64}),
]  # fmt: skip


def compiled(capability: int, number: str, module: str, name: str, types: dict, constants: dict):
    """One kernel for a GPU of that capability, with ``number`` as the type of its data."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    home = importlib.import_module(f"{repository.PACK}.kernels.triton.{module}")
    function = getattr(home, name)
    signature, values = {}, {}
    for parameter in function.params:
        if parameter.is_constexpr:
            signature[parameter.name] = "constexpr"
            default = number == "fp32" if parameter.name == "WIDE" else getattr(home, parameter.name, None)
            values[parameter.name] = constants.get(parameter.name, default)
        else:
            signature[parameter.name] = types.get(parameter.name, "i32").replace("NUMBER", number)
    options = {"num_stages": 2} if module == "mean_attention" else {}
    return triton.compile(ASTSource(function, signature, values), target=GPUTarget("cuda", capability, 32),
                          options=options)  # fmt: skip


if __name__ == "__main__":
    repository.load_pack()
    for kernel in KERNELS:
        if len(sys.argv) == 3 or kernel[1] in sys.argv[3:]:
            print(kernel[1], compiled(int(sys.argv[1]), sys.argv[2], *kernel).metadata.shared, flush=True)
