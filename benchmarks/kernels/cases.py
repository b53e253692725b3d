"""What is measured: every operation at sizes of real models, with what people write instead, and
counted work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch.nn import functional as F


@dataclass(frozen=True)
class Case:
    """One operation on one input. ``others``: contenders by name, called with the same arguments.

    ``operations`` counts multiplications and additions; bytes are those of every input and result,
    each touched once.
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
        return self.make(
            lambda *shape, dtype=dtype: torch.randn(shape, generator=generator, device=device).to(
                dtype
            )
        )


def moved(arguments: Mapping, result) -> int:
    """Bytes of all inputs and results."""
    found = result if isinstance(result, tuple) else (result,)
    return sum(
        value.nbytes for value in (*arguments.values(), *found) if isinstance(value, torch.Tensor)
    )


def drawn(where: str, rows: int, size: int, k: int) -> Case:
    """The official form of the nearest noise."""

    def make(draw):
        first = draw(rows, size)
        return {"data": first, "seeds": torch.arange(rows, device=first.device), "k": k}

    return Case(
        "nearest_drawn",
        f"{where}, k = {k}",
        make,
        4 * k * rows * size,
        {"drawn at once": _drawn_at_once},
    )


def cost(where: str, rows: int, size: int) -> Case:
    """The cost of assignment."""

    def make(draw):
        return {"data": draw(rows, size), "noise": draw(rows, size)}

    return Case(
        "assignment_cost",
        where,
        make,
        2 * rows * rows * size,
        {"product": _product, "cdist": _cdist},
        matrix=True,
    )


def match(where: str, positions: int, channels: int) -> Case:
    """Best match both ways."""

    def make(draw):
        return {
            "queries": draw(positions, channels),
            "targets": draw(positions, channels),
            "mutual": True,
        }

    operations = 2 * positions * positions * channels
    return Case(
        "best_match",
        where,
        make,
        operations,
        {"materialized similarity": _materialized},
        matrix=True,
    )


