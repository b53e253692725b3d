"""What is measured: every operation at sizes of real models, with what people write instead, and counted work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch.nn import functional as F

from ..common import host

#: Outputs and inputs of the queries and values of SD1.5: self- and cross-attention of sixteen blocks, 99,648 numbers.
SD15 = [(width, inputs) for width, blocks in ((320, 5), (640, 5), (1280, 6)) for _ in range(blocks)
        for inputs in (width, width, width, 768)]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One operation on one input. ``others``: contenders by name, called with the same arguments.

    ``operations`` counts multiplications and additions; bytes are those of every input and result, each touched once.
    """

    operation: str
    where: str
    make: Callable[[Callable], dict]
    operations: float
    others: Mapping[str, Callable] = field(default_factory=dict)
    matrix: bool = False

    def arguments(self, device: str, dtype: torch.dtype) -> dict:
        """The input, from a fixed seed."""
        generator = torch.Generator(device).manual_seed(0)
        return self.make(lambda *shape, dtype=dtype: torch.randn(shape, generator=generator, device=device).to(dtype))


def moved(arguments: Mapping, result) -> int:
    """Bytes of all inputs and results."""
    tensors_of = host.pack("kernels.table").tensors_of
    return sum(tensor.nbytes for tensor in tensors_of([*arguments.values(), result]))


def pairs(where: str, rows: int, size: int) -> list[Case]:
    """Both halves of the nearest noise in closed form, and the official form of it."""

    def data(draw):
        return {"data": draw(rows, size), "noise": draw(rows, size)}

    def numbers(draw):
        return data(draw) | {"along": draw(rows, dtype=torch.float32), "scale": draw(rows, dtype=torch.float32)}

    def seeds(draw):
        first = draw(rows, size)
        return {"data": first, "seeds": torch.arange(rows, device=first.device), "k": 8}

    work = rows * size
    return [
        Case("pair_moments", where, data, 6 * work, {"three products": _three_products}),
        Case("blend", where, numbers, 3 * work, {"broadcast": _broadcast}),
        Case("nearest_drawn", f"{where}, k = 8", seeds, 8 * 4 * work, {"drawn at once": _drawn_at_once}),
    ]


def cost(where: str, rows: int, size: int) -> Case:
    """The cost of assignment."""

    def make(draw):
        return {"data": draw(rows, size), "noise": draw(rows, size)}

    return Case("assignment_cost", where, make, 2 * rows * rows * size, {"cdist": _cdist}, matrix=True)


def assignment(where: str, count: int, size: int) -> Case:
    """The least assignment of one problem or several, costs as those of white pictures and noises."""

    def make(draw):
        cost = draw(count, size, size, dtype=torch.float32)
        return {"cost": cost if count > 1 else cost[0]}

    return Case("least_assignment", where, make, count * size * size, {"SciPy": _scipy})


def match(where: str, positions: int, channels: int) -> Case:
    """Best match both ways."""

    def make(draw):
        return {"queries": draw(positions, channels), "targets": draw(positions, channels), "mutual": True}

    operations = 2 * positions * positions * channels
    return Case("best_match", where, make, operations, {"materialised similarity": _materialised}, matrix=True)


