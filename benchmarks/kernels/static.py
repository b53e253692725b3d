"""What compilers say of the kernels, without a GPU: registers, spills, shared memory, instructions,
occupancy.

Every Triton kernel is compiled ahead of time for every target, with the assemblers that Triton
brings, and every CUDA C++ kernel by NVRTC (package nvidia-cuda-nvrtc).
"""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from studies.common import host, results

README = host.ROOT / "kernels" / "README.md"
NUMBER = "*NUMBER"  # a pointer to the type of a variant


@dataclass(frozen=True)
class Target:
    """A GPU: what NVIDIA calls a compute capability or AMD an architecture. Sizes of one
    multiprocessor, in bytes.
    """

    name: str
    family: str
    architecture: int | str
    example: str
    block_shared: int  # that one block may have
    shared: int = 0
    warps: int = 0


TARGETS = [
    Target("sm_80", "nvidia", 80, "A100", 163 << 10, 164 << 10, 64),
    Target("sm_86", "nvidia", 86, "RTX 3090", 99 << 10, 100 << 10, 48),
    Target("sm_89", "nvidia", 89, "RTX 4090", 99 << 10, 100 << 10, 48),
    Target("sm_90", "nvidia", 90, "H100", 227 << 10, 228 << 10, 64),
    Target("sm_120", "nvidia", 120, "RTX 5090", 99 << 10, 100 << 10, 48),
    Target("gfx942", "cdna", "gfx942", "MI300X", 64 << 10),
    Target("gfx1100", "rdna", "gfx1100", "RX 7900", 64 << 10),
]
#: CUDA C++ also runs where Triton does not.
TURING = Target("sm_75", "nvidia", 75, "RTX 2080", 64 << 10, 64 << 10, 32)
_REGISTERS = 65536  # of a multiprocessor


@dataclass(frozen=True)
class Variant:
    """A kernel as it is launched for one type of its data. ``multiples``: arguments that are
    multiples of 16.
    """

    module: str
    kernel: str
    number: str
    types: Mapping[str, str]
    launch: Callable[[str], dict] = field(repr=False)
    multiples: tuple[str, ...] = ()
    product: bool = False
    streams: bool = True  # whether its time is that of reading data
    note: str = ""

    @property
    def name(self) -> str:
        """The kernel, its type and its note."""
        return f"{self.kernel.strip('_')} {self.number}{f', {self.note}' if self.note else ''}"


def variants() -> Iterator[Variant]:
    """Every kernel with every type and tile."""
    numbers = ("fp32", "bf16", "fp16")
    drawn, cost, low_rank, attention = (
        host.pack(f"kernels.triton.{name}")
        for name in ("nearest_drawn", "assignment_cost", "low_rank", "mean_attention")
    )
    group = host.pack("kernels").BASIS_GROUP
    for number in numbers:
        yield Variant(
            "nearest_drawn",
            "_distances",
            number,
            {"data": NUMBER, "seeds": "*i64", "distances": "*fp32"},
            lambda _: {"BLOCK": drawn.BLOCK},
            ("size", "data_stride"),
        )
    yield Variant(
        "nearest_drawn",
        "_draw",
        "fp32",
        {"seeds": "*i64", "index": "*i64", "result": "*fp32"},
        lambda _: {"BLOCK": drawn.BLOCK},
        ("size",),
        streams=False,
    )
    sums = dict.fromkeys(("products", "row_sums", "column_sums", "tile_sums"), "*fp32")
    for number in numbers:
        yield Variant(
            "assignment_cost",
            "_products",
            number,
            {"data": NUMBER, "noise": NUMBER, **sums},
            lambda family, n=number: {
                "HALF": n == "fp16",
                "INTERPRETED": False,
                **cost.launch(family, n == "fp32"),
            },
            ("rows", "columns", "size", "length", "data_stride", "noise_stride"),
            product=True,
        )
    tile = {"ROWS": cost.SUM_ROWS, "COLUMNS": cost.SUM_COLUMNS, "SUMS": cost.SUMS}
    yield Variant(
        "assignment_cost",
        "_centered",
        "fp32",
        {**sums, "cost": "*fp32"},
        lambda _, tile=tile: tile,
        ("rows", "columns"),
    )
    point = {"coefficients": "*fp32", "basis": NUMBER, "scale": "*fp32", "sums": "*fp32"}
    for number in ("i8", "bf16", "fp16"):
        tile = {
            "SCALED": number == "i8",
            "GROUP": group,
            "ROWS": low_rank.BASIS_ROWS,
            "BLOCK": low_rank.BLOCK,
        }
        yield Variant(
            "low_rank",
            "_combine",
            number,
            point,
            lambda _, tile=tile: tile,
            ("size", "basis_stride"),
        )
    for number, factors in itertools.permutations(numbers, 2):
        types = {
            "weight": NUMBER,
            "result": NUMBER,
            "up": f"*{factors}",
            "down": f"*{factors}",
            "strength": "fp32",
        }
        yield Variant(
            "low_rank",
            "_apply",
            number,
            types,
            lambda family, f=factors: low_rank.launch(family, f == "fp32"),
            ("rows", "columns", "rank"),
            product=True,
            note=f"factors {factors}",
        )
    pointers = {
        "query": NUMBER,
        "key": NUMBER,
        "mask": NUMBER,
        "scale": "fp32",
        "sums": "*fp32",
        "result": "*fp32",
    }
    strides = ("channels", "query_row", "query_head", "query_stride")
    strides += ("key_row", "key_head", "key_stride")
    tiles = {
        "_one_pass": attention.FEW,
        "_log_sums": attention.COLUMNS,
        "_means": attention.COLUMNS,
    }
    for kernel, columns in tiles.items():
        few = kernel == "_one_pass"
        for number, masked in itertools.product(numbers, (False, True)):
            yield Variant(
                "mean_attention",
                kernel,
                number,
                pointers,
                lambda family, n=number, few=few, masked=masked, columns=columns: {
                    "COLUMNS": columns,
                    "MASKED": masked,
                    **attention.launch(family, n == "fp32", few, masked),
                },
                strides,
                product=True,
                note="with a mask" if masked else "",
            )