def point(where: str, rows: int, size: int, quantized: bool) -> Case:
    """A point of a weight space."""

    def make(draw):
        basis, scale = draw(rows, size), None
        if quantized:
            basis, scale = (
                (30 * basis).clamp(-127, 127).to(torch.int8),
                draw(rows, -(-size // 1024)).abs(),
            )
        return {
            "coefficients": draw(rows),
            "basis": basis,
            "mean": draw(size),
            "deviation": draw(size),
            "basis_scale": scale,
        }

    kind = ", int8" if quantized else ""
    return Case(
        "flat_weights",
        where + kind,
        make,
        2 * rows * size,
        {"whole basis in float32": _whole_basis},
    )


def change(where: str, rows: int, columns: int, rank: int, **factors: torch.dtype) -> Case:
    """A low-rank change of one weight, by factors of its type or of a ``dtype``."""

    def make(draw):
        up, down = draw(rows, rank, **factors), draw(rank, columns, **factors)
        return {"weight": draw(rows, columns), "up": up, "down": down, "strength": 0.7}

    return Case(
        "low_rank_apply",
        where,
        make,
        2 * rows * columns * rank,
        {"plain": _plain, "product in float32, then sum": _product_then_sum},
    )


def neurons(where: str, prompts: int, tokens: int, width: int) -> Case:
    """Moments of a layer's neurons."""

    def make(draw):
        return {"values": draw(prompts, tokens, width)}

    return Case(
        "neuron_moments",
        where,
        make,
        2 * prompts * tokens * width,
        {"a prompt at a time": _one_prompt},
    )


def words(where: str, rows: int, positions: int, keys: int, heads: int, width: int) -> Case:
    """Attention averaged over heads."""

    def make(draw):
        query, key = (
            draw(rows, count, heads * width).unflatten(2, (heads, width)).transpose(1, 2)
            for count in (positions, keys)
        )
        return {"query": query, "key": key}

    operations = 2 * rows * positions * keys * heads * width
    return Case(
        "mean_attention", where, make, operations, {"materialized maps": _maps}, matrix=True
    )


def text_keys(where: str, positions: int, text: int, image: int, heads: int, width: int) -> Case:
    """Attention to the text averaged over heads, in a transformer of one row: keys of the text,
    then ``image`` keys of the image, which joint attention has.

    Beside it stands the attention itself, which a step computes anyway.
    """

    def make(draw):
        query, key = (
            draw(1, count, heads * width).unflatten(2, (heads, width)).transpose(1, 2)
            for count in (positions, text + image)
        )
        return {"query": query, "key": key, "count": text}

    return Case(
        "mean_attention",
        where,
        make,
        2 * positions * (text + image) * heads * width,
        {"materialized maps": _maps_of_text, "the attention itself": _attention},
        matrix=True,
    )


def cpu_cases(quick: bool) -> list[Case]:
    """Sizes that a CPU handles in seconds, of what nodes reach there."""
    found = [
        cost("SD1.5, B = 256, D = 16,384", 256, 16_384),
        match("SD1.5, 32 x 32 positions, C = 1,280", 1024, 1280),
        point("K = 1,000, D = 99,648", 1000, 99_648, quantized=False),
        point("K = 200, D = 99,648", 200, 99_648, quantized=True),
        change("SD1.5, 1,280 x 1,280, rank 16", 1280, 1280, 16),
        change(
            "SD1.5, 1,280 x 1,280, rank 16, factors bfloat16", 1280, 1280, 16, dtype=torch.bfloat16
        ),
        neurons("SD1.5, 64 prompts, C = 1,280", 64, 77, 1280),
        words("SD1.5, 32 x 32 positions, 77 keys", 2, 1024, 77, 8, 80),
    ]
    if quick:
        return found
    return [
        *found,
        cost("SDXL, B = 256, D = 65,536", 256, 65_536),
        match("SDXL, 64 x 64 positions, C = 640", 4096, 640),
        change("Flux, 3,072 x 3,072, rank 16", 3072, 3072, 16),
        neurons("SDXL, 64 prompts, C = 2,048", 64, 77, 2048),
        words("SDXL, 64 x 64 positions, 77 keys", 2, 4096, 77, 10, 64),
        match("96 x 96 positions, C = 3,840", 9216, 3840),
        text_keys("Flux.1, 1,024 pixels, 512 keys of text", 4096, 512, 4096, 24, 128),
        text_keys("Z-Image, 1,024 pixels, 128 keys of text", 4096, 128, 4096, 30, 128),
        text_keys("Qwen-Image, 1,328 pixels, 64 keys of text", 6889, 64, 6889, 24, 128),
        text_keys("Wan 14B, 81 frames of 832 x 480, 512 keys of text", 32_760, 512, 0, 40, 128),
    ]


def gpu_cases(quick: bool) -> list[Case]:
    """Sizes of real use on a GPU."""
    found = [
        *cpu_cases(quick),
        drawn("SD1.5, B = 4, D = 16,384", 4, 16_384, 64),
        change(
            "SD1.5, 1,280 x 1,280, rank 16, factors float32", 1280, 1280, 16, dtype=torch.float32
        ),
    ]
    if quick:
        return found
    return [
        *found,
        change(
            "Flux, 3,072 x 3,072, rank 16, factors float32", 3072, 3072, 16, dtype=torch.float32
        ),
        drawn("SDXL, B = 32, D = 65,536", 32, 65_536, 8),
        drawn("Flux, B = 16, D = 262,144", 16, 262_144, 64),
        cost("SD1.5, B = 1,024, D = 16,384", 1024, 16_384),
        cost("Flux, B = 256, D = 262,144", 256, 262_144),
        match("SD1.5, 128 x 128 positions, C = 320", 16_384, 320),
        match("Flux, 64 x 64 positions, C = 3,072", 4096, 3072),
        point("K = 10,000, D = 99,648", 10_000, 99_648, quantized=False),
        point("K = 10,000, D = 99,648", 10_000, 99_648, quantized=True),
        neurons("SDXL, 1,000 prompts, C = 2,048", 1000, 77, 2048),
        words("SDXL, 64 x 64 positions, 4,096 keys", 2, 4096, 4096, 10, 64),
    ]


def _drawn_at_once(data, seeds, k):
    noise = torch.randn(len(data), k, data.shape[1], device=data.device)
    index = torch.linalg.vector_norm(data.float()[:, None] - noise, dim=2).argmin(1)
    return noise[torch.arange(len(data), device=data.device), index], index


def _product(data, noise):
    return -(data.float() @ noise.float().T)


def _cdist(data, noise):
    return torch.cdist(data.float(), noise.float())


def _materialized(queries, targets, mutual):
    similarity = F.normalize(queries.float(), dim=1) @ F.normalize(targets.float(), dim=1).T
    value, index = similarity.max(1)
    return (
        value,
        index,
        similarity.argmax(0)[index] == torch.arange(len(queries), device=queries.device),
    )


def _whole_basis(coefficients, basis, mean, deviation, basis_scale):
    whole = basis.float()
    if basis_scale is not None:
        whole = whole * basis_scale.float().repeat_interleave(1024, dim=1)[:, : basis.shape[1]]
    return mean.float() + deviation.float() * (coefficients.float() @ whole)


def _plain(weight, up, down, strength):
    return (weight + strength * (up @ down)).to(weight.dtype)


def _product_then_sum(weight, up, down, strength):
    return (weight.float() + strength * (up.float() @ down.float())).to(weight.dtype)


def _one_prompt(values):
    activations = torch.stack([prompt.float().abs().mean(0) for prompt in values])
    largest = torch.stack([prompt.float().abs().amax(0) for prompt in values]).amax(0)
    return torch.stack(
        [activations.mean(0), activations.var(0), activations.amin(0), activations.amax(0), largest]
    )


def _maps_of_text(query, key, count):
    return _maps(query, key)[..., :count]


def _attention(query, key, count):
    return F.scaled_dot_product_attention(query, key, key)  # of values as wide as keys


def _maps(query, key):
    return (query.float() @ key.float().mT * query.shape[-1] ** -0.5).softmax(-1).mean(1)
