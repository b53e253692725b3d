"""The loss, its gradient and a step of Adam against a float64 reference of the paper's loss
(section 3.4).
"""

import members
import pytest
import torch
from glassbox.nodes.weights import inversion, inversion_checkpoint, member_sources, space_builder
from glassbox.nodes.weights.inversion import Inversion, InversionSettings, TrainablePoint
from torch.nn import functional as F

LAYERS = {"mid_block.attn1.to_q": (6, 6), "mid_block.attn2.to_v": (6, 6)}
ALPHAS = torch.cumprod(
    1 - torch.linspace(0.00085**0.5, 0.012**0.5, 1000, dtype=torch.float64) ** 2, 0
)


IDENTITY = {"image": "one"}


@pytest.fixture(scope="module", params=["float32", "float16", "int8"])
def space(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("loras")
    for seed in range(9):
        from safetensors.torch import save_file

        save_file(
            members.kohya(members.factors(seed, layers=LAYERS)), folder / f"{seed}.safetensors"
        )
    target = tmp_path_factory.mktemp("spaces") / "s.safetensors"
    settings = space_builder.BuildSettings(form="as_trained", storage=request.param)
    return space_builder.build(member_sources.file_sources(folder), settings, target)


class Session:
    """A two-layer network on latents (1, 6, 4, 4) that predicts noise, like `Session` of
    trainer.py.
    """

    device = "cpu"

    def __init__(self, functions):
        generator = members.generator(0)
        self.weights = [torch.randn(6, 6, generator=generator) / 6**0.5 for _ in LAYERS]
        self.latents = [torch.randn(1, 6, 4, 4, generator=generator) for _ in range(2)]
        self.functions, self.sampling = functions, self
        self.num_timesteps = 1000

    def sigma(self, timestep):
        return ((1 - ALPHAS) / ALPHAS).sqrt()[int(timestep)].float()

    def noised(self, latent, noise, sigmas):
        return latent + sigmas[:, None, None, None] * noise

    def clean(self, latent):
        return latent

    def denoised(self, noised, sigmas, rows):
        weights = [
            function(weight) for function, weight in zip(self.functions, self.weights, strict=True)
        ]
        return noised - sigmas[:, None, None, None] * predicted(
            noised, sigmas[:, None, None, None], weights
        )


class V_PREDICTION:  # noqa: N801
    """ComfyUI's name for what makes a model_sampling answer v; its class is known by it."""


class VelocitySession(Session, V_PREDICTION):
    """The same network, whose answer is v = sqrt(alpha) noise - sqrt(1 - alpha) latent, as in SD2.x
    at 768.
    """

    def denoised(self, noised, sigmas, rows):
        weights = [
            function(weight) for function, weight in zip(self.functions, self.weights, strict=True)
        ]
        sigma = sigmas[:, None, None, None]
        velocity = predicted(noised, sigma, weights)
        return noised / (sigma**2 + 1) - velocity * sigma / (sigma**2 + 1) ** 0.5


def predicted(noised, sigma, weights):
    """The network's answer to the noised latent scaled to unit variance."""
    x = (noised / (1 + sigma**2) ** 0.5).movedim(1, -1)
    return (torch.tanh(x @ weights[0].T) @ weights[1].T).movedim(-1, 1)


def make(space, start=None, session=Session, **settings):
    model = TrainablePoint(
        space, torch.zeros(0) if start is None else start, settings.get("components", 100)
    )
    run = Inversion(model=model, settings=InversionSettings(**{"steps": 3, "seed": 5, **settings}))
    return run, session([model.weight_function([(name, None)]) for name in LAYERS])


def reference(space, session, run, mask, coefficients, step=0):
    """mean((m * eps_hat - m * eps)^2), or the same of v, in float64.

    theta = (beta @ V^T) * std + mean, W' = W + scale * B A.
    """
    basis = space.rows(0, space.components).double()
    beta = F.pad(coefficients, (0, space.components - len(coefficients)))
    theta = (beta @ basis) * space.deviation.double() + space.mean.double()
    weights = []
    for weight, slot in zip(session.weights, space.layout.slots, strict=True):
        down = theta[slot.offset : slot.up_offset].view(slot.down_shape)
        up = theta[slot.up_offset : slot.end].view(slot.up_shape)
        weights.append(weight.double() + space.layout.scale * up @ down)
    generator = torch.Generator().manual_seed(run.settings.seed * 1_000_003 + step)
    number = int(torch.randint(2, (1,), generator=generator))
    timestep = int(float(torch.rand(1, generator=generator)) * 1000)
    noise = torch.randn(1, 6, 4, 4, generator=generator).double()
    alpha = ALPHAS[timestep]
    noised = alpha.sqrt() * session.latents[number].double() + (1 - alpha).sqrt() * noise
    estimate = (torch.tanh(noised.movedim(1, -1) @ weights[0].T) @ weights[1].T).movedim(-1, 1)
    target = noise
    if isinstance(session, VelocitySession):
        target = alpha.sqrt() * noise - (1 - alpha).sqrt() * session.latents[number].double()
    return ((mask * estimate - mask * target) ** 2).mean()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("components", [3, 100])
@pytest.mark.parametrize("kind", [Session, VelocitySession])
def test_loss_gradient_and_one_adam_step_match_the_reference(space, masked, components, kind):
    start = space.coefficients[2] * 0.5
    run, session = make(space, start, kind, components=components, weight_decay=1e-2)
    mask = torch.zeros(1, 1, 4, 4)
    mask[..., :2] = 1
    loss = run.loss(session, mask if masked else None, 0)
    loss.backward()
    coefficients = run.model.all_coefficients().double().requires_grad_(True)
    wanted = reference(space, session, run, mask.double() if masked else 1.0, coefficients)
    wanted.backward()
    count = len(run.model.coefficients)
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    torch.testing.assert_close(
        run.model.coefficients.grad.double(), coefficients.grad[:count], atol=1e-6, rtol=1e-4
    )
    trained = coefficients.detach()[:count].clone().requires_grad_(True)
    trained.grad = coefficients.grad[:count].clone()
    torch.optim.Adam([trained], lr=0.1, betas=(0.9, 0.999), weight_decay=1e-2).step()
    run.optimizer.step()
    torch.testing.assert_close(
        run.model.coefficients.detach().double(), trained.detach(), atol=1e-4, rtol=1e-4
    )
    assert torch.equal(run.model.all_coefficients()[count:], space.pad(start)[count:])


def test_four_steps_of_adam_are_those_of_the_reference(space):
    """Each with its own image, noise level and noise, from the numbers of the step before."""
    start = space.coefficients[1] * 0.7
    run, session = make(space, start, weight_decay=1e-3, learning_rate=0.05)
    trained = run.model.all_coefficients().detach().double().requires_grad_(True)
    optimizer = torch.optim.Adam([trained], lr=0.05, betas=(0.9, 0.999), weight_decay=1e-3)
    before = trained.detach().clone()
    for step in range(4):
        run.optimizer.zero_grad()
        loss = run.loss(session, None, step)
        loss.backward()
        run.optimizer.step()
        run.model.refresh()
        optimizer.zero_grad()
        expected = reference(space, session, run, 1.0, trained, step)
        expected.backward()
        optimizer.step()
        assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    moved = float((trained.detach() - before).abs().max())
    assert moved > 0.1
    found = run.model.all_coefficients().detach().double()
    assert float((found - trained.detach()).abs().max()) < 2e-3 * moved


def test_with_a_prior_standard_deviations_are_trained_on_several_noise_samples(space):
    """Loss and gradient by plain products in float64: the mean over noise_samples, and prior *
    |z|^2.
    """
    start = space.coefficients[2] * 0.5
    made_of = TrainablePoint(space, start, 100, whitened=True)
    torch.testing.assert_close(made_of.all_coefficients(), space.pad(start), rtol=1e-5, atol=1e-6)
    session = Session([made_of.weight_function([(layer, None)]) for layer in LAYERS])
    run = Inversion(
        model=made_of,
        settings=InversionSettings(steps=20, seed=5, prior=0.3, noise_samples=3, learning_rate=0.2),
    )
    loss = run.loss(session, None, 4)
    loss.backward()
    plain = Inversion(model=made_of, settings=InversionSettings(steps=20, seed=5, noise_samples=3))
    numbers = made_of.coefficients.detach().clone()
    assert loss.item() == pytest.approx(
        plain.loss(session, None, 4).item() + 0.3 * float(numbers.square().sum()), rel=1e-5
    )
    for row in (0, len(numbers) - 1):
        values = []
        for step in (0.02, -0.02):
            with torch.no_grad():
                made_of.coefficients[row] += step
            made_of.refresh()
            values.append(run.loss(session, None, 4).item())
            with torch.no_grad():
                made_of.coefficients.copy_(numbers)
        made_of.refresh()
        measured = (values[0] - values[1]) / 0.04
        assert float(made_of.coefficients.grad[row]) == pytest.approx(measured, rel=0.02, abs=2e-3)
    run.optimizer.zero_grad()
    rates = []
    run.run(session, None, lambda done: rates.append(run.optimizer.param_groups[0]["lr"]))
    assert (
        rates[0] == pytest.approx(0.02)
        and max(rates) < 0.2
        and rates[-1] == pytest.approx(0.2 * 0.145)
    )


def test_samples_of_one_shape_share_an_evaluation(space):
    """The loss of several samples is the mean of each alone; images of another size are evaluated
    apart.
    """
    made_of = TrainablePoint(space, space.coefficients[2], 100)
    session = Session([made_of.weight_function([(layer, None)]) for layer in LAYERS])
    generator, calls, whole = members.generator(1), [], session.denoised
    session.latents.append(torch.randn(1, 6, 2, 3, generator=generator))
    session.denoised = lambda noised, sigmas, rows: (
        calls.append(list(rows)) or whole(noised, sigmas, rows)
    )
    drawn = [(0, 0.2), (2, 0.9), (1, 0.55), (0, 0.7)]
    samples = [
        (number, part, torch.randn(session.latents[number].shape, generator=generator))
        for number, part in drawn
    ]
    mask = inversion.latent_mask(
        torch.rand(2, 4, 4, generator=generator).round(), session.latents[0]
    )
    for area, chosen in ((None, samples), (mask, [samples[0], *samples[2:]])):
        each = torch.stack([inversion._loss(session, area, [sample]) for sample in chosen])
        calls.clear()
        torch.testing.assert_close(
            inversion._loss(session, area, chosen), each.mean(), rtol=1e-5, atol=0
        )
        assert calls == ([[0, 1, 0], [2]] if area is None else [[0, 1, 0]])


def test_a_run_starts_at_the_mean_and_lowers_the_loss(space):
    run, session = make(space, steps=60, learning_rate=0.3)
    assert not run.model.all_coefficients().any()
    seen = []
    before = sum(run.loss(session, None, step).item() for step in range(1000, 1040))
    run.run(session, None, seen.append)
    after = sum(run.loss(session, None, step).item() for step in range(1000, 1040))
    assert seen == list(range(1, 61)) and after < before


def test_a_run_resumes_exactly_from_its_checkpoint(space, tmp_path):
    whole, session = make(space, steps=6)
    whole.run(session, None, lambda done: None)
    first, session = make(space, steps=3)
    first.run(session, None, lambda done: None)
    inversion_checkpoint.save(first, tmp_path / "c.safetensors", IDENTITY)
    second, session = make(space, steps=6)
    inversion_checkpoint.restore(second, tmp_path / "c.safetensors", IDENTITY)
    assert second.done == 3
    second.run(session, None, lambda done: None)
    assert second.losses == whole.losses and torch.equal(
        second.model.all_coefficients(), whole.model.all_coefficients()
    )
    other, _ = make(space, steps=6)
    with pytest.raises(ValueError, match="another image"):
        inversion_checkpoint.restore(other, tmp_path / "c.safetensors", {"image": "another"})
    with pytest.raises(ValueError, match="holds 3 steps and 2 are wanted"):
        inversion_checkpoint.restore(make(space, steps=2)[0], tmp_path / "c.safetensors", IDENTITY)
    (tmp_path / "d.safetensors").write_bytes(b"cut")
    with pytest.raises(ValueError, match="cannot be read"):
        inversion_checkpoint.restore(other, tmp_path / "d.safetensors", IDENTITY)


def test_early_stop_takes_the_lowest_loss_on_held_out_noise(space, tmp_path):
    """At a learning rate that overshoots, training ends a patience after its best step, resumed or
    not.
    """
    choices = {"steps": 300, "learning_rate": 2.0, "early_stop": 50}
    run, session = make(space, **choices)
    assert torch.equal(run.loss(session, None, 7), make(space)[0].loss(session, None, 7))
    run.run(session, None, lambda done: None)
    assert run.converged and run.done == run.best_step + 50 < 300
    assert min(run.held_out.values()) == run.held_out[run.best_step]
    run.take_best()
    assert run.held_out_loss(session, None) == pytest.approx(run.held_out[run.best_step], rel=1e-6)
    first, session = make(space, **{**choices, "steps": 25})
    first.run(session, None, lambda done: None)
    inversion_checkpoint.save(first, tmp_path / "c.safetensors", IDENTITY)
    second, session = make(space, **choices)
    inversion_checkpoint.restore(second, tmp_path / "c.safetensors", IDENTITY)
    second.run(session, None, lambda done: None)
    second.take_best()
    assert second.held_out == run.held_out
    assert torch.equal(second.model.all_coefficients(), run.model.all_coefficients())


def test_held_out_noise_is_of_all_images_and_noise_levels(space):
    """The mean of the loss over eight draws, computed here one by one."""
    run, session = make(space)
    generator, wanted = torch.Generator().manual_seed(5 * 1_000_003 - 1), 0.0
    for row in range(8):
        latent, noise = session.latents[row % 2], torch.randn(1, 6, 4, 4, generator=generator)
        sigma = session.sigma(int((row + 0.5) / 8 * 1000))[None]
        answer = session.denoised(session.noised(latent, noise, sigma), sigma, [0])
        wanted += ((latent - answer) / sigma).square().mean().item() / 8
    assert run.held_out_loss(session, None) == pytest.approx(wanted, rel=1e-5)


def test_a_layer_changes_its_part_of_a_fused_weight(space):
    model = TrainablePoint(space, space.coefficients[1], 100)
    name = "mid_block.attn1.to_q"
    weight = torch.zeros(18, 6)
    change = torch.mm(*space.layout.unflatten(model.flat.detach())[name].matrices())
    changed = model.weight_function([(name, (0, 6, 6))])(weight)
    assert torch.equal(changed[:6], weight[:6]) and torch.equal(changed[12:], weight[12:])
    torch.testing.assert_close(changed[6:12], change)
    changed.square().sum().backward()
    assert model.coefficients.grad.abs().sum() > 0


def test_latent_masks_are_binary():
    mask = torch.zeros(1, 32, 32)
    mask[:, :, 9:] = 1.0
    small = inversion.latent_mask(mask, torch.zeros(1, 4, 4, 4))
    assert small.shape == (1, 1, 4, 4) and small[0, 0, 0].tolist() == [0, 1, 1, 1]
    with pytest.raises(ValueError, match="The mask is empty"):
        inversion.latent_mask(torch.zeros(1, 32, 32), torch.zeros(1, 4, 4, 4))


def test_timesteps_are_uniform_and_flow_models_have_times(space):
    _, session = make(space)
    levels = [inversion.sigma_at(session, fraction) for fraction in (0.0, 0.5, 0.9999)]
    assert levels == [pytest.approx(float(session.sigma(t))) for t in (0, 500, 999)]
    session.num_timesteps = None
    assert inversion.sigma_at(session, 3) == session.sigma(3)


def test_a_loss_that_is_not_finite_is_an_error(space):
    run, session = make(space)
    session.weights[0][:] = float("nan")
    with pytest.raises(ValueError, match="is not finite"):
        run.run(session, None, lambda done: None)
