"""Neurons of feed-forward layers, in U-Nets and in transformers: measured, searched, masked and
baked.
"""

import pytest
import reduced
import tiny_transformers
import torch
from quantized import model_copy
from tapping import hooks_left

SMALL = {"noise_samples": 2, "seed": 1, "timestep": "official_961", "width": 64, "height": 64}
SAMPLING = {
    "seed": 7,
    "steps": 2,
    "cfg": 2.0,
    "sampler_name": "euler",
    "scheduler": "simple",
    "denoise": 1.0,
}
#: One layer each whose neurons are the last channels of what it reads, or all of them.
LAYER = {
    "SD3": "joint_blocks.1.x_block.mlp.fc2",
    "Flux": "single_blocks.1.linear2",
    "Chroma": "single_blocks.0.linear2",
    "PixArtAlpha": "blocks.1.mlp.fc2",
    "Lumina2": "layers.1.feed_forward.w2",
    "ZImage": "noise_refiner.0.feed_forward.w2",
    "QwenImage": "transformer_blocks.0.img_mlp.net.2",
    "Flux2": "single_blocks.0.linear2",
    "HunyuanDiT": "blocks.2.mlp.fc2",
    "LTXV": "transformer_blocks.1.ff.net.2",
    "HiDream": "single_stream_blocks.0.block.ff_i.shared_experts.w2",
    "Omnigen2": "layers.0.feed_forward.linear_2",
    "WAN21_T2V": "blocks.2.ffn.2",
    "demo": "output_blocks.4.1.transformer_blocks.0.ff.net.2",
}
TRANSFORMERS = tuple(name for name in LAYER if name != "demo")
FRAMES = {"LTXV": 3, "WAN21_T2V": 3}


@pytest.fixture(scope="module")
def models(app):
    found = {name: tiny_transformers.model(name) for name in TRANSFORMERS}
    return found | {"demo": app.run("GBX_LoadDemoModel", weights="avatars-v2")[0]}


def layer_of(app, patcher, path):
    layers = app.module("nodes.neurons.neuron_layers").feed_forward_layers(
        patcher.model.diffusion_model
    )
    return next(layer for layer in layers if layer.path == path)


def mask_of(app, path, indices, scale=0.0):
    pack = app.module("nodes.neurons.mask")
    return pack.NeuronMask(pack.uniform_scales([(path, index) for index in indices], scale))


def masked(app, patcher, mask, **changes):
    given = {
        "strength": 1.0,
        "start_percent": 0.0,
        "end_percent": 1.0,
        "apply_to": "both",
    } | changes
    return app.run("GBX_NemoNeuronMask", model=patcher, mask=mask, **given)[0]


def sample(app, patcher, name, **changes):
    if name == "demo":
        clip = app.run("GBX_LoadDemoModel", weights="avatars-v2")[1]
        positive, negative = (
            app.run("CLIPTextEncode", clip=clip, text=text)[0] for text in ("portrait", "")
        )
    else:
        positive = tiny_transformers.conditioning(7, patcher)
        negative = tiny_transformers.conditioning(5 if name != "HunyuanDiT" else 7, patcher, seed=4)
    size = (26, 44) if name == "PixArtAlpha" else (8, 12)
    size = (8, 8) if name == "demo" else size
    latent = tiny_transformers.latent(patcher, 1, *size, frames=FRAMES.get(name, 1))
    given = {"model": patcher, "positive": positive, "negative": negative, "latent_image": latent}
    return app.run("KSampler", **given, **(SAMPLING | changes))[0]["samples"]


def with_zero_columns(patcher, path, columns):
    """A copy whose layer ignores some of what it reads."""
    other = patcher.clone()
    other.model = model_copy(patcher.model)
    with torch.inference_mode(False), torch.no_grad():
        other.model.diffusion_model.get_submodule(path).weight[:, columns] = 0
    return other


@pytest.mark.parametrize("name", LAYER)
def test_a_mask_is_the_second_layer_without_those_columns(app, models, name):
    """Silencing hidden units is zeroing the columns that read them: equal but for rounding; so is
    baking.
    """
    patcher, path = models[name], LAYER[name]
    layer = layer_of(app, patcher, path)
    chosen = [0, 3, layer.width - 1]
    first = patcher.model.diffusion_model.get_submodule(path).in_features - layer.width
    assert (first > 0) == path.endswith("linear2")
    mask, plain = mask_of(app, path, chosen), sample(app, patcher, name)
    expected = sample(
        app, with_zero_columns(patcher, path, [first + index for index in chosen]), name
    )
    found = sample(app, masked(app, patcher, mask), name)
    baked = sample(
        app, app.run("GBX_BakeNeuronMask", model=patcher, mask=mask, strength=1.0)[0], name
    )
    assert torch.allclose(found, expected, atol=1e-5) and torch.allclose(baked, expected, atol=1e-5)
    assert (found - plain).abs().max() > 1e-4
    assert hooks_left(patcher) == 0


