"""The networks of the conditioning study do what the study says of them."""

import pytest
import torch


@pytest.fixture(scope="module")
def study(app):
    from studies.conditioning import resolution, sampled_images, trained

    return sampled_images, resolution, trained


@pytest.mark.parametrize(("exponent", "heard"), [(0.0, {0, 500, 999}), (8.0, {0, 500})])
def test_a_gated_network_hears_of_the_size_late(study, exponent, heard):
    torch.manual_seed(0)
    network = study[2].Denoiser(exponent).eval()
    generator = torch.Generator().manual_seed(1)
    noised, context = (
        torch.randn(1, 24, 16, 16, generator=generator),
        torch.randn(1, 77, 128, generator=generator),
    )
    sizes = [torch.tensor([[side, side, 0.0, 0.0, 0.0]]) for side in (32.0, 128.0)]
    with torch.no_grad():
        for timestep in (0, 500, 999):
            small, full = (
                network(noised, torch.tensor([timestep]), context, size) for size in sizes
            )
            assert torch.allclose(small, full, atol=1e-6) == (timestep not in heard)


def test_images_brought_to_a_few_pixels(study):
    import numpy as np

    sampled_images, resolution, _ = study
    made = np.zeros((2, 256, 256, 3), np.uint8)
    made[:, 128:] = 200
    assert (
        sampled_images.small(made)[0, 7].max() == 0
        and sampled_images.small(made)[0, 8].min() == 200
    )
    assert resolution.shrunk(made).shape == (2, 128, 128, 3)


def test_fine_tuning_sees_the_noise_that_the_rescaled_sampler_draws(study):
    from studies.conditioning import tuned

    latents, noise = torch.full((2, 1, 1, 1), 3.0), torch.full((2, 1, 1, 1), -1.0)
    alpha = torch.tensor([0.9, 0.01])
    inputs, velocity = tuned.noised(latents, noise, alpha, 2.0)
    sigma = 2 * ((1 - alpha) / alpha).sqrt()[:, None, None, None]
    scaled = (latents + sigma * noise) / (
        sigma.square() + 1
    ).sqrt()  # as ComfyUI scales a sampler's input
    assert torch.allclose(inputs, scaled, atol=1e-6)
    denoised = scaled / (sigma.square() + 1).sqrt() - velocity * sigma / (sigma.square() + 1).sqrt()
    assert torch.allclose(denoised, latents, atol=1e-4)


def test_the_place_of_a_person_on_a_plain_ground(study):
    import numpy as np

    from studies.conditioning import crop

    made = np.full((2, 128, 128, 3), 150, np.uint8)
    made[0, 60:100, 20:41] = 20
    made[1, 60:100, 70:91] = 250
    assert crop.place(made).tolist() == [30.0, 80.0]


def test_the_gate_is_compared_with_the_size_that_blurs_as_much(study):
    """On a straight line of changes over blur, a gate on the line gains nothing and one below it
    the distance.
    """
    import numpy as np

    from studies.conditioning import gate

    def found(blur, change):
        return dict.fromkeys(study[0].CHANGES, np.full(6, change)) | {"blur": np.full(6, blur)}

    milder = [found(0.6, 0.4), found(0.8, 0.2), found(0.9, 0.1)]
    for change, gain in ((0.3, 0.0), (0.25, -0.05)):
        numbers = gate._at_equal_blur("gate", found(0.7, change), milder)
        assert numbers["gate: attributes changed, less a milder size"]["value"] == pytest.approx(
            gain
        )
    assert gate._at_equal_blur("gate", found(0.95, 0.0), milder) == {}
