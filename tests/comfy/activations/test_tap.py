"""Layer Activation Tap: values, noise levels, what takes part, and that nothing stays behind."""

import copy
from types import SimpleNamespace

import pytest
import reduced
import torch
from tapping import World, hooks_left


@pytest.fixture(scope="module")
def demo(app):
    return World(app, *app.run("GBX_LoadDemoModel", weights="avatars-v2"))


@pytest.fixture(scope="module", params=["sd15", "sdxl"])
def reduced_world(app, request):
    return request.param, World(app, *reduced.checkpoint(request.param))


def outputs_by_hand(world, latent, sigma, seed, modules):
    """What plain forward hooks see when the network is called directly: no clone, no wrapper, no
    sampler.
    """
    model, caught, handles = world.model.model, {}, []
    network = model.diffusion_model
    for name in modules:
        module = network.get_submodule(name)
        handles.append(
            module.register_forward_hook(
                lambda m, a, out, name=name: caught.update({name: out.clone()})
            )
        )
    noise = torch.randn(latent.shape, generator=torch.Generator().manual_seed(seed))
    x = model.process_latent_in(latent) + noise * sigma
    conditions = model.extra_conds(
        cross_attn=world.positive[0][0],
        noise=noise,
        device="cpu",
        **{k: v for k, v in world.positive[0][1].items() if k != "cross_attn"},
        width=latent.shape[3] * 8,
        height=latent.shape[2] * 8,
    )
    kwargs = {
        key: value.process_cond(batch_size=len(latent)).cond for key, value in conditions.items()
    }
    with torch.inference_mode():
        denoised = model.apply_model(x, torch.full((len(latent),), sigma), **kwargs)
    for handle in handles:
        handle.remove()
    return caught, x, denoised