def point(where: str, rows: int, size: int, quantised: bool) -> Case:
    """A point of a weight space."""

    def make(draw):
        basis, scale = draw(rows, size), None
        if quantised:
            basis, scale = (30 * basis).clamp(-127, 127).to(torch.int8), draw(rows, -(-size // 1024)).abs()
        return {"coefficients": draw(rows), "basis": basis, "mean": draw(size), "deviation": draw(size),
                "basis_scale": scale}  # fmt: skip

    kind = ", int8" if quantised else ""
    return Case("flat_weights", where + kind, make, 2 * rows * size, {"whole basis in float32": _whole_basis})


def network(where: str, rows: int, shapes: Sequence[tuple[int, int]], quantised: bool = False) -> Case:
    """A point of a weight space of rank 1 on all weights of a network."""
    places = [(0, 1)]
    for shape in shapes:
        places.append((places[-1][0] + sum(shape), 1))
    size = places.pop()[0]
    of_point = point(where, rows, size, quantised)

    def make(draw):
        weights = [draw(*shape, dtype=torch.bfloat16) for shape in shapes]
        return {"weights": weights, "places": places, **of_point.make(draw), "strength": 0.7}

    work = of_point.operations + 2 * sum(outputs * inputs for outputs, inputs in shapes)
    return Case("apply_point", of_point.where, make, work, {"a product a weight": _a_product_a_weight})


def change(where: str, rows: int, columns: int, rank: int) -> Case:
    """A low-rank change of one weight."""

    def make(draw):
        return {"weight": draw(rows, columns), "up": draw(rows, rank), "down": draw(rank, columns), "strength": 0.7}

    return Case("low_rank_apply", where, make, 2 * rows * columns * rank, {"product, then sum": _product_then_sum})


def neurons(where: str, prompts: int, tokens: int, width: int) -> Case:
    """Moments of a layer's neurons."""

    def make(draw):
        return {"values": draw(prompts, tokens, width)}

    return Case("neuron_moments", where, make, 2 * prompts * tokens * width, {"a prompt at a time": _one_prompt})


def words(where: str, rows: int, positions: int, keys: int, heads: int, width: int) -> Case:
    """Attention averaged over heads."""

    def make(draw):
        return {"query": draw(rows, positions, heads * width), "key": draw(rows, keys, heads * width), "heads": heads}

    operations = 2 * rows * positions * keys * heads * width
    return Case("mean_attention", where, make, operations, {"materialised maps": _maps}, matrix=True)


def cpu_cases(quick: bool) -> list[Case]:
    """Sizes that a CPU handles in seconds."""
    found = [
        *pairs("SD1.5, B = 32, D = 16,384", 32, 16_384),
        cost("SD1.5, B = 256, D = 16,384", 256, 16_384),
        assignment("B = 256", 1, 256),
        match("SD1.5, 32 x 32 positions, C = 1,280", 1024, 1280),
        point("K = 200, D = 99,648", 200, 99_648, quantised=False),
        point("K = 200, D = 99,648", 200, 99_648, quantised=True),
        network("SD1.5's queries and values, K = 200", 200, SD15),
        change("SD1.5, 1,280 x 1,280, rank 16", 1280, 1280, 16),
        neurons("SD1.5, 64 prompts, C = 1,280", 64, 77, 1280),
        words("SD1.5, 32 x 32 positions, 77 keys", 2, 1024, 77, 8, 80),
    ]
    if quick:
        return found
    return [
        *found,
        *pairs("SDXL, B = 32, D = 65,536", 32, 65_536),
        cost("SDXL, B = 256, D = 65,536", 256, 65_536),
        assignment("B = 1,024", 1, 1024),
        assignment("64 of B = 64", 64, 64),
        match("SDXL, 64 x 64 positions, C = 640", 4096, 640),
        change("Flux, 3,072 x 3,072, rank 16", 3072, 3072, 16),
        neurons("SDXL, 64 prompts, C = 2,048", 64, 77, 2048),
        words("SDXL, 64 x 64 positions, 77 keys", 2, 4096, 77, 10, 64),
    ]


def gpu_cases(quick: bool) -> list[Case]:
    """Sizes of real use on a GPU."""
    found = cpu_cases(quick)
    if quick:
        return found
    return [
        *found,
        *pairs("Flux, B = 128, D = 262,144", 128, 262_144),
        cost("SD1.5, B = 1,024, D = 16,384", 1024, 16_384),
        cost("Flux, B = 256, D = 262,144", 256, 262_144),
        assignment("B = 2,048", 1, 2048),
        match("SD1.5, 128 x 128 positions, C = 320", 16_384, 320),
        match("Flux, 64 x 64 positions, C = 3,072", 4096, 3072),
        point("K = 10,000, D = 99,648", 10_000, 99_648, quantised=False),
        point("K = 10,000, D = 99,648", 10_000, 99_648, quantised=True),
        network("SD1.5's queries and values, K = 10,000", 10_000, SD15),
        network("SD1.5's queries and values, K = 10,000", 10_000, SD15, quantised=True),
        neurons("SDXL, 1,000 prompts, C = 2,048", 1000, 77, 2048),
        words("SDXL, 64 x 64 positions, 4,096 keys", 2, 4096, 4096, 10, 64),
        words("Flux, 4,096 positions, 4,608 keys", 1, 4096, 4608, 24, 128),
    ]


def _three_products(data, noise):
    data, noise = data.float(), noise.float()
    return (data * noise).sum(1), (data * data).sum(1), (noise * noise).sum(1)


def _broadcast(data, noise, along, scale):
    return scale[:, None] * noise.float() + along[:, None] * data.float()


def _drawn_at_once(data, seeds, k):
    noise = torch.randn(len(data), k, data.shape[1], device=data.device)
    index = torch.linalg.vector_norm(data.float()[:, None] - noise, dim=2).argmin(1)
    return noise[torch.arange(len(data), device=data.device), index], index


def _cdist(data, noise):
    return torch.cdist(data.float(), noise.float())


def _scipy(cost):
    costs = cost if cost.ndim == 3 else cost[None]
    found = [linear_sum_assignment(one.cpu().numpy())[1] for one in costs]
    columns = torch.from_numpy(np.stack(found)).to(cost.device).view(cost.shape[:-1])
    return columns, cost.gather(-1, columns[..., None])[..., 0].double().sum(-1)


def _materialised(queries, targets, mutual):
    similarity = F.normalize(queries.float(), dim=1) @ F.normalize(targets.float(), dim=1).T
    value, index = similarity.max(1)
    return value, index, similarity.argmax(0)[index] == torch.arange(len(queries), device=queries.device)


def _whole_basis(coefficients, basis, mean, deviation, basis_scale):
    whole = basis.float()
    if basis_scale is not None:
        whole = whole * basis_scale.float().repeat_interleave(1024, dim=1)[:, : basis.shape[1]]
    return mean.float() + deviation.float() * (coefficients.float() @ whole)


def _a_product_a_weight(weights, places, strength, **of_point):
    flat = _whole_basis(**of_point)
    changed = []
    for weight, (offset, rank) in zip(weights, places, strict=True):
        (rows, columns), middle = weight.shape, offset + rank * weight.shape[1]
        down, up = flat[offset:middle].view(rank, columns), flat[middle : middle + rows * rank].view(rows, rank)
        changed.append(_product_then_sum(weight, up, down, strength))
    return tuple(changed)


def _product_then_sum(weight, up, down, strength):
    return (weight.float() + strength * (up.float() @ down.float())).to(weight.dtype)


def _one_prompt(values):
    activations = torch.stack([prompt.float().abs().mean(0) for prompt in values])
    return torch.stack([activations.mean(0), activations.std(0), activations.amin(0), activations.amax(0)])


def _maps(query, key, heads):
    query, key = (tensor.float().unflatten(2, (heads, -1)).transpose(1, 2) for tensor in (query, key))
    return (query @ key.transpose(2, 3) * query.shape[-1] ** -0.5).softmax(-1).mean(1)