@pytest.mark.parametrize("name", ["Flux", "SD3", "demo"])
def test_empty_mask_and_strength_0_are_bit_equal(app, models, name):
    patcher, plain = models[name], sample(app, models[name], name)
    for mask, strength in (
        (mask_of(app, LAYER[name], []), 1.0),
        (mask_of(app, LAYER[name], [1, 2]), 0.0),
    ):
        assert torch.equal(sample(app, masked(app, patcher, mask, strength=strength), name), plain)
    beyond = mask_of(app, LAYER[name], [1, 2])
    late = masked(app, patcher, beyond, start_percent=1.0)
    assert torch.equal(sample(app, late, name), plain)


@pytest.mark.parametrize("name", ["Flux", "demo"])
def test_a_mask_acts_on_the_positive_prompt_alone(app, models, name):
    """At CFG 0 the result is that of the negative prompt, which keeps its neurons."""
    mask = mask_of(app, LAYER[name], range(40))
    alone = masked(app, models[name], mask, apply_to="positive")
    for cfg, same in ((0.0, True), (2.0, False)):
        results = [sample(app, patcher, name, cfg=cfg) for patcher in (models[name], alone)]
        assert torch.allclose(*results, atol=1e-5) == same


def test_statistics_are_those_of_what_the_layer_reads(app, models):
    """Mean over tokens of the absolute hidden unit, at the first step in the noise of seed 1."""
    _, clip, _ = app.run("GBX_LoadDemoModel", weights="avatars-v2")
    patcher, path, seen = models["demo"], LAYER["demo"], []
    given = {
        "model": patcher,
        "clip": clip,
        "prompts_file": "",
        "filename_prefix": "",
        "neuron_type": "feed_forward",
    }
    given |= {"layers": "output_blocks.4.1", "width": 64, "height": 64}
    module = patcher.model.diffusion_model.get_submodule(path)
    handle = module.register_forward_pre_hook(lambda _, args: seen.append(args[0].float().clone()))
    try:
        found = app.run("GBX_NeuronStatistics", prompts="portrait\nportrait, smiling", **given)[0]
    finally:
        handle.remove()
    activations = torch.cat(seen[-2:]).abs().mean(1).double()
    assert len(seen) == 3 and found.count == 2  # the first is the fingerprint's
    assert list(found.layers) == [path]
    assert torch.allclose(found.layers[path].mean, activations.mean(0), rtol=1e-6)
    assert torch.allclose(found.deviation(path), activations.std(0), rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("architecture", ["flux", "sd3"])
def test_a_flow_model_is_scored_searched_and_masked(app, architecture):
    """The score's noise difference is the negative image that the network sees in pure noise."""
    patcher, clip, _ = reduced.checkpoint(architecture)
    score, step = (
        app.module("nodes.neurons.memorization_score"),
        app.module("nodes.neurons.first_step_comfy"),
    )
    shape = step.latent_shape(patcher, 64, 64)
    noise, seen = score.seeded_noise(shape, 2, 1), []
    (conditioning,) = app.run("CLIPTextEncode", clip=clip, text="a red hat")
    watched = patcher.clone()
    watched.set_model_sampler_post_cfg_function(
        lambda args: seen.append(args["denoised"]) or args["denoised"]
    )
    predicted = step.at_first_step(
        watched, conditioning, shape, 961, lambda predict: predict(noise), 2
    )
    assert torch.allclose(
        score.noise_difference(predicted, noise),
        score.noise_difference(-seen[0], 0 * noise),
        atol=1e-4,
    )

    prompts = "a red hat\na blue hat\na man"
    both = {"model": patcher, "clip": clip, "neuron_type": "feed_forward", "layers": "all"}
    files = {"prompts_file": "", "filename_prefix": "", "width": 64, "height": 64}
    statistics = app.run("GBX_NeuronStatistics", prompts=prompts, **both, **files)[0]
    settings = {
        "threshold": 0.0,
        "target_score": 0.999,
        "criterion": "same_seed",
        "theta_start": 5.0,
    }
    mask, *_, report = app.run(
        "GBX_NemoLocalize",
        statistics=statistics,
        prompts="a red hat",
        time_budget=0.0,
        **both,
        **settings,
        **SMALL,
    )
    assert mask.count and set(mask.scales) <= set(statistics.layers), report
    before, after = (
        step.at_first_step(one, conditioning, shape, 961, lambda predict: predict(noise), 2)
        for one in (patcher, masked(app, patcher, mask))
    )
    assert not torch.allclose(before, after, atol=1e-4)
    file, _ = app.run(
        "GBX_SaveNeuronMask", mask=mask, filename_prefix=f"glassbox/ff_{architecture}"
    )
    assert app.run("GBX_LoadNeuronMask", model=patcher, file=file)[0].scales == mask.scales


def test_a_flow_model_has_no_low_noise_timestep(app):
    patcher, clip, _ = reduced.checkpoint("flux")
    given = {
        "prompts": "a hat",
        "prompts_file": "",
        "threshold": 0.4,
        "filename_prefix": "",
        "text_norm": False,
    }
    with pytest.raises(ValueError, match="this is a flow model: turn it off"):
        app.run(
            "GBX_MemorizationScore", model=patcher, clip=clip, anisotropy=True, **given, **SMALL
        )
    report = app.run(
        "GBX_MemorizationScore", model=patcher, clip=clip, sharpness=True, **given, **SMALL
    )[5]
    assert "sharpness" in report