def compiled(variant: Variant, target: Target) -> dict:
    """Registers a thread, spilled and shared bytes, occupancy, and counts of instructions, of one
    variant.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(host.pack(f"kernels.triton.{variant.module}"), variant.kernel)
    launch = dict(variant.launch(target.family))
    options = {name: launch.pop(name) for name in ("num_warps", "num_stages") if name in launch}
    signature, attributes = {}, {}
    for place, parameter in enumerate(function.params):
        if parameter.is_constexpr:
            signature[parameter.name] = "constexpr"
        else:
            kind = variant.types.get(parameter.name, "i32").replace("NUMBER", variant.number)
            signature[parameter.name] = kind
            if kind.startswith("*") or parameter.name in variant.multiples:
                attributes[(place,)] = [["tt.divisibility", 16]]
    lanes = 64 if target.family == "cdna" else 32
    gpu = GPUTarget("cuda" if target.family == "nvidia" else "hip", target.architecture, lanes)
    binary = triton.compile(
        ASTSource(function, signature, launch, attributes), target=gpu, options=options
    )
    shared, warps = binary.metadata.shared, binary.metadata.num_warps
    if target.family == "nvidia":
        return {"shared": shared, **_of_ptx(binary.asm["ptx"], target, warps, shared)}
    return {"shared": shared, **_of_amd(binary.asm["amdgcn"], target)}


def _of_ptx(code: str, target: Target, warps: int, shared: int) -> dict:
    import triton

    programs = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    assembler = programs / ("ptxas-blackwell" if int(target.architecture) >= 100 else "ptxas")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(code)
        name = re.search(r"\.target (\w+)", code)[1]
        command = [
            str(assembler),
            "-v",
            "--gpu-name",
            name,
            str(source),
            "-o",
            str(Path(folder) / "kernel.cubin"),
        ]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    registers = int(re.search(r"Used (\d+) registers", report)[1])
    stack, stored = map(
        int, re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores", report).groups()
    )
    return {
        "registers": registers,
        "spilled": max(stack, stored),
        "occupancy": _occupancy(target, registers, warps, shared),
        "matrix": len(re.findall(r"mma\.sync|wgmma\.mma|tcgen05\.mma", code)),
        "wide": len(
            re.findall(r"ld\.global[\w.:]*\.v4|ld\.global[\w.:]*v2\.b64|cp\.async\.cg", code)
        ),
        "doubles": len(re.findall(r"\.f64", code)),
    }


def _of_amd(code: str, target: Target) -> dict:
    def report(what: str) -> int:
        return int(re.search(rf"{what}:?\s+(\d+)", code)[1])

    return {
        "registers": report(r"\.vgpr_count"),
        "spilled": 4 * (report(r"\.vgpr_spill_count") + report(r"\.sgpr_spill_count")),
        "occupancy": report("; Occupancy") / (8 if target.family == "cdna" else 16),
        "matrix": len(re.findall(r"v_mfma|v_wmma", code)),
        "wide": len(re.findall(r"load_dwordx4|load_b128", code)),
        "doubles": len(re.findall(r"v_\w+_f64", code)),
    }


def _occupancy(target: Target, registers: int, warps: int, shared: int) -> float:
    """The fraction of a multiprocessor's warps that fit at once."""
    granted = -(-registers // 8) * 8 * 32 * warps
    blocks = min(_REGISTERS // granted, target.warps // warps, target.shared // (shared + 1024))
    return blocks * warps / target.warps


def problems(target: Target, found: Mapping, product: bool, streams: bool) -> list[str]:
    """What is wrong with a compiled kernel, of a ``product`` or one that ``streams`` what it
    reads.
    """
    rules = {
        f"{found['spilled']} bytes are spilled": found["spilled"] > 0,
        f"{found['shared']} bytes of shared memory": found["shared"] > target.block_shared,
        "a product without matrix instructions": product and not found["matrix"],
        "no wide loads": streams and not found["wide"],
        "64-bit floats": found["doubles"] > 0,
    }
    return [rule for rule, broken in rules.items() if broken]


def variant_problems(variant: Variant, target: Target, found: Mapping) -> list[str]:
    """`problems` of a Triton kernel."""
    multiplied = not (
        target.family == "rdna" and variant.launch("rdna").get("WIDE")
    )  # Radeon has no float32 matrices
    return problems(target, found, variant.product and multiplied, variant.streams)


def source_problems(
    name: str, constants: Mapping[str, int], target: Target, found: Mapping
) -> list[str]:
    """`problems` of a function of a CUDA C++ source."""
    return problems(
        target, found, product=False, streams=name != "nearest_drawn" and bool(constants["ALIGNED"])
    )


def nvrtc() -> ctypes.CDLL:
    """The library of the package nvidia-cuda-nvrtc."""
    found = importlib.util.find_spec("nvidia")
    folders = map(Path, found.submodule_search_locations if found else [])
    libraries = [path for folder in folders for path in folder.glob("*/lib/libnvrtc.so.*")]
    if not libraries:
        raise FileNotFoundError("NVRTC is not installed: pip install nvidia-cuda-nvrtc")
    return ctypes.CDLL(str(libraries[0]))


def sources() -> Iterator[tuple[str, dict[str, int]]]:
    """Every CUDA C++ source with every set of constants that it is compiled with."""
    launch = host.pack("kernels.cuda.launch")
    for number in range(3):
        yield "nearest_drawn", {"NUMBER": number, "ROUNDS": launch.ROUNDS}
        for aligned in (0, 1):
            yield "low_rank_apply", {"NUMBER": number, "ALIGNED": aligned}
            yield (
                "flat_weights",
                {"NUMBER": number + 1, "GROUP": launch.BASIS_GROUP, "ALIGNED": aligned},
            )


def of_source(
    library: ctypes.CDLL, name: str, constants: Mapping[str, int], target: Target
) -> dict[str, dict]:
    """As ``compiled``, of each function of a CUDA C++ source."""
    import triton

    programs = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    cubin = host.pack("kernels.cuda.nvrtc").compiled(
        library, name, str(target.architecture), constants
    )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage, code = (
            subprocess.run(
                [str(programs / command), option, file.name],
                capture_output=True,
                text=True,
                check=True,
            )
            for command, option in (("cuobjdump", "--dump-resource-usage"), ("nvdisasm", "-c"))
        )
    warps = {"nearest_drawn": 8, "low_rank_apply": 8, "flat_weights": 4}[name]
    found = {}
    pattern = r"Function (\w+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)"
    for function, *sizes in re.findall(pattern, usage.stdout):
        registers, stack, shared, local = map(int, sizes)
        body = code.stdout.partition(f".text.{function}:")[2].partition(".text.")[0]
        found[function] = {
            "registers": registers,
            "spilled": stack + local,
            "shared": shared,
            "occupancy": _occupancy(target, registers, warps, shared),
            "matrix": 0,
            "wide": len(re.findall(r"LDG\S*\.(?:128|64)", body)),
            "doubles": len(re.findall(r"\bD(?:ADD|MUL|FMA|SETP)\b", body)),
        }
    return found


def measure() -> dict[str, dict[str, dict]]:
    """Everything, by variant and target."""
    table: dict[str, dict[str, dict]] = {}
    for variant in variants():
        row = table[variant.name] = {}
        for target in TARGETS:
            row[target.name] = compiled(variant, target)
            for problem in variant_problems(variant, target, row[target.name]):
                print(f"{variant.name}, {target.name}: {problem}", flush=True)
    library = nvrtc()
    for name, constants in sources():
        kind = ("fp32", "bf16", "fp16", "i8")[constants["NUMBER"]]
        if constants.get("ALIGNED", 1):
            for target in (TURING, *(target for target in TARGETS if target.family == "nvidia")):
                for function, found in of_source(library, name, constants, target).items():
                    table.setdefault(f"{function} {kind}, CUDA C++", {})[target.name] = found
                    for problem in source_problems(name, constants, target, found):
                        print(f"{function} {kind}, CUDA C++, {target.name}: {problem}", flush=True)
    return table


def traffic() -> list[tuple[str, str, float, float]]:
    """What, design, and bytes through the L2 cache and from or to memory: tiles read again cost the
    former alone.
    """
    cost, low_rank, attention = (
        host.pack(f"kernels.triton.{name}")
        for name in ("assignment_cost", "low_rank", "mean_attention")
    )
    rows, size = 256, 16_384
    data, table = 4 * rows * size, 4 * rows * rows  # one input, and one table of costs
    tile, pieces = cost.launch("nvidia", single=True), 32

    def products(height: int, width: int, tables: int) -> float:
        return data * (rows / height + rows / width) + 2 * pieces * table + tables * table

    what = "assignment_cost, B = 256, D = 16,384, float32"
    found = [
        (what, "tiles of 64 x 64, centering of its own", products(64, 64, 8), 2 * data + table),
        (
            what,
            f"tiles of {tile['ROWS']} x {tile['COLUMNS']}, sums on the way",
            products(tile["ROWS"], tile["COLUMNS"], 1),
            2 * data + table,
        ),
    ]
    images, positions, keys, channels = 2, 4096, 77, 640
    query, key, maps = (
        2 * images * positions * channels,
        2 * images * keys * channels,
        4 * images * positions * keys,
    )
    what = "mean_attention, SDXL, 64 x 64 positions, 77 keys, bfloat16"
    for passes, height in (
        (2, 64),
        (1, attention.launch("nvidia", wide=False, few=True, masked=False)["ROWS"]),
    ):
        found.append(
            (
                what,
                f"{passes} pass{'es' * (passes > 1)}, tiles of {height} positions",
                passes * (query + positions / height * key) + maps,
                passes * query + key + maps,
            )
        )
    side, rank = 3072, 16
    weight, factors = 2 * side * side, 8 * side * rank
    tile = low_rank.launch("nvidia", wide=True)
    what = "low_rank_apply, 3,072 x 3,072 in bfloat16, rank 16 in float32"
    again = 4 * side * rank * (side / tile["COLUMNS"] + side / tile["ROWS"])
    found += [
        (what, "to float32, product and sum, back", 10 * weight + again, 10 * weight + factors),
        (what, "in one pass", 2 * weight + again, 2 * weight + factors),
    ]
    count, width = 1000, 99_648
    basis, sums = count * width, 4 * width
    what = "flat_weights, K = 1,000, D = 99,648, int8"
    found += [
        (what, "to float32, times scales, product", 25 * basis + 3 * sums, 25 * basis + 3 * sums),
        (what, "in one pass", basis + 6 * sums, basis + 3 * sums),
    ]
    return found


def traffic_lines() -> list[str]:
    """The table of `traffic` in kernels/README.md."""
    rows = (
        f"| {what} | {design} | {cache / 1e6:.0f} MB | {memory / 1e6:.0f} MB |"
        for what, design, cache, memory in traffic()
    )
    return ["| what | design | through the L2 cache | memory |", "|---|---|---|---|", *rows]


def _replace(block: str, lines: list[str]) -> None:
    """Write the lines between the marks of a block in kernels/README.md."""
    text = README.read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- {block} -->\n).*?(?=<!-- end -->)", re.S)
    README.write_text(
        pattern.sub(lambda found: found[1] + "\n".join([*lines, ""]), text), encoding="utf-8"
    )


def main() -> int:
    """Compile everything, and write the tables of kernels/README.md and a JSON."""
    import triton

    table = measure()
    numbers = {
        f"{name}, {target}": results.number(
            found["registers"],
            1,
            "registers",
            f"{found['spilled']} bytes spilled, {found['shared']} of shared memory, occupancy "
            f"{found['occupancy']:.2f}, {found['matrix']} matrix instructions, {found['wide']} "
            f"loads of 16 bytes; Triton {triton.__version__}",
        )
        for name, row in table.items()
        for target, found in row.items()
    }
    command = "python run.py bench kernels --static"
    print(results.write("kernels_static", command, 0, host.ROOT / "kernels", numbers))
    names = [TURING.name, *(target.name for target in TARGETS)]
    lines = [f"| kernel | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for name, row in table.items():
        cells = {
            n: f"{found['registers']} · {found['shared'] / 1024:.0f} · {found['occupancy']:.0%}"
            for n, found in row.items()
        }
        lines.append(f"| {name} | {' | '.join(cells.get(n, '') for n in names)} |")
    spilled = sum(found["spilled"] for row in table.values() for found in row.values())
    lines += [
        "",
        f"Spilled, all together: {spilled} bytes. Made by `{command}` with Triton "
        f"{triton.__version__}.",
    ]
    _replace("static", lines)
    _replace("traffic", traffic_lines())
    return 0