def test_values_are_bit_equal_to_plain_hooks(reduced_world):
    """Every activation of an SD1.5 and an SDXL topology; maps to 1e-6."""
    _, world = reduced_world
    latent = world.latent(2, 64, 64)
    catalog = world.app.module("nodes.activations.catalog_unet").catalog(
        world.model.model.diffusion_model
    )
    tapped = world.tap("*", latent=latent, noise_unit="sigma", level=0.3)
    assert list(tapped.tensors) == [spec.id for spec in catalog]
    modules = [spec.module for spec in catalog if spec.kind in ("spatial", "tokens")]
    by_hand, x, _ = outputs_by_hand(world, latent["samples"], tapped.sigma, 3, modules)
    for spec in catalog:
        value = tapped.tensors[spec.id]
        if spec.kind in ("spatial", "tokens"):
            plain = by_hand[spec.module]
            if spec.kind == "tokens":
                plain = plain.transpose(1, 2).unflatten(2, value.shape[-2:])
            assert torch.equal(value, plain), spec.id
            assert value.shape[1:] == (spec.channels, 8 // spec.scale, 8 // spec.scale)
        elif spec.kind == "mean":
            assert (
                value.sum(1) - 1
            ).abs().max() < 1e-2  # what bicubic interpolation takes below 0 is clamped
        elif spec.kind == "sides":
            assert (value.unflatten(1, (2, -1)).sum(2) - 1).abs().max() < 1e-4
        elif spec.kind == "map":
            assert (value.sum(-1) - 1).abs().max() < 1e-5
    assert torch.equal(tapped.tensors["unet-in"], x / (tapped.sigma**2 + 1) ** 0.5)


def test_a_residual_output_is_its_shortcut_and_its_increment(demo):
    tapped = demo.tap("down-level0-repeat0-res-*\nunet-after-conv-in")
    increment, out = (
        tapped.tensors[f"down-level0-repeat0-res-{part}"] for part in ("increment", "out")
    )
    assert torch.equal(tapped.tensors["unet-after-conv-in"] + increment, out)


@pytest.mark.parametrize(
    ("name", "context", "timestep", "sigma", "seen"),
    [
        ("sd15", 768, 51, 0.228147, 1.419812),
        ("sdxl", 2048, 50, 0.225583, 1.415594),
    ],
)
def test_the_papers_noise_level(app, monkeypatch, name, context, timestep, sigma, seen):
    """Official schedulers: t = 50 is timestep 51 of SD1.5 and 50 of SDXL."""
    world = World(app, *reduced.checkpoint(name))
    monkeypatch.setitem(world.model.model.model_config.unet_config, "context_dim", context)
    tapped = world.tap("unet-in", latent=world.latent(1, 64, 64))
    assert tapped.timestep == timestep
    assert tapped.sigma == pytest.approx(
        sigma, abs=2e-6
    )  # ComfyUI's schedule is a float32 product of 51 factors
    sampling, level = world.model.get_model_object("model_sampling"), torch.tensor([tapped.sigma])
    x = sampling.noise_scaling(level, torch.full((1, 1, 1, 1), 2.0), torch.ones(1, 1, 1, 1))
    assert sampling.calculate_input(level, x).item() == pytest.approx(seen, abs=1e-5)


def test_other_units_of_the_noise_level(demo):
    host = demo.app.module("nodes.host.evaluate")
    sampling = demo.model.get_model_object("model_sampling")
    assert host.sigma_at(demo.model, 0.0, host.PERCENT) == pytest.approx(float(sampling.sigma_max))
    assert host.sigma_at(demo.model, 1.0, host.PERCENT) == pytest.approx(float(sampling.sigma_min))
    assert host.sigma_at(demo.model, 1e6, host.SIGMA) == pytest.approx(float(sampling.sigma_max))
    assert demo.tap("unet-in", noise_unit="sigma", level=2.0).sigma == 2.0


@pytest.mark.parametrize(("height", "width"), [(128, 64), (72, 200)])
def test_non_square_images(demo, height, width):
    tapped = demo.tap(
        "up-level2-repeat0-*-self-k\nup-level2-repeat0-vit-out",
        latent=demo.latent(1, height, width),
    )
    assert {tuple(value.shape[-2:]) for value in tapped.tensors.values()} == {
        (height // 8, width // 8)
    }


def test_noise_samples_are_averaged(demo):
    ids = "up-level1-repeat0-vit-out"
    single = [demo.tap(ids, seed=seed).tensors[ids] for seed in (3, 4)]
    mean = demo.tap(ids, seed=3, noise_samples=2).tensors[ids]
    assert (mean - sum(single) / 2).abs().max() < 1e-6 * mean.abs().max()


def test_a_lora_takes_part(demo):
    patched = demo.model.clone()
    weight = "diffusion_model.output_blocks.3.0.out_layers.3.weight"
    shape = demo.model.model.get_submodule(weight.rsplit(".", 2)[0])[3].weight.shape
    patched.add_patches({weight: ("diff", (torch.full(shape, 0.01),))})
    ids = "up-level1-repeat0-res-increment"
    changed, plain = demo.tap(ids, model=patched).tensors[ids], demo.tap(ids).tensors[ids]
    assert not torch.equal(changed, plain)
    assert torch.equal(demo.tap(ids).tensors[ids], plain)


def test_the_global_generator_and_the_latent_are_left_alone(demo):
    latent, state = demo.latent(), torch.get_rng_state()
    before = latent["samples"].clone()
    demo.tap("unet-out", latent=latent)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(latent["samples"], before)
    assert hooks_left(demo.model) == 0


def test_a_failure_inside_the_network_takes_the_hooks_off(demo, monkeypatch):
    block = demo.model.model.diffusion_model.output_blocks[3][0]
    monkeypatch.setattr(block, "forward", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        demo.tap("*")
    assert hooks_left(demo.model) == 0


def test_stop_comes_before_the_next_evaluation(demo):
    import comfy.model_management as management

    management.interrupt_current_processing(True)
    with pytest.raises(management.InterruptProcessingException):
        demo.tap("unet-out")
    assert not management.processing_interrupted()


def test_combined_conditioning_is_refused(demo):
    (combined,) = demo.app.run(
        "ConditioningCombine", conditioning_1=demo.positive, conditioning_2=demo.negative
    )
    with pytest.raises(ValueError, match="has several parts"):
        demo.tap("unet-out", positive=combined)


def test_merged_tokens_are_refused(demo):
    merged = demo.model.clone()
    merged.set_model_attn1_patch(
        lambda n, context, value, options: (n[:, ::2], n[:, ::2], n[:, ::2])
    )
    merged.set_model_attn1_output_patch(lambda n, options: n.repeat_interleave(2, 1))
    with pytest.raises(ValueError, match="another node merges or tiles tokens"):
        demo.tap("*-self-q", model=merged)


def test_a_compiled_model_is_refused(demo):
    compiled = demo.model.clone()
    compiled.model_options["torch_compile_kwargs"] = {}
    with pytest.raises(ValueError, match="cannot be hooked"):
        demo.tap("unet-out", model=compiled)


@pytest.mark.parametrize("changes", [{"latent": None}, {"image": torch.zeros(1, 64, 64, 3)}])
def test_either_latent_or_image_is_connected(demo, changes):
    given = {"latent": demo.latent(), **changes}
    with pytest.raises(ValueError, match="either latent, or image together with vae"):
        demo.tap("unet-out", **given)


def test_fp16_and_pooling_reduce_memory(demo):
    full = demo.tap("up-level2-repeat0-res-out").tensors["up-level2-repeat0-res-out"]
    small = demo.tap("up-level2-repeat0-res-out", pool_size=4, precision="fp16").tensors[
        "up-level2-repeat0-res-out"
    ]
    assert small.shape[-2:] == (4, 4) and small.dtype == torch.float16
    assert (
        small.float() - torch.nn.functional.avg_pool2d(full, 4)
    ).abs().max() < 2e-3 * full.abs().max()
    assert small.untyped_storage().nbytes() * 32 == full.untyped_storage().nbytes()


# Photographs, of any size and kind.


def tap_image(demo, image, **changes):
    """The activations of an image, and the pixels that the VAE is given."""
    watched, given = copy.copy(demo.vae), []
    watched.encode = lambda pixels: given.append(pixels) or demo.vae.encode(pixels)
    return demo.tap("mid-vit-out", latent=None, image=image, vae=watched, **changes), given[0]


def slope(height, width):
    """An image (1, H, W, 3) whose red rises from left to right and whose green rises downward."""
    down, right = torch.linspace(0, 1, height), torch.linspace(0, 1, width)
    return torch.stack(
        [
            right.expand(height, -1),
            down[:, None].expand(-1, width),
            torch.full((height, width), 0.5),
        ],
        2,
    )[None]


@pytest.mark.parametrize(
    ("size", "largest", "expected"),
    [
        ((47, 61), 0, (48, 64)),
        ((15, 23), 0, (16, 24)),
        ((5, 40), 0, (8, 40)),
        ((64, 96), 64, (40, 64)),
        ((300, 2000), 128, (16, 128)),
        ((96, 64), 1024, (96, 64)),
    ],
)
def test_images_are_scaled_and_never_cut(demo, size, largest, expected):
    """What is left out at the left and the top would shift every position; both edges of the image
    stay.
    """
    image = slope(*size)
    tapped, pixels = tap_image(demo, image, largest_size=largest)
    assert pixels.shape == (1, *expected, 3)
    cells = torch.tensor(expected)
    for axis, channel in ((0, 1), (1, 0)):
        middle = pixels[0, :, :, channel].mean(1 - axis)
        places = (torch.arange(cells[axis]) + 0.5) / cells[axis]
        ideal = ((places * size[axis] - 0.5) / (size[axis] - 1)).clamp(0, 1)
        assert (middle - ideal).abs().max() < 0.06
    assert torch.isfinite(tapped.tensors["mid-vit-out"].float()).all()
    if size == expected:
        assert torch.equal(pixels, image)


@pytest.mark.parametrize("kind", ["gray", "alpha", "half", "gray and alpha"])
def test_images_of_every_kind_are_their_colors(demo, kind):
    image = slope(64, 48)
    colors = image
    if kind.startswith("gray"):
        colors = image[..., :1].expand(-1, -1, -1, 3)
        image = image[..., : 1 if kind == "gray" else 2]
    elif kind == "alpha":
        image = torch.cat([image, torch.full((1, 64, 48, 1), 0.3)], 3)
    else:
        image = image.half()
        colors = image.float()
    one, other = (tap_image(demo, each)[0].tensors["mid-vit-out"] for each in (image, colors))
    assert torch.equal(one, other)


@pytest.mark.parametrize("mode", ["L", "RGBA", "LA", "P", "1"])
def test_files_of_every_kind_are_tapped_and_shown(demo, mode):
    import folder_paths
    import numpy as np
    from PIL import Image

    pixels = (slope(40, 64)[0, :, :, 0].numpy() * 255).astype(np.uint8)
    Image.fromarray(pixels).convert(mode).save(f"{folder_paths.get_input_directory()}/kind.png")
    (loaded, _) = demo.app.run("LoadImage", image="kind.png")
    tapped, _ = tap_image(demo, loaded)
    given = {
        "activations": tapped,
        "image": loaded,
        "image_index": 0,
        "points": "50%, 50%",
        "opacity": 0.5,
    }
    figure, mask = demo.app.run("GBX_ActivationSimilarity", **given)
    assert figure.shape[-1] == 3 and mask.shape == (1, 40, 64) and torch.isfinite(figure).all()


@pytest.mark.parametrize("ids", ["*", "unet-in, *-res-out", "attn-mean"])
@pytest.mark.parametrize("pool_size", [1, 2])
def test_the_memory_of_a_tap_is_known_before(reduced_world, ids, pool_size):
    _, world = reduced_world
    app = world.app
    module = app.module("nodes.activations.tap")
    specs = app.module("nodes.activations.select_ids").select(
        app.module("nodes.activations.catalog_unet").catalog(world.model.model.diffusion_model),
        "custom_ids",
        ids,
    )
    specs = [spec for spec in specs if spec.id != "attn"]  # a join of several layers' maps
    tapped = world.tap(
        ",".join(spec.id for spec in specs), latent=world.latent(2, 128, 64), pool_size=pool_size
    )
    settings = module.TapSettings(pool_size=pool_size, dtype=torch.float32)
    tokens = world.positive[0][0].shape[1]
    expected = sum(one.nbytes for one in tapped.tensors.values())
    assert module.kept_bytes(specs, (16, 8), 2, tokens, settings) == expected


def test_what_a_large_tap_takes_is_shown_before_it_begins(demo, monkeypatch):
    module, shown = demo.app.module("nodes.activations.tap_comfy"), []
    evaluate = module.host.evaluate
    monkeypatch.setattr(module, "logging", SimpleNamespace(info=lambda _, line: shown.append(line)))
    monkeypatch.setattr(
        module.host,
        "evaluate",
        lambda *values, **names: shown.append("evaluated") or evaluate(*values, **names),
    )
    demo.tap("unet-in", latent=demo.latent(1, 128, 128))
    assert shown == ["evaluated"]
    monkeypatch.setattr(module, "_MUCH", 0.5)
    demo.tap("unet-in", latent=demo.latent(2, 128, 128), noise_samples=16)
    assert shown[1].startswith("2 images of 16 x 16 latent positions, 16 evaluations: 2.0 times")
    assert shown[2:] == ["evaluated"] * 16
    monkeypatch.setattr(module, "get_free_memory", lambda _: 1000)
    with pytest.raises(ValueError, match=r"would not fit into memory: .* Set largest_size"):
        demo.tap("unet-in", latent=demo.latent(1, 128, 128))


def test_images_of_another_aspect_ratio_are_refused(demo):
    tapped, _ = tap_image(demo, slope(96, 128))
    given = {"activations": tapped, "image_index": 0, "points": "50%, 50%", "opacity": 0.5}
    for size in (
        (96, 128),
        (48, 64),
        (93, 131),
    ):  # the last one's cells are as square as they can be
        demo.app.run("GBX_ActivationSimilarity", image=slope(*size), **given)
    with pytest.raises(
        ValueError, match=r"another aspect ratio\. Connect the images that were tapped"
    ):
        demo.app.run("GBX_ActivationSimilarity", image=slope(128, 64), **given)
