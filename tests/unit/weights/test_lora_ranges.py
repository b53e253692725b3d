"""Exports in half precision whose factors leave the range of the dtype, large and small."""

from __future__ import annotations

import pytest
import torch
from glassbox.nodes.common import lora_reader
from glassbox.nodes.weights import lora_writer, style_merge

LAYER = "mid_block.attentions.0.proj_in"


def change(size: float, scale: float = 0.7, rank: int = 4) -> lora_reader.Factors:
    """Factors whose product has a Frobenius norm of ``size``, one far larger than the other."""
    generator = torch.Generator().manual_seed(11)
    down = torch.randn(rank, 24, generator=generator, dtype=torch.float64)
    up = torch.randn(17, rank, generator=generator, dtype=torch.float64)
    root = (size / float(scale * (up @ down).norm())) ** 0.5
    return lora_reader.Factors((30 * root * down).float(), (root / 30 * up).float(), scale)


def product(factors: lora_reader.Factors) -> torch.Tensor:
    up, down = factors.matrices(torch.float64)
    return up @ down


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [1e-16, 1e-12, 1e-9, 1e-3, 1.0, 4e9, 3e10, 1e14])
def test_an_export_keeps_large_and_small_changes(size, dtype):
    """dW = alpha / rank up down of the file's tensors, within half a step of the dtype a factor."""
    layers = {LAYER: change(size)}
    reduced, report = lora_writer.reduce(layers, 0, dtype=dtype)
    tensors = lora_writer.to_tensors(reduced)
    up, down, alpha = (
        next(value for key, value in tensors.items() if end in key)
        for end in ("lora_up", "lora_down", "alpha")
    )
    assert up.dtype == down.dtype == dtype
    assert all(bool(value.isfinite().all()) for value in tensors.values())
    stored = float(alpha) / len(down) * (up.double() @ down.double())
    expected = product(layers[LAYER])
    error = float((stored - expected).norm() / expected.norm())
    assert error < max(torch.finfo(dtype).eps, 1e-5)
    assert "nan" not in report and "inf " not in report
    costs = float(report.partition(" costs ")[2].split()[0])
    exact = lora_writer.reduce(layers, 0)[0][LAYER]
    rounding = float((stored - product(exact)).norm() / expected.norm())
    assert costs == pytest.approx(rounding, rel=0.06, abs=2e-7)
    read = lora_reader.parse_tensors(tensors).layers[LAYER]
    assert torch.allclose(product(read), stored, rtol=1e-6, atol=0)


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e5])
def test_the_scale_stays_1_within_the_range(size):
    reduced, _ = lora_writer.reduce({LAYER: change(size)}, 0, dtype=torch.float16)
    assert reduced[LAYER].scale == 1.0


def test_a_style_merge_of_large_strengths_is_finite_in_float16():
    merged = style_merge.merge(
        {LAYER: change(3e8)}, {LAYER: change(2e8, scale=1.3)}, (100.0, -100.0)
    )
    reduced, _ = lora_writer.reduce(merged, 0, 1e-5, torch.float16)
    expected = 100 * product(change(3e8)) - 100 * product(change(2e8, scale=1.3))
    error = (product(reduced[LAYER]) - expected).norm() / expected.norm()
    assert float(error) < 1e-3


def test_a_change_beyond_the_dtype_is_one_sentence():
    """Beyond the alpha that readers take, and beyond float32."""
    with pytest.raises(ValueError, match=r"proj_in is too large for float16 \(\|dW\| 1e\+20\)"):
        lora_writer.reduce({LAYER: change(1e20)}, 0, dtype=torch.float16)
    reduced, _ = lora_writer.reduce({LAYER: change(1e20)}, 0)
    assert bool(reduced[LAYER].down.isfinite().all())
    beyond = lora_reader.Factors(torch.full((2, 4), 1e25), torch.full((3, 2), 1e25))
    with pytest.raises(ValueError, match="proj_in is too large to compute with"):
        lora_writer.reduce({LAYER: beyond}, 0)
