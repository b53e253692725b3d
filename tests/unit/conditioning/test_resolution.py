"""Sizes to factors, and positions inside the trained range, on plain numbers."""

import math

import pytest
import torch
from glassbox.nodes.conditioning import noise_rescale, position_resample, size_metadata
from glassbox.nodes.conditioning.position_resample import (
    Alignment,
    PositionSettings,
    describe_positions,
    resample_table,
)

#: SD3's table: 192 positions per side in steps of a quarter, its middle 64 at 0 to 15.75.
STEP, SIDE, BASE = 0.25, 192, 64
STORED = (torch.arange(SIDE, dtype=torch.float64) - (SIDE - BASE) // 2) * STEP


def stored(width=32):
    return position_resample.position_table(STORED, STORED, width)[None]


def test_the_factor_is_the_linear_ratio():
    assert noise_rescale.sigma_scale(2048, 2048, 1024, 1024) == 2.0
    assert noise_rescale.sigma_scale(1536, 1536, 1024, 1024) == 1.5
    assert noise_rescale.sigma_scale(512, 2048, 1024, 1024) == 1.0
    assert noise_rescale.sigma_scale(1344, 768, 1024, 1024) == pytest.approx(
        math.sqrt(1344 * 768) / 1024
    )
    with pytest.raises(ValueError, match="at least one pixel"):
        noise_rescale.sigma_scale(0, 5, 1, 1)


def test_rescale_report():
    text = noise_rescale.describe_rescale(
        2.0, (2048, 2048), (1024, 1024), "sampler_only", (0.0292, 14.61), (0.0584, 29.22)
    )
    assert "s = 2.0000, noise stronger" in text and "-1.386" in text and "+0.6931" in text


@pytest.mark.parametrize(
    ("base", "trained", "far"), [(16, 128, True), (1024, 512, True), (1440, 1024, False)]
)
def test_a_base_size_far_from_the_trained_one_is_reported(base, trained, far):
    (sentence,) = noise_rescale.describe_base(base, trained) or [""]
    assert (f"Base size {base} is far from {trained}" in sentence) is far
    assert (
        noise_rescale.describe_base(base, None)
        == noise_rescale.describe_base(trained, trained)
        == []
    )


@pytest.mark.parametrize("factor", [2, 3])
def test_averaging_patches_takes_the_factor_back(factor):
    """A factor x factor average of x0 + s sigma eps on flat patches has deviation sigma."""
    sigma, side = 0.7, 600
    eps = torch.randn(1, 1, side, side, generator=torch.Generator().manual_seed(0))
    noised = 0.3 + factor * sigma * eps
    assert float(torch.nn.functional.avg_pool2d(noised, factor).std()) == pytest.approx(
        sigma, rel=0.01
    )


@pytest.mark.parametrize("alignment", list(Alignment))
def test_the_base_size_is_itself(alignment):
    assert torch.equal(
        position_resample.resample_indices(BASE, BASE, alignment),
        torch.arange(BASE, dtype=torch.float64),
    )


@pytest.mark.parametrize("count", [65, 96, 128, 200])
@pytest.mark.parametrize("alignment", list(Alignment))
def test_positions_stay_inside(alignment, count):
    places = position_resample.resample_indices(count, BASE, alignment)
    assert (places.diff() > 0).all()
    assert places.min() >= -0.5 and places.max() < BASE - 0.5 + 1e-9 + (alignment == "corners")
    assert alignment == "centers" or places.min() == 0


@pytest.mark.parametrize(
    ("count", "last", "step"), [(96, 15.833333, 0.1666667), (128, 15.875, 0.125)]
)
def test_sd3_by_number(count, last, step):
    places = STEP * position_resample.resample_indices(count, BASE, "corners")
    assert float(places[-1]) == pytest.approx(last, abs=1e-6)
    assert float(places[1] - places[0]) == pytest.approx(step, abs=1e-6)


def test_the_stock_table_extrapolates():
    """Its middle 96 run from -4 to 19.75, its middle 128 from -8 to 23.75."""
    for count, first, last in ((96, -4.0, 19.75), (128, -8.0, 23.75)):
        middle = STORED[(SIDE - count) // 2 :][:count]
        assert (float(middle[0]), float(middle[-1])) == (first, last)


@pytest.mark.parametrize("factor", [2, 3])
def test_multiples_of_the_base_contain_the_trained_positions(factor):
    places = position_resample.resample_indices(factor * BASE, BASE, "corners")
    assert torch.equal(places[::factor], torch.arange(BASE, dtype=torch.float64))
    grid = position_resample.position_table(places[:64], places[:64], 32).unflatten(0, (64, 64))
    base = position_resample.position_table(
        torch.arange(64.0).double(), torch.arange(64.0).double(), 32
    ).unflatten(0, (64, 64))
    kept = len(range(0, 64, factor))
    assert torch.equal(grid[::factor, ::factor], base[:kept, :kept])


@pytest.mark.parametrize("width", [32, 128, 1536])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_positions_are_read_back_from_a_table(width, dtype):
    axis = position_resample.sincos(STORED, width // 2).to(dtype)
    found = position_resample.recover_positions(axis)
    assert torch.allclose(found, STORED, atol=1e-5 if dtype == torch.float32 else 2e-3)


def test_another_table_is_refused():
    with pytest.raises(ValueError, match="does not contain evenly spaced"):
        position_resample.recover_positions(
            torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
        )


@pytest.mark.parametrize("alignment", list(Alignment))
def test_up_to_the_base_the_stock_table_is_kept(alignment):
    assert (
        resample_table(PositionSettings(base=BASE, alignment=alignment), stored(), 64, 64) is None
    )
    assert (
        resample_table(PositionSettings(base=BASE, alignment=alignment), stored(), 32, 64) is None
    )


def test_axes_are_independent_and_transpose():
    """A side within the base keeps the table's middle; exchanged sides give the transposed
    table.
    """
    settings, width = PositionSettings(base=BASE, alignment="corners"), 32
    wide = resample_table(settings, stored(), 48, 96)[0].unflatten(0, (48, 96))
    tall = resample_table(settings, stored(), 96, 48)[0].unflatten(0, (96, 48))
    turned = torch.cat(tall.transpose(0, 1).chunk(2, dim=-1)[::-1], dim=-1)
    assert torch.allclose(wide, turned, atol=1e-6)
    middle = position_resample.sincos(STORED[(SIDE - 48) // 2 :][:48], width // 2).float()
    assert torch.allclose(wide[:, 0, width // 2 :], middle, atol=1e-5)
    finer = position_resample.sincos(
        STEP * position_resample.resample_indices(96, BASE, "corners"), width // 2
    ).float()
    assert torch.allclose(wide[0, :, : width // 2], finer, atol=1e-5)


def test_positions_report():
    text = describe_positions(
        PositionSettings(base=BASE, alignment="corners"), stored()[0].unflatten(0, (SIDE, SIDE))
    )
    assert "1536 px: 96 positions from 0 to 15.8333, step 0.1667" in text
    assert "2048 px: 128 positions from 0 to 15.875, step 0.125" in text


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.7])
def test_the_law_for_times_is_that_for_sigmas(factor):
    """A flow model's sigma is t / (1 - t): scaling it by s and going back gives the law for t; 1 /
    s undoes both.
    """
    sigma = torch.linspace(0.01, 80, 37, dtype=torch.float64)
    time = sigma / (1 + sigma)
    moved = noise_rescale.scaled_sigma(factor, sigma)
    torch.testing.assert_close(
        noise_rescale.scaled_time(factor, time), moved / (1 + moved), rtol=1e-12, atol=0
    )
    back = noise_rescale.scaled_time(1 / factor, noise_rescale.scaled_time(factor, time))
    torch.testing.assert_close(back, time, rtol=1e-12, atol=0)


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0, 3.0])
def test_cfg_of_the_guided_condition_is_dual_guidance(strength):
    """lambda (beta e(s, c) + (1 - beta) e(s, r)) + (1 - lambda) e(0, r), the formula written
    out.
    """
    requested, reference, negative = torch.randn(
        3, 2, 4, 5, 3, generator=torch.Generator().manual_seed(0)
    ).double()
    scale, condition = 2.5, size_metadata.guided_by_metadata(requested, reference, strength)
    expected = scale * (strength * requested + (1 - strength) * reference) + (1 - scale) * negative
    torch.testing.assert_close(
        negative + scale * (condition - negative), expected, rtol=1e-12, atol=1e-12
    )
