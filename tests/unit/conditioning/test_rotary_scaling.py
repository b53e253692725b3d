"""Rotary frequencies for larger images: DyPE's factor (arXiv 2510.20766) and the ways to lower
frequencies by it.
"""

import math

import pytest
import torch
from glassbox.nodes.conditioning import rotary_scaling
from glassbox.nodes.conditioning.rotary_scaling import RotaryMethod, RotarySettings

WIDTH, THETA = 56, 10000.0  # an axis of Flux
POSITIONS = torch.arange(128.0)[None]


def settings(method=RotaryMethod.NTK, strength=2.0, exponent=2.0, base=1024):
    return RotarySettings(
        method=RotaryMethod(method), strength=strength, exponent=exponent, base=base
    )


def frequencies(theta=THETA):
    return theta ** -(torch.arange(0, WIDTH, 2, dtype=torch.float64) / WIDTH)


@pytest.mark.parametrize(
    ("side", "noise", "factor"),
    [
        (1024, 1.0, 1.0),
        (512, 1.0, 1.0),
        (2048, 1.0, 4.0),
        (2048, 0.5, 2**0.5),
        (2048, 0.0, 1.0),
        (1536, 1.0, 2.25),
    ],
)
def test_the_factor_is_the_ratio_to_the_power_of_kappa(side, noise, factor):
    assert settings().factor(side, noise) == pytest.approx(factor)


def test_exponent_zero_holds_the_factor_over_the_run():
    assert {
        settings(strength=1.0, exponent=0.0).factor(2048, noise) for noise in (1.0, 0.5, 0.0)
    } == {2.0}


def test_ntk_is_a_larger_base():
    lowered = rotary_scaling.lower_frequencies(frequencies(), 3.0, settings(), 16)
    assert torch.allclose(lowered, frequencies(THETA * 3 ** (WIDTH / (WIDTH - 2))), rtol=1e-12)
    assert lowered[0] == frequencies()[0] and float(
        frequencies()[-1] / lowered[-1]
    ) == pytest.approx(3.0)


def test_by_parts_keeps_what_turns_often_and_interpolates_what_turns_less_than_once():
    base = 16 * 4096  # 4096 tokens: the fastest pair turns 652 times
    lowered = rotary_scaling.lower_frequencies(
        frequencies(), 2.0, settings("by_parts", base=base), 16
    )
    turns, ratio = 4096 * frequencies() / (2 * math.pi), frequencies() / lowered
    assert torch.equal(lowered[turns >= 32], frequencies()[turns >= 32])
    assert torch.allclose(ratio[turns <= 1], torch.full((), 2.0, dtype=torch.float64))
    inner = (turns > 1) & (turns < 32)
    ramp = (turns[inner] - 1) / 31
    assert inner.any() and torch.allclose(
        lowered[inner] / frequencies()[inner], ramp + (1 - ramp) / 2
    )


def test_interpolation_is_finer_positions():
    lowered = rotary_scaling.lowered(
        settings("interpolation", 1.0, 0.0), frequencies(), side=2048, noise=0.3, unit=16
    )
    halved = rotary_scaling.rotations(POSITIONS.double()[..., None] * lowered)
    angles = (POSITIONS.double() / 2)[..., None] * frequencies()
    wanted = torch.stack([angles.cos(), -angles.sin(), angles.sin(), angles.cos()], -1).reshape(
        1, 128, 28, 2, 2
    )
    assert torch.allclose(halved, wanted.float(), atol=1e-7)


@pytest.mark.parametrize("method", list(RotaryMethod))
def test_nothing_changes_up_to_the_base_at_strength_zero_and_at_clean_data(method):
    for given, side, noise in (
        (settings(method), 1024, 1.0),
        (settings(method, 0.0), 2048, 1.0),
        (settings(method), 2048, 0.0),
    ):
        assert rotary_scaling.lowered(given, frequencies(), side=side, noise=noise, unit=16) is None
    assert torch.equal(
        rotary_scaling.lower_frequencies(frequencies(), 1.0, settings(method), 16), frequencies()
    )


def test_the_report_gives_factors_by_noise_level():
    assert "2048 px: by 4 at 1, 2.18 at 0.75, 1.41 at 0.5" in rotary_scaling.describe_rotary(
        settings()
    )
