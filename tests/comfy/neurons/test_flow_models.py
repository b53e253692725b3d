"""Embedding Adjustment, Memorization Audit and Adversarial Unlearning on flow models: losses
between predictions at random levels, against losses that are computed here.
"""

import csv
import io

import pytest
import reduced
import tiny_transformers
import torch
from tapping import hooks_left

#: What each network calls the width of its text; the reduced CLIP's is 64.
WIDTHS = {"QwenImage": "joint_attention_dim", "WAN21_T2V": "text_dim"}
TEXT = "a red hat"
SMALL = {"noise_samples": 2, "seed": 1, "width": 64, "height": 64}


def encoded(app, clip, text):
    return app.run("CLIPTextEncode", clip=clip, text=text)[0]


@pytest.fixture(scope="module", params=["flux", "QwenImage", "WAN21_T2V", "sd15"])
def family(app, request):
    if request.param in reduced.ARCHITECTURES:
        return reduced.checkpoint(request.param)[:2]
    changes = {WIDTHS[request.param]: 64}
    if request.param == "WAN21_T2V":
        changes["text_len"] = 77
    return tiny_transformers.model(request.param, **changes), reduced.checkpoint("sd15")[1]


class Vae:
    """Pixels as they are: 64 x 64 images in 8 x 8 positions, the channels repeated."""

    def __init__(self, patcher):
        self._format = patcher.get_model_object("latent_format")

    def encode(self, pixels):
        small = pixels.movedim(-1, 1)[:, :, ::8, ::8] - 0.5
        latent = small.repeat(1, self._format.latent_channels // 3 + 1, 1, 1)
        latent = latent[:, : self._format.latent_channels]
        return latent[:, :, None] if self._format.latent_dimensions == 3 else latent

    def decode(self, latent):
        image = latent[:, :3].movedim(1, -1).float()
        return image.repeat_interleave(8, -3).repeat_interleave(8, -2).clamp(-0.5, 0.5) + 0.5


def test_the_loss_of_an_attack_by_hand(app, family):
    """Noise the image at a level, call the network through ComfyUI's own sampling wrapper, compare
    with noise - image (flow) or with the noise.
    """
    import comfy.model_sampling
    import comfy.samplers

    patcher, clip = family
    audit = app.module("nodes.neurons.audit")
    session_of = app.module("nodes.neurons.embedding_session_comfy")
    positive = encoded(app, clip, TEXT)
    photograph = torch.rand(1, 64, 64, 3, generator=torch.Generator().manual_seed(2))
    latent = Vae(patcher).encode(photograph)
    settings = audit.AttackSettings(steps=2, learning_rate=0.05, noise_samples=3, seed=4)

    def work(session):
        embedding, losses = audit.attack_embedding(
            session, positive[0][0].clone(), settings, lambda done: None
        )
        return embedding, losses, session.latents[0]

    embedding, losses, scaled = session_of.run(patcher, latent, positive, work)
    assert losses[1] != losses[0] and not torch.equal(embedding, positive[0][0])

    generator = torch.Generator().manual_seed(4)
    noise = torch.randn((3, *latent.shape[1:]), generator=generator)
    timestep = torch.randint(1, 1000, (3,), generator=generator)
    sampling = patcher.get_model_object("model_sampling")
    is_flow = isinstance(sampling, comfy.model_sampling.CONST)
    errors = []
    for row in range(3):
        if is_flow:
            sigma = torch.tensor(float(sampling.percent_to_sigma(1 - int(timestep[row]) / 1000)))
            noised = sigma * noise[row] + (1 - sigma) * scaled[0]
            expected = noise[row] - scaled[0]
        else:
            sigma = sampling.sigma(timestep[row].float())
            noised = scaled[0] + sigma * noise[row]
            expected = noise[row]
        guider = comfy.samplers.CFGGuider(patcher)
        guider.inner_set_conds({"positive": positive})

        class Once(comfy.samplers.Sampler):
            def sample(self, wrap, sigmas, extra, *_args, noised=noised, sigma=sigma, **_more):
                return wrap(noised[None], sigma.expand(1), **extra)

        blank = torch.zeros_like(noised)[None]
        with torch.inference_mode():
            denoised = guider.sample(
                blank, blank, Once(), torch.stack([sigma, torch.zeros(())]), disable_pbar=True
            )
        denoised = patcher.model.process_latent_in(denoised)  # the guider hands a VAE's latent out
        errors.append(((noised - denoised[0]) / sigma - expected).square().mean())
    assert losses[0] == pytest.approx(float(torch.stack(errors).mean()), rel=2e-3)


def test_the_norm_that_is_adjusted_is_that_of_memorization_score(app, family):
    patcher, clip = family
    given = {"positive": encoded(app, clip, TEXT), "negative": encoded(app, clip, "")}
    settings = {"target_norm": 0.0, "steps": 2, "learning_rate": 0.05, "precision": "fp32"}
    adjusted, report = app.run(
        "GBX_EmbeddingAdjustment", model=patcher, **given, **settings, **SMALL
    )
    norms = [float(value) for value in report.split("Text norm ")[1].split(" after")[0].split(", ")]
    assert len(norms) == 3 and norms[-1] < norms[0]
    assert adjusted[0][0].shape == given["positive"][0][0].shape
    outputs = app.run(
        "GBX_MemorizationScore",
        model=patcher,
        clip=clip,
        prompts=TEXT,
        prompts_file="",
        threshold=0.0,
        text_norm=True,
        filename_prefix="",
        timestep="official_961",
        **SMALL,
    )
    (row,) = csv.DictReader(
        io.StringIO(next(text for text in outputs if str(text).startswith("prompt,score")))
    )
    assert norms[0] == pytest.approx(float(row["text_norm"]), rel=0.01) and norms[0] > 1e-3


def test_the_gradient_of_the_norm_by_finite_differences(app, family):
    patcher, clip = family
    session_of = app.module("nodes.neurons.embedding_session_comfy")
    shape = app.module("nodes.neurons.first_step_comfy").latent_shape(patcher, 64, 64)
    noise = torch.randn((1, *shape), generator=torch.Generator().manual_seed(3))
    positive = encoded(app, clip, TEXT)
    start = positive[0][0].clone()

    def work(session):
        timestep = torch.full((1,), session.first_timestep)
        x = session.pure(noise, timestep)

        def value(embedding):
            return session.predicted(x, timestep, embedding).square().mean()

        leaf = start.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(value(leaf), [leaf])
        direction = gradient / gradient.norm()  # where the slope is largest beside rounding
        with torch.no_grad():
            step = 0.02
            slope = (value(start + step * direction) - value(start - step * direction)) / (2 * step)
        return gradient, slope

    gradient, slope = session_of.run(patcher, torch.zeros(1, *shape), positive, work)
    assert float(slope) > 0
    assert float(gradient.norm()) == pytest.approx(float(slope), rel=0.1)


def test_audit_and_unlearning_run(app, family):
    patcher, clip = family
    photographs = torch.rand(3, 64, 64, 3, generator=torch.Generator().manual_seed(2))
    positive, negative = (encoded(app, clip, text) for text in (TEXT, ""))
    images, before, after, _, report = app.run(
        "GBX_MemorizationAudit",
        model=patcher,
        vae=Vae(patcher),
        positive=positive,
        negative=negative,
        image=photographs[:1],
        control_image=photographs[1:2],
        steps=2,
        learning_rate=0.1,
        noise_samples=2,
        batch_size=1,
        sampling_steps=1,
        cfg=3.0,
        seed=1,
        similarity="ssim",
    )
    assert images.shape == (3, 64, 64, 3) and "control: median similarity" in report
    assert -1 <= before <= 1 and -1 <= after <= 1
    name = "attn2" if hasattr(patcher.model.diffusion_model, "input_blocks") else "attn"
    model, lora, _, report = app.run(
        "GBX_AdversarialUnlearning",
        model=patcher,
        vae=Vae(patcher),
        clip=clip,
        positive=positive,
        image=photographs[:1],
        surrogates=photographs[1:],
        prompts="a blue hat",
        steps=2,
        learning_rate=0.01,
        batch_size=1,
        keep=1.0,
        attack_steps=1,
        noise_samples=1,
        restart=2,
        rank=2,
        layers=name,
        sampling_steps=1,
        cfg=3.0,
        seed=1,
        gradient_checkpointing=True,
        precision="fp32",
    )
    assert lora and model is not patcher and "Loss of the attack" in report
    assert hooks_left(patcher) == 0


@pytest.mark.parametrize("pads", [(0, 0), (5, 0), (0, 5)])
def test_an_embedding_stands_between_what_its_text_is_padded_with(app, pads):
    """FLUX.2's is padded in front; other tokens of it are left as they are."""
    session_of = app.module("nodes.neurons.embedding_session_comfy")
    encoded_text = torch.randn(1, 7, 6, generator=torch.Generator().manual_seed(1))
    before, behind = (torch.full((1, count, 6), 9.0) for count in pads)
    handed = torch.cat([before, encoded_text, behind], 1)
    assert session_of._place_of(encoded_text, handed) == pads[0]


def test_a_model_that_makes_something_else_of_its_text(app):
    """As Anima does before the network is called."""
    patcher, clip, _ = reduced.checkpoint("sd15")
    session_of = app.module("nodes.neurons.embedding_session_comfy")
    positive = encoded(app, clip, TEXT)
    changed = patcher.clone()

    def call(apply_model, args):
        return apply_model(args["input"], args["timestep"], **args["c"])

    changed.set_model_unet_function_wrapper(call)
    extra_conds = patcher.model.extra_conds

    def other_conds(**given):
        found = extra_conds(**given)
        found["c_crossattn"].cond = found["c_crossattn"].cond[:, :5]
        return found

    patcher.model.extra_conds = other_conds
    try:
        with pytest.raises(ValueError, match="is not handed the encoded text"):
            session_of.run(
                patcher,
                torch.zeros(1, 4, 8, 8),
                positive,
                lambda session: session.predicted(
                    torch.zeros(1, 4, 8, 8), torch.tensor([500]), positive[0][0].clone()
                ),
            )
    finally:
        del patcher.model.extra_conds
