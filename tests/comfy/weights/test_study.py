"""The study's own sampler of many models, against ComfyUI's samplers on the same predictions and
noise.
"""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import weight_nodes


@pytest.fixture(scope="module")
def family(app, tmp_path_factory):
    return weight_nodes.family(app, tmp_path_factory.getbasetemp())


@pytest.mark.parametrize("ancestral", [False, True])
@pytest.mark.parametrize(
    ("one_sided", "until", "then_both"),
    [(False, 0.0, False), (True, 0.0, False), (True, 400.0, False), (True, 400.0, True)],
)
def test_the_sampler_of_many_models_takes_comfyuis_steps(
    family, monkeypatch, ancestral, one_sided, until, then_both
):
    """With predictions that depend on the image, the noise level, the weights and the prompt; to
    1e-5.
    """
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
    monkeypatch.setattr(
        sampler, "contexts", lambda texts: torch.tensor([float(bool(text)) for text in texts])
    )

    def noise_of(x, sigma, _, context):
        return predicted(x, sigma, bool(changed), context[:, None, None, None])

    monkeypatch.setattr(sampler, "_noise_of", noise_of)
    found = sampler._sample(
        [None],
        ["a", "b"],
        image_sampler._Noise(seeds),
        steps,
        ancestral,
        0.0,
        one_sided,
        until,
        then_both,
    )

    noise, empty = image_sampler._Noise(seeds), torch.zeros(1)
    sigmas = comfy.samplers.calculate_sigmas(sampling, "normal", steps)
    first = noise.draw() * (1 + sigmas[0] ** 2) ** 0.5

    def denoised(x, sigma, **_):
        sigma = sigma[0]
        side = predicted(x, sigma, True, torch.ones(1))
        late = float(sampling.timestep(sigma)) < until
        against = predicted(x, sigma, late or not one_sided, empty)
        guided = against + image_sampler.CFG * (side - against)
        return x - sigma * (side if late and not then_both else guided)

    denoised.inner_model = SimpleNamespace(inner_model=SimpleNamespace(model_sampling=sampling))
    given = {"disable": True}
    if ancestral:
        given["noise_sampler"] = lambda *_: noise.draw()
    wanted = (stock.sample_euler_ancestral if ancestral else stock.sample_euler)(
        denoised, first, sigmas, **given
    )
    torch.testing.assert_close(found, wanted, atol=1e-5 * float(wanted.abs().max()), rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bfloat16", "tolerance"), [(False, 1e-3), (True, 1e-2)], ids=["float32", "bfloat16"]
)
@pytest.mark.parametrize(("end_percent", "until"), [(1.0, 0.0), (0.6, 400.0)])
def test_images_of_the_study_are_those_of_the_nodes(
    end_percent, until, bfloat16, tolerance, monkeypatch
):
    """Two members of the shipped space under W2W Guidance and Euler steps; the rest is float16
    factors in the node, and the study's bfloat16 on a CPU that multiplies it.
    """
    import comfy.sample

    from studies.common import host, training
    from studies.weights import image_sampler, population, setup

    if bfloat16 and not training.has_bfloat16():
        pytest.skip("This CPU emulates bfloat16; the study does not take it here.")
    monkeypatch.setattr(population, "has_bfloat16", lambda: bfloat16)
    study = setup.load(2)
    group, seeds, steps = study.members(count=2), (5, 6), 6
    points, texts, generator = study.points(group), setup.prompts(group), study.sampler.generator
    population = study.sampler._population(setup.factors(points), None)
    drawn = image_sampler._Noise(range(5, 7))
    with torch.no_grad():
        ours = study.sampler._sample(
            [population], texts, drawn, steps, False, 0.0, True, until, then_both=True
        )
    node = host.pack("nodes.weights.nodes_guidance").W2WGuidance
    for point, text, seed, found in zip(points, texts, seeds, ours.split(1), strict=True):
        noise = image_sampler._Noise(range(seed, seed + 1)).draw()
        with torch.inference_mode():
            model = node.execute(generator.model, point, 1.0, 1.0, None, end_percent).result[0]
            sides = generator.condition([text]), generator.condition([""])
            given = (
                noise,
                steps,
                image_sampler.CFG,
                "euler",
                "normal",
                *sides,
                torch.zeros_like(noise),
            )
            latent = comfy.sample.sample(model, *given, disable_pbar=True)
        wanted = generator.model.model.process_latent_in(latent)
        error = (found - wanted).square().mean() / wanted.square().mean()
        assert error < tolerance


def test_weights_that_a_node_left_on_the_network_are_in_no_image(family):
    """The sampler shares its network with the MODEL, which keeps the patches it was sampled
    with.
    """
    import comfy.sample

    from studies.weights import image_sampler, population
    from studies.world.generate import Generator
    from studies.world.release import WORLD

    generator = Generator.load(WORLD)
    trainer = population.Trainer(generator, population.Plan())
    sampler = image_sampler.ImageSampler(generator, trainer)
    unchanged = torch.zeros(1, trainer.layout.size)

    def image():
        return sampler.sample(unchanged, ["portrait"], 5, steps=2)

    before = image()
    (latents,) = torch.randn(1, 1, 24, 16, 16, generator=torch.Generator().manual_seed(0)).half()
    contexts = torch.randn(1, 77, 128, generator=torch.Generator().manual_seed(1))
    predicted = trainer.predict(latents.float(), torch.tensor([500]), contexts)
    with torch.inference_mode():
        given = {"strength": 1.0, "start_percent": 0.0, "end_percent": 1.0}
        model = family.run("GBX_W2WApply", model=generator.model, point=family.point, **given)[0]
        sides = [generator.condition([text]) for text in ("portrait", "")]
        noise = torch.randn(1, 24, 16, 16)
        comfy.sample.sample(
            model, noise, 1, 3.0, "euler", "normal", *sides, noise, disable_pbar=True
        )
    assert generator.model.model.current_weight_patches_uuid is not None
    again = trainer.predict(latents.float(), torch.tensor([500]), contexts)
    assert torch.equal(predicted, again)
    assert (before == image()).all()


def test_a_learned_space_is_trained_and_trained_further_from_its_file(app, tmp_path):
    """Members that start from the file are those that were written, but for the int8 of its
    basis.
    """
    from studies.weights import learned, people
    from studies.world.generate import Generator
    from studies.world.release import WORLD

    generator, group = Generator.load(WORLD), people.people(3)
    sizes = {"rank": 2, "components": 2, "images_each": 1}
    updates, _ = learned.train(generator, group, tmp_path, steps=2, **sizes)
    path = learned.write(updates, group, tmp_path / "space.safetensors")
    members = torch.stack([updates.flat(code) for code in updates.codes])
    further, _ = learned.train(generator, group, tmp_path, steps=0, start=path, **sizes)
    again = torch.stack([further.flat(code) for code in further.codes])
    torch.testing.assert_close(again.mean(dim=0), members.mean(dim=0), atol=1e-3, rtol=1e-3)
    differences = members - members.mean(dim=0)
    error = (again - again.mean(dim=0) - differences).norm() / differences.norm()
    assert error < 0.02
    assert float(further.codes.detach().std(dim=0).max()) == pytest.approx(0.3, rel=1e-3)
