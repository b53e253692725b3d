"""The door through which training goes: gradients through a MODEL that was loaded under inference
mode.
"""

import gc
import random
import weakref

import newer
import pytest
import reduced
import tapping
import torch

KEY = "diffusion_model.input_blocks.1.1.proj_in.weight"


def gaussian(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def management():
    import comfy.model_management

    return comfy.model_management


@pytest.fixture(scope="module")
def demo(app):
    return app.run("GBX_LoadDemoModel", weights="avatars-v2")


@pytest.fixture(scope="module")
def captions(app, demo):
    texts = ("portrait, red hair", "portrait, sunglasses, blue hoodie")
    return [app.run("CLIPTextEncode", clip=demo[1], text=text)[0] for text in texts]


@pytest.fixture(scope="module")
def train(app):
    return app.module("nodes.host.training.trainer")


@pytest.fixture(scope="module")
def images(app):
    with torch.inference_mode():
        return [gaussian(1, 24, 16, 16, seed=seed) for seed in (1, 2)]


def loss_of(session, rows=(0, 1)):
    latent = torch.cat([session.latents[row] for row in rows])
    sigmas = torch.full((len(rows),), 1.5)
    noised = session.noised(latent, gaussian(*latent.shape, seed=9), sigmas)
    return (session.denoised(noised, sigmas, rows) - session.clean(latent)).square().mean()


def scaled(factor):
    return {KEY: lambda weight: weight * factor}


@torch.inference_mode()
def gradient(train, model, images, captions, factor, functions, **choices):
    def work(session):
        loss = loss_of(session)
        loss.backward()
        return loss.item()

    return train.run(
        model, functions, images, captions, work, **{"dtype": torch.float32, **choices}
    )


def test_nothing_of_a_training_stays_on_the_layers(train, demo, images, captions):
    gradient(train, demo[0], images, captions, None, scaled(2.0 * leaf()))
    layers = train.trainable_layers(demo[0])
    assert KEY.removesuffix(".weight") in layers
    left = [
        name
        for name, layer in layers.items()
        if layer.weight_function or hasattr(layer, "prev_comfy_cast_weights")
    ]
    assert left == []


def leaf(value=1.0):
    with torch.inference_mode(False):
        return torch.tensor(value, requires_grad=True)


def test_the_gradient_is_that_of_finite_differences(train, demo, images, captions):
    factor, losses = leaf(), []
    gradient(train, demo[0], images, captions, factor, scaled(factor))
    for step in (-0.05, 0.05):
        losses.append(
            train.run(
                demo[0],
                scaled(1 + step),
                images,
                captions,
                lambda session: loss_of(session).item(),
                dtype=torch.float32,
            )
        )
    assert float(factor.grad) == pytest.approx((losses[1] - losses[0]) / 0.1, rel=0.05)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_gradient_beside_a_controlnet(train, app, demo, images, captions, checkpointing):
    """U-Nets add its outputs in place; the gradient is that of finite differences, to 1 % (0.03 %
    by steps of 1 %).
    """
    factor, losses = leaf(), []
    with_control = [tapping.controlled(app, demo[0], caption, 5e-3) for caption in captions]
    gradient(
        train, demo[0], images, with_control, factor, scaled(factor), checkpointing=checkpointing
    )
    for step in (-0.01, 0.01):
        changed = leaf(1 + step)
        losses.append(gradient(train, demo[0], images, with_control, changed, scaled(changed)))
    assert float(factor.grad) == pytest.approx((losses[1] - losses[0]) / 0.02, rel=0.01)
    plain = leaf()
    gradient(train, demo[0], images, captions, plain, scaled(plain))
    assert float(factor.grad) != pytest.approx(float(plain.grad), rel=1e-3)  # else it took no part


def test_tensors_that_are_changed_in_place_keep_their_gradients(app):
    """Of sum_i (i x)^2 at x = 1, with half of the i x changed afterwards: memory is used again
    thousands of times.
    """
    draw, x = random.Random(0), torch.ones(1000, dtype=torch.float64, requires_grad=True)
    with app.module("nodes.host.training.gradients").changes_allowed():
        total, kept = 0.0, []
        for factor in range(1, 3001):
            kept.append(factor * x)
            total = total + kept[-1].square().sum()
            if draw.random() < 0.5:
                kept.pop(draw.randrange(len(kept))).add_(100.0)
        total.backward()
    expected = 2 * sum(factor**2 for factor in range(1, 3001))
    assert torch.allclose(x.grad, torch.full_like(x, expected), rtol=1e-9)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_checkpointing_changes_no_gradient(train, demo, images, captions, depth):
    plain, again = leaf(), leaf()
    first = gradient(train, demo[0], images, captions, plain, scaled(plain))
    how = {"checkpointing": True, "checkpoint_depth": depth}
    assert gradient(train, demo[0], images, captions, again, scaled(again), **how) == first
    assert float(again.grad) == pytest.approx(float(plain.grad), rel=1e-4)
    assert not any("forward" in vars(module) for module in demo[0].model.modules())


def test_checkpoints_lie_as_deep_as_requested(app, demo):
    """Depth 1 checkpoints residual blocks and transformers, 2 what is in them; no module lies
    inside another one.
    """
    blocks = app.module("nodes.host.training.checkpointing").blocks_of
    kinds = [
        {type(block).__name__ for block in blocks(demo[0].model.diffusion_model, depth)}
        for depth in (1, 2)
    ]
    assert {"ResBlock", "SpatialTransformer"} <= kinds[0]
    assert "BasicTransformerBlock" in kinds[1] and not {"ResBlock", "SpatialTransformer"} & kinds[1]


def test_the_gradient_to_the_text_encoder_is_that_of_finite_differences(
    train, demo, images, captions
):
    """A factor on one of its weights, to 5 %; the CLIP stays as it was."""
    key, clip = "clip_l.transformer.text_model.encoder.layers.0.mlp.fc1.weight", demo[1]
    texts = {0: "portrait, red hair", 1: "portrait, sunglasses, blue hoodie"}

    def text(factor):
        return train.TextEncoder(clip, {key: lambda weight: weight * factor}, texts)

    def loss(factor):
        return gradient(train, demo[0], images, captions, factor, {}, text=text(factor))

    factor = leaf()
    same = loss(factor)
    unchanged = leaf()
    assert same == pytest.approx(
        gradient(train, demo[0], images, captions, unchanged, scaled(unchanged)), rel=1e-6
    )
    lower, higher = (loss(leaf(1 + step)) for step in (-0.05, 0.05))
    assert float(factor.grad) == pytest.approx((higher - lower) / 0.1, rel=0.05)
    assert torch.equal(clip.encode_from_tokens(clip.tokenize(texts[0])), captions[0][0][0])


def test_images_with_captions_of_their_own_share_an_evaluation(train, demo, images, captions):
    def answers(session):
        with torch.no_grad():
            latent = torch.cat(session.latents)
            sigmas = torch.tensor([0.7, 4.0])
            both = session.denoised(latent, sigmas, [0, 1])
            alone = [session.denoised(latent[i : i + 1], sigmas[i : i + 1], [i]) for i in (0, 1)]
            swapped = session.denoised(latent, sigmas, [1, 0])
            return both, torch.cat(alone), swapped

    both, alone, swapped = train.run(demo[0], {}, images, captions, answers, dtype=torch.float32)
    assert torch.allclose(both, alone, atol=1e-4)
    assert not torch.allclose(both, swapped, atol=1e-3)


def test_captions_that_cannot_share_an_evaluation(train, app, demo, images, captions):
    area = app.run(
        "ConditioningSetArea", conditioning=captions[0], width=64, height=64, x=0, y=0, strength=1.0
    )[0]

    def answers(session):
        with torch.no_grad():
            latent, sigmas = torch.cat(session.latents), torch.tensor([0.7, 4.0])
            return session.denoised(latent, sigmas, [0, 1]), session.denoised(
                latent[1:], sigmas[1:], [1]
            )

    both, second = train.run(demo[0], {}, images, [area, captions[1]], answers, dtype=torch.float32)
    assert torch.allclose(both[1:], second, atol=1e-4)


def test_the_model_stays_as_it_was_also_with_a_lora_before_and_after(
    train, app, demo, images, captions
):
    lora = {
        f"{KEY.removesuffix('.weight')}.lora_{side}.weight": gaussian(*shape, seed=5) * 0.1
        for side, shape in (("up", (64, 2)), ("down", (2, 64)))
    }
    with_lora = app.run("LoraModelLoader", model=demo[0], lora=lora, strength_model=1.0)[0]

    def generated(model):
        latent = {"samples": torch.zeros(1, 24, 16, 16)}
        how = {
            "seed": 3,
            "steps": 1,
            "cfg": 1.0,
            "sampler_name": "euler",
            "scheduler": "normal",
            "denoise": 1.0,
        }
        positive, negative = captions
        return app.run(
            "KSampler",
            model=model,
            positive=positive,
            negative=negative,
            latent_image=latent,
            **how,
        )[0]["samples"]

    plain, changed = generated(demo[0]), generated(with_lora)
    assert not torch.equal(plain, changed)
    factor = leaf()
    own = gradient(train, with_lora, images, captions, factor, scaled(factor))
    assert factor.grad.isfinite() and factor.grad != 0
    assert own != gradient(train, demo[0], images, captions, factor, scaled(factor))
    assert torch.equal(generated(demo[0]), plain) and torch.equal(generated(with_lora), changed)

    def fails(session):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        train.run(demo[0], scaled(2.0), images, captions, fails, dtype=torch.float32)
    assert torch.equal(generated(demo[0]), plain)


def test_comfyui_knows_of_the_gradients(train, demo, images, captions, monkeypatch):
    """Newer ones have kernels without gradients; the flag is on while work runs, and off after a
    failure, too.
    """
    management = train.comfy.model_management
    monkeypatch.setattr(management, "in_training", False, raising=False)
    flags = []
    train.run(
        demo[0],
        {},
        images,
        captions,
        lambda session: flags.append(management.in_training),
        dtype=torch.float32,
    )
    assert flags == [True] and management.in_training is False

    def fails(session):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        train.run(demo[0], {}, images, captions, fails, dtype=torch.float32)
    assert management.in_training is False


def test_clones_of_a_training_are_gone_after_it(train, app, demo, images, captions, monkeypatch):
    """ComfyUI finds the MODEL behind a clone that goes, but not where clones go together, in a
    circle.
    """
    clones, clone = [], train.comfy.model_patcher.ModelPatcher.clone

    def recorded(self, *args, **more):
        made = clone(self, *args, **more)
        clones.append(weakref.ref(made))
        return made

    monkeypatch.setattr(train.comfy.model_patcher.ModelPatcher, "clone", recorded)
    session_of = app.module("nodes.neurons.embedding_session_comfy")
    gc.collect()
    gc.disable()
    try:
        session_of.run(demo[0], images[0], captions[0], lambda session: session.steps)
        train.load(demo[0])  # it lets go of what was loaded last
        assert len(clones) > 1 and [one() for one in clones] == [None] * len(clones)
    finally:
        gc.enable()


def test_a_weight_that_is_not_there(train, demo, images, captions):
    with pytest.raises(ValueError, match=r"has no weight diffusion_model\.none\.weight"):
        train.run(
            demo[0],
            {"diffusion_model.none.weight": lambda weight: weight},
            images,
            captions,
            loss_of,
            dtype=torch.float32,
        )


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("architecture", reduced.ARCHITECTURES)
def test_a_step_on_each_architecture(train, app, architecture, checkpointing):
    """Also where norms keep parameters that no weight function reaches (Flux)."""
    model, clip, _ = reduced.checkpoint(architecture)
    with torch.inference_mode():
        for module in model.model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    module._parameters[name] = torch.nn.Parameter(
                        parameter.clone(), requires_grad=False
                    )
    layer = next(
        name
        for name, module in train.trainable_layers(model).items()
        if name.startswith("diffusion_model.") and getattr(module, "weight", None) is not None
    )
    channels = model.model.latent_format.latent_channels
    images = [gaussian(1, channels, 16, 16, seed=seed) for seed in (1, 2)]
    captions = [
        app.run("CLIPTextEncode", clip=clip, text=text)[0] for text in ("a house", "two boats")
    ]
    factor = leaf()

    def work(session):
        latent, sigmas = torch.cat(session.latents), torch.full((2,), 0.5)
        noised = session.noised(latent, gaussian(*latent.shape, seed=3), sigmas)
        session.denoised(noised, sigmas, [0, 1]).square().mean().backward()

    def trained():
        with torch.inference_mode():
            train.run(
                model,
                {f"{layer}.weight": lambda weight: weight * factor},
                images,
                captions,
                work,
                dtype=torch.bfloat16,
                checkpointing=checkpointing,
            )

    if architecture == "flux" and newer.than_tested() and not hasattr(management(), "in_training"):
        with pytest.raises(ValueError, match="update ComfyUI"):
            trained()
        return
    trained()
    assert factor.grad.isfinite() and factor.grad != 0


def test_kernels_without_gradients_are_refused_by_a_sentence(app, monkeypatch):
    @torch.library.custom_op("glassbox_tests::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    monkeypatch.delattr(management(), "in_training", raising=False)
    gradients = app.module("nodes.host.training.gradients")
    with pytest.raises(ValueError, match="update ComfyUI"), gradients.kernels_with_gradients():
        doubled(torch.ones(1, requires_grad=True)).sum().backward()
    with pytest.raises(RuntimeError, match="another"), gradients.kernels_with_gradients():
        raise RuntimeError("another error")
