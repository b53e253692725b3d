"""FlowEdit's path against closed forms, Algorithm 1 of the paper in float64, and its edges."""

import functools
import itertools

import numpy as np
import pytest
import torch
from glassbox.nodes.noise.flow_edit import follow_difference
from scipy.integrate import solve_ivp

SHAPE = (2, 3, 4, 6)
SPREAD = 0.7  # standard deviation of the images of both prompts


def gaussian(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(SHAPE, dtype=torch.float64, generator=generator)


def added(latent, step, sigma):
    return latent + sigma * gaussian(100 + step)


def mixed(latent, step, sigma):
    return (1 - sigma) * latent + sigma * gaussian(100 + step)


def test_noise_models_end_where_two_gaussians_say():
    """Images of one spread around two means: noise drops out, and the distance to the second mean
    shrinks to SPREAD / sqrt(SPREAD^2 + sigma^2).
    """
    latent = gaussian(0)
    means = {"source": gaussian(1), "target": gaussian(2)}

    def denoise(mean, state, sigma):
        return (SPREAD**2 * state + sigma**2 * mean) / (SPREAD**2 + sigma**2)

    edited = follow_difference(
        functools.partial(denoise, means["source"]),
        functools.partial(denoise, means["target"]),
        functools.partial(added, latent),
        latent=latent,
        sigmas=torch.linspace(2.3, 0, 4001, dtype=torch.float64).tolist(),
    )
    left = SPREAD / (SPREAD**2 + 2.3**2) ** 0.5
    expected = latent + (1 - left) * (means["target"] - means["source"])
    assert torch.allclose(edited, expected, atol=2e-3)


def test_flow_models_end_where_two_gaussians_say():
    latent = gaussian(0)
    means = {"source": gaussian(1), "target": gaussian(2)}

    def denoise(mean, state, sigma):
        kept = (1 - sigma) * SPREAD**2 / ((1 - sigma) ** 2 * SPREAD**2 + sigma**2)
        return mean + kept * (state - (1 - sigma) * mean)

    edited = follow_difference(
        functools.partial(denoise, means["source"]),
        functools.partial(denoise, means["target"]),
        functools.partial(mixed, latent),
        latent=latent,
        sigmas=torch.linspace(0.8, 0, 4001, dtype=torch.float64).tolist(),
    )

    def slope(sigma, fraction):
        kept = (1 - sigma) * SPREAD**2 / ((1 - sigma) ** 2 * SPREAD**2 + sigma**2)
        return (fraction - (1 - kept * (1 - sigma)) - kept * fraction) / sigma

    path = solve_ivp(slope, (0.8, 1e-6), [0.0], rtol=1e-9, atol=1e-12)
    expected = latent + path.y[0, -1] * (means["target"] - means["source"])
    assert torch.allclose(edited, expected, atol=2e-3)


def test_equals_the_paper_s_algorithm_for_a_flow_model():
    """Algorithm 1 in its own letters, with a velocity that is neither linear nor even."""
    latent = gaussian(0)

    def velocity(state, time, prompt):
        return torch.tanh(state * (prompt + time)) + prompt * state.roll(1, -1) - time

    def denoised(prompt, state, sigma):
        return state - sigma * velocity(state, sigma, prompt)

    times = [0.85, 0.6, 0.37, 0.11, 0.0]
    z_edit = latent
    for step, (t, t_next) in enumerate(itertools.pairwise(times)):
        z_source = (1 - t) * latent + t * gaussian(100 + step)
        z_target = z_edit + z_source - latent
        v_delta = velocity(z_target, t, 1.9) - velocity(z_source, t, 0.4)
        z_edit = z_edit + (t_next - t) * v_delta
    edited = follow_difference(
        functools.partial(denoised, 0.4),
        functools.partial(denoised, 1.9),
        functools.partial(mixed, latent),
        latent=latent,
        sigmas=times,
    )
    assert torch.allclose(edited, z_edit, atol=1e-12)
    assert float((edited - latent).abs().max()) > 0.1


def bent(prompt, state, sigma):
    return torch.sin(state * prompt) / (1 + sigma)


@pytest.mark.parametrize("noised", [added, mixed])
def test_the_same_prompt_leaves_every_bit(noised):
    latent = gaussian(0)
    same = functools.partial(bent, 1.3)
    edited = follow_difference(
        same, same, functools.partial(noised, latent), latent=latent, sigmas=[0.9, 0.5, 0.2, 0.0]
    )
    assert torch.equal(edited, latent)


def test_a_mask_takes_its_part_of_each_change():
    latent = gaussian(0)
    mask = torch.from_numpy(np.linspace(0, 1, 24)).view(1, 1, 4, 6).expand(SHAPE)

    def edited(sigmas, mask=None):
        return follow_difference(
            functools.partial(bent, 0.4),
            functools.partial(bent, 1.9),
            functools.partial(added, latent),
            latent=latent,
            sigmas=sigmas,
            mask=mask,
        )

    once = edited([0.8, 0.3])
    assert torch.allclose(edited([0.8, 0.3], mask), latent + mask * (once - latent), atol=1e-14)
    several = edited([0.8, 0.5, 0.2, 0.0], mask)
    assert torch.equal(several[..., 0, 0], latent[..., 0, 0])
    assert not torch.equal(several[..., 0, 1], latent[..., 0, 1])


def test_the_edited_latent_is_shown_after_each_step():
    latent = gaussian(0)
    seen = []
    edited = follow_difference(
        functools.partial(bent, 0.4),
        functools.partial(bent, 1.9),
        functools.partial(added, latent),
        latent=latent,
        sigmas=[0.8, 0.3, 0.0],
        shown=lambda step, state: seen.append((step, state)),
    )
    assert [step for step, _ in seen] == [0, 1]
    assert torch.equal(seen[-1][1], edited)
