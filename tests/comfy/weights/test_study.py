"""The study's own sampler of many models, against ComfyUI's samplers on the same predictions and noise."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import weight_nodes


@pytest.fixture(scope="module")
def family(app, tmp_path_factory):
    return weight_nodes.family(app, tmp_path_factory.getbasetemp())


@pytest.mark.parametrize("ancestral", [False, True])
@pytest.mark.parametrize(("one_sided", "until"), [(False, 0.0), (True, 0.0), (True, 400.0)])
def test_the_sampler_of_many_models_takes_comfyuis_steps(family, monkeypatch, ancestral, one_sided, until):
    """With predictions that depend on the image, the noise level, the weights and the prompt; to 1e-5."""
    import comfy.k_diffusion.sampling as stock
    import comfy.samplers

    from studies.weights import image_sampler

    sampling, seeds, steps = family.model.get_model_object("model_sampling"), range(7, 9), 6
    changed: list[bool] = []

    class Adapted(nullcontext):
        def __enter__(self):
            changed.append(True)

        def __exit__(self, *_):
            changed.pop()

    def predicted(x, sigma, weights: bool, prompt: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x / sigma) * (1.0 + 0.3 * weights) + 0.2 * prompt

    sampler = image_sampler.ImageSampler(
        SimpleNamespace(model=SimpleNamespace(model=SimpleNamespace(model_sampling=sampling))),
        SimpleNamespace(network=None),
    )
    monkeypatch.setattr(image_sampler, "adapted", lambda *_: Adapted())
    monkeypatch.setattr(sampler, "contexts", lambda texts: torch.tensor([float(bool(text)) for text in texts]))

    def noise_of(x, sigma, _, context):
        return predicted(x, sigma, bool(changed), context[:, None, None, None])

    monkeypatch.setattr(sampler, "_noise_of", noise_of)
    found = sampler._sample([None], ["a", "b"], image_sampler._Noise(seeds), steps, ancestral, 0.0, one_sided, until)

    noise, empty = image_sampler._Noise(seeds), torch.zeros(1)
    sigmas = comfy.samplers.calculate_sigmas(sampling, "normal", steps)
    first = noise.draw() * (1 + sigmas[0] ** 2) ** 0.5

    def denoised(x, sigma, **_):
        sigma = sigma[0]
        side = predicted(x, sigma, True, torch.ones(1))
        against = predicted(x, sigma, not one_sided, empty)
        guided = against + image_sampler.CFG * (side - against)
        return x - sigma * (guided if float(sampling.timestep(sigma)) >= until else side)

    denoised.inner_model = SimpleNamespace(inner_model=SimpleNamespace(model_sampling=sampling))
    given = {"disable": True}
    if ancestral:
        given["noise_sampler"] = lambda *_: noise.draw()
    wanted = (stock.sample_euler_ancestral if ancestral else stock.sample_euler)(denoised, first, sigmas, **given)
    torch.testing.assert_close(found, wanted, atol=1e-5 * float(wanted.abs().max()), rtol=0)
