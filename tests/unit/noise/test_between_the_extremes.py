"""Composition at strengths between 0 and 1 and in wide images, averages of few steps, validation
with masks.
"""

import math
from types import SimpleNamespace

import pytest
import torch
from glassbox.nodes.common.training.training_evaluation import PERCENTS, Validation
from glassbox.nodes.common.training.training_loop import WeightAverage
from glassbox.nodes.common.training.training_loss import make_objective
from glassbox.nodes.noise import composition
from glassbox.nodes.noise.composition import CompositionSettings


def gaussian(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def waves(height, width, low, cutoff, most):
    """The orthonormal cosines (h, w) of a band by their definition, and of them no higher than
    ``most`` a side.
    """
    found = []
    for k in range(min(height, most[0])):
        for m in range(min(width, most[1])):
            if low <= math.hypot(k, m) / 2 < cutoff:
                y = torch.cos(
                    math.pi * k * (torch.arange(height, dtype=torch.float64) + 0.5) / height
                )
                x = torch.cos(
                    math.pi * m * (torch.arange(width, dtype=torch.float64) + 0.5) / width
                )
                wave = y[:, None] * x
                found.append(wave / wave.norm())
    return torch.stack(found)


@pytest.mark.parametrize("strength", [0.25, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("size", [(6, 10), (5, 4)], ids=["same size", "smaller guide"])
def test_composed_noise_by_its_definition(strength, size):
    """Numbers of a band change their places: sorted as strength * guide / rms + (1 - strength) *
    noise is sorted.
    """
    settings, noise, guide = (
        CompositionSettings(strength=strength, cutoff=2.5, low=0.5),
        gaussian(2, 3, 6, 10),
        gaussian(1, 3, *size, seed=1),
    )
    most = min(6, size[0]), min(10, size[1])
    own, others = waves(6, 10, 0.5, 2.5, most), waves(*size, 0.5, 2.5, most)
    wanted = noise.clone()
    guided = torch.einsum("chw,khw->ck", guide[0], others).flatten()
    for frame in range(2):
        before = torch.einsum("chw,khw->ck", noise[frame], own).flatten()
        mixed = strength * guided / guided.square().mean().sqrt() + (1 - strength) * before
        after = before.clone()
        for place, value in zip(
            sorted(range(len(mixed)), key=lambda i: float(mixed[i])),
            before.sort().values,
            strict=True,
        ):
            after[place] = value
        wanted[frame] += torch.einsum("ck,khw->chw", (after - before).view(3, -1), own)
    torch.testing.assert_close(composition.compose_noise(settings, noise, guide), wanted)


@pytest.mark.parametrize("strength", [0.3, 0.6])
def test_a_weaker_guide_of_any_scale_is_the_same_guide(strength):
    noise, guide = gaussian(1, 2, 6, 8), gaussian(1, 2, 6, 8, seed=3)
    settings = CompositionSettings(strength=strength, cutoff=3.0)
    composed = composition.compose_noise(settings, noise, guide)
    assert torch.equal(composed, composition.compose_noise(settings, noise, 7.5 * guide))
    assert not torch.equal(composed, noise)


def test_the_report_of_a_composition_by_dense_sums():
    settings, noise, guide = (
        CompositionSettings(strength=0.5, cutoff=2.0, low=0.5),
        gaussian(2, 3, 6, 10),
        gaussian(2, 3, 6, 10, seed=1),
    )
    after = composition.compose_noise(settings, noise, guide)
    band = waves(6, 10, 0.5, 2.0, (6, 10))

    def follow(one):
        pairs = [
            torch.stack(
                [torch.einsum("chw,khw->ck", part[n], band).flatten() for part in (one, guide)]
            )
            for n in (0, 1)
        ]
        return sum(float(torch.corrcoef(pair)[0, 1]) for pair in pairs) / 2

    lines = composition.describe_composition(settings, noise, after, guide, "an image")
    assert (
        f"Band of 0.5 to 2 cycles per side: {3 * len(band)} of 180 numbers, strength 0.5." in lines
    )
    assert f"in the band: {follow(noise):+.3f} before, {follow(after):+.3f} after." in lines
    assert f"{float(noise[0].norm()):.4f} before, {float(after[0].norm()):.4f} after" in lines
    assert f"deviation {float(noise.std()):.4f} before, {float(after.std()):.4f} after" in lines


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_the_average_of_few_steps_leaves_its_start(steps):
    """Decay (1 + n) / (10 + n) after step n: 2 / 11, 3 / 12, ... although the final one is .999."""
    parameter = torch.nn.Parameter(torch.tensor([3.0, -1.0]))
    average, wanted = WeightAverage({"a": parameter}, 0.999), [3.0, -1.0]
    for step in range(1, steps + 1):
        with torch.no_grad():
            parameter.copy_(torch.tensor([10.0 * step, -4.0 / step]))
        average.update(step)
        decay = (1 + step) / (10 + step)
        wanted = [
            decay * old + (1 - decay) * float(new)
            for old, new in zip(wanted, parameter.detach(), strict=True)
        ]
    torch.testing.assert_close(average.values["a"], torch.tensor(wanted))


def test_an_average_is_taken_out_again_after_an_error():
    parameter = torch.nn.Parameter(torch.tensor([3.0]))
    average = WeightAverage({"a": parameter}, 0.5)
    with torch.no_grad():
        parameter.fill_(5.0)
    with pytest.raises(ZeroDivisionError), average.installed():
        assert float(parameter.detach()) == 3.0
        1 / 0  # noqa: B018
    assert float(parameter.detach()) == 5.0


class Half:
    """A session whose model answers with half of what it is given."""

    device = torch.device("cpu")

    def __init__(self, latents):
        self.latents, self.sampling = latents, SimpleNamespace()

    def sigma(self, percent):
        return 4 * (1 - percent)

    def noised(self, latent, noise, sigmas):
        return latent + sigmas[:, None, None, None] * noise

    def clean(self, latent):
        return latent

    def denoised(self, noised, sigmas, rows, against=None, cfg=1.0, images=None):
        return noised / 2


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("weighting", ["plain", "epsilon", "min_snr"])
def test_validation_by_its_definition(weighted, weighting):
    """The mean over images and noise levels of the (weighted) squared error, with what training
    heeds: the mask.
    """
    latents = [gaussian(1, 2, 3, 5, seed=seed).float() for seed in range(3)]
    weights = [
        torch.rand(1, 1, 3, 5, generator=torch.Generator().manual_seed(9 + seed))
        for seed in range(3)
    ]
    session, total = Half(latents), 0.0
    for row in (2, 0):
        noise = torch.randn(5, 2, 3, 5, generator=torch.Generator().manual_seed(11 + row))
        for one, percent in zip(noise, PERCENTS, strict=True):
            sigma = 4 * (1 - percent)
            error = ((latents[row][0] + sigma * one) / 2 - latents[row][0]).square()
            weight = weights[row][0].expand_as(error) if weighted else torch.ones_like(error)
            ratio = {"plain": 1.0, "epsilon": sigma**-2, "min_snr": min(sigma**-2, 0.5)}[weighting]
            total += ratio * float((error * weight).sum() / weight.sum())
    objective = make_objective("MSE", weighting, 0.5)
    found = Validation([2, 0], 11, weights if weighted else None).loss(session, objective)
    assert found == pytest.approx(total / 10, rel=1e-5)
