"""Activations of transformers: names, cuts of fused projections, where the image's tokens are, and
maps.
"""

import copy

import newer
import pytest
import reduced
import tiny_transformers
import torch
from tapping import PATTERN, hooks_left

JOINT_TEXT = 7  # tokens that stand before the image's
HEIGHT, WIDTH = (
    13,
    22,
)  # tokens of an image: a latent of 26 x 44, or 13 x 22 where a token is one latent position
JOINT = ["q", "k", "v", "cross-map", "attn-out", "ffn-inner", "out"]
SEPARATE = ["self-q", "self-k", "self-v", "self-map", "cross-q", "cross-map", "ffn-inner", "out"]
REFINER = [part for part in JOINT if part != "cross-map"]
CROSS = [part for part in SEPARATE if part != "self-map"]
BLOCK = {
    "SD3": JOINT,
    "PixArtAlpha": SEPARATE,
    "Lumina2": JOINT,
    "ZImage": JOINT,
    "Omnigen2": JOINT,
    "HiDream": JOINT,
    "QwenImage": JOINT,
    "HunyuanDiT": CROSS,
    "LTXV": CROSS,
    "WAN21_T2V": CROSS,
}
REFINED = ("Lumina2", "ZImage", "Omnigen2")
#: Queries of whose cross-attention a map gives each position to the text alone.
TEXT_ALONE = ("PixArtAlpha", "WAN21_T2V", "LTXV")
FLUX = JOINT, ["q", "k", "v", "cross-map", "attn-inner", "ffn-inner", "out"]
#: The first block of SD3.5 Medium here has a second attention, of the image to itself.
SECOND = [
    "q",
    "k",
    "v",
    "cross-map",
    "self-q",
    "self-k",
    "self-v",
    "self-map",
    "attn-out",
    "self-attn-out",
    "ffn-inner",
    "out",
]


def expected_ids(name):
    if name in ("Flux", "Flux2", "Chroma"):
        return [f"vit-block{number}-{part}" for number in range(4) for part in FLUX[number >= 2]]
    first = {"SD3": SECOND}.get(name, BLOCK[name])
    blocks = range({"ZImage": 2, "QwenImage": 2, "HunyuanDiT": 4}.get(name, 3))
    ids = [
        f"vit-block{number}-{part}"
        for number in blocks
        for part in (BLOCK[name] if number else first)
    ]
    return [f"vit-refiner0-{part}" for part in REFINER] + ids if name in REFINED else ids


VIEW = {"mode": "pca_rgb", "joint_fit": True, "channel": 0, "size": 64}


@pytest.fixture(scope="module")
def models(app):
    return {name: tiny_transformers.model(name) for name in tiny_transformers.NAMES}


def catalog_of(app, patcher):
    return app.module("nodes.activations.catalog_unet").catalog(patcher.model.diffusion_model)


def latent_of(patcher, count):
    """Random latents of HEIGHT x WIDTH tokens."""
    patch = getattr(patcher.model.diffusion_model, "patch_size", 1)
    side = patch if isinstance(patch, int) else patch[-1]
    return tiny_transformers.latent(patcher, count, HEIGHT * side, WIDTH * side)


def tap(app, patcher, ids, **changes):
    images = {
        "positive": tiny_transformers.conditioning(patcher=patcher),
        "latent": latent_of(patcher, 2),
    }
    given = {
        **PATTERN,
        **images,
        "ids": ids,
        "model": patcher,
        "seed": 3,
        "noise_samples": 1,
        "noise_unit": "sigma",
        "level": 0.5,
    }
    return app.run("GBX_LayerActivationTap", **{**given, **changes})[0]


def seen_by_hand(patcher, paths, run):
    """First inputs and outputs of modules while something runs."""
    caught, handles = {}, []
    for path in paths:

        def keep(module, args, output, path=path):
            caught[path] = (args[0].clone() if args else None, output)

        handles.append(
            patcher.model.diffusion_model.get_submodule(path).register_forward_hook(keep)
        )
    try:
        return run(), caught
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("name", tiny_transformers.NAMES)
def test_every_id_comes_with_its_channels_on_the_images_grid(app, models, name):
    """Names as in the official code (eight per block of PixArt); images that are not square."""
    specs, tapped = catalog_of(app, models[name]), tap(app, models[name], "*")
    expected = expected_ids(name)
    expected += ["attn-mean"] if "cross-map" in " ".join(expected) else []
    assert [spec.id for spec in specs] == expected == list(tapped.tensors)
    for spec in specs:
        value = tapped.tensors[spec.id]
        if spec.kind == "tokens":
            assert value.shape == (2, spec.channels, HEIGHT, WIDTH), spec.id
        else:
            given = value.sum(1 if spec.members else -1)
            whole = name in TEXT_ALONE or spec.id.endswith(
                "self-map"
            )  # else the image gets the rest
            assert (given - 1).abs().max() < 1e-4 if whole else (given < 1).all(), spec.id
    assert hooks_left(models[name]) == 0


@pytest.mark.parametrize(
    ("name", "last", "path", "text"),
    [
        ("SD3", 2, "final_layer", 0),
        ("Flux", 3, "final_layer", 0),
        ("Chroma", 3, "final_layer", 0),
        ("PixArtAlpha", 2, "final_layer", 0),
        ("Lumina2", 2, "final_layer", JOINT_TEXT),
        ("WAN21_T2V", 2, "head", 0),
        ("QwenImage", 1, "norm_out", 0),
        ("Flux2", 3, "final_layer", 0),
        ("HunyuanDiT", 3, "final_layer", 0),
        ("LTXV", 2, "norm_out", 0),
        ("HiDream", 2, "final_layer", 0),
        ("Omnigen2", 2, "norm_out", JOINT_TEXT),
    ],
)
def test_the_last_blocks_output_is_what_the_final_layer_gets(app, models, name, last, path, text):
    """So the right tokens of the right output are taken, in the image's order."""
    tapped, caught = seen_by_hand(
        models[name], [path], lambda: tap(app, models[name], f"vit-block{last}-out")
    )
    expected = caught[path][0][:, text : text + HEIGHT * WIDTH]
    found = tapped.tensors[f"vit-block{last}-out"].flatten(2).transpose(1, 2)
    assert torch.equal(found, expected)


def test_a_refiner_sees_the_image_alone(app, models):
    path = "noise_refiner.0"
    tapped, caught = seen_by_hand(
        models["Lumina2"], [path], lambda: tap(app, models["Lumina2"], "vit-refiner0-out")
    )
    found = tapped.tensors["vit-refiner0-out"].flatten(2).transpose(1, 2)
    assert caught[path][1].shape[1] == HEIGHT * WIDTH and torch.equal(found, caught[path][1])


def test_tokens_that_pad_a_sequence_are_left_out(app):
    """Z-Image pads text and image each to a multiple of 32 tokens."""
    patcher = tiny_transformers.model("Lumina2", pad_tokens_multiple=32)
    tapped, caught = seen_by_hand(
        patcher, ["final_layer"], lambda: tap(app, patcher, "vit-block2-out")
    )
    sequence = caught["final_layer"][0]
    assert sequence.shape[1] == 32 + 288
    found = tapped.tensors["vit-block2-out"].flatten(2).transpose(1, 2)
    assert torch.equal(found, sequence[:, 32 : 32 + HEIGHT * WIDTH])


@pytest.mark.parametrize(
    ("module", "name", "settings"),
    [
        (
            "hunyuan3d.model",
            "Hunyuan3Dv2",
            {"hidden_size": 64, "num_heads": 2, "depth": 1, "depth_single_blocks": 1},
        ),
        (
            "hunyuan3dv2_1.hunyuandit",
            "HunYuanDiTPlain",
            {"hidden_size": 64, "num_heads": 2, "depth": 2},
        ),
        ("audio.dit", "AudioDiffusionTransformer", {"embed_dim": 64, "num_heads": 2, "depth": 1}),
        ("ace.model", "ACEStepTransformer2DModel", {"num_layers": 1}),
    ],
)
def test_networks_that_make_no_images_are_refused(app, module, name, settings):
    """Hunyuan3D has Flux's blocks, over points instead of positions."""
    import importlib

    from comfy import ops

    network = getattr(importlib.import_module(f"comfy.ldm.{module}"), name)
    made = network(
        **settings, dtype=torch.float32, device="meta", operations=ops.disable_weight_init
    )
    with pytest.raises(ValueError, match=f"{name} makes (3D shapes|audio).*Use a model for images"):
        app.module("nodes.activations.catalog_unet").catalog(made)


@pytest.mark.parametrize(
    ("name", "path"), [("QwenImage", "transformer_blocks.1"), ("Omnigen2", "layers.2")]
)
def test_reference_images_are_not_the_image(app, models, name, path):
    """Qwen-Image has them after the image, OmniGen2 between text and image: the image's tokens come
    with both.
    """
    references = [tiny_transformers.latent(models[name], 1, 8, 12)["samples"]]
    ((text, others),) = tiny_transformers.conditioning(patcher=models[name])
    positive = [[text, others | {"reference_latents": references}]]
    id_, positions = f"vit-block{path[-1]}-out", HEIGHT * WIDTH
    tapped, caught = seen_by_hand(
        models[name], [path], lambda: tap(app, models[name], id_, positive=positive)
    )
    output = caught[path][1][1] if name == "QwenImage" else caught[path][1]
    image = output[:, :positions] if name == "QwenImage" else output[:, -positions:]
    assert output.shape[1] >= positions + 24
    assert torch.equal(tapped.tensors[id_].flatten(2).transpose(1, 2), image)


def test_a_network_that_masks_its_text(app):
    """HunyuanVideo. Its single blocks begin with the image in ComfyUI 0.3.75, in newer ones with
    text.
    """
    from comfy import ops
    from comfy.ldm.hunyuan_video.model import HunyuanVideo

    settings = newer.network(
        {
            "image_model": "hunyuan_video",
            "in_channels": 16,
            "out_channels": 16,
            "vec_in_dim": 32,
            "context_in_dim": 24,
            "hidden_size": 64,
            "mlp_ratio": 4.0,
            "num_heads": 2,
            "depth": 1,
            "depth_single_blocks": 1,
            "axes_dim": [8, 12, 12],
            "theta": 256,
            "patch_size": [1, 2, 2],
            "qkv_bias": True,
            "guidance_embed": True,
            "byt5": False,
            "meanflow": False,
            "use_cond_type_embedding": False,
            "vision_in_dim": None,
        }
    )
    network = HunyuanVideo(
        **settings, dtype=torch.float32, device="cpu", operations=ops.disable_weight_init
    )
    reduced.fill(network, torch.Generator().manual_seed(0))
    specs = app.module("nodes.activations.catalog_unet").catalog(network)
    expected = [f"vit-block{number}-{part}" for number, block in enumerate(FLUX) for part in block]
    assert [spec.id for spec in specs] == [*expected, "attn-mean"]
    assert {spec.scale for spec in specs} == {2}
    seen = {}
    for name, module in (("block", network.single_blocks[0]), ("img_in", network.img_in)):
        module.register_forward_hook(
            lambda module, given, output, name=name: seen.update({name: output.clone()})
        )
    network.final_layer.register_forward_pre_hook(lambda module, given: seen.update(image=given[0]))
    given = {"context": torch.randn(1, 5, 24), "y": torch.randn(1, 32), "guidance": torch.ones(1)}
    network(torch.randn(1, 16, 2, 4, 4), torch.ones(1), **given)
    length_module = next(spec.length_module for spec in specs if spec.id == "vit-block1-out")
    images = seen[length_module].shape[1] if length_module else 0
    count = seen["image"].shape[1]
    assert torch.equal(
        seen["image"], seen["block"][:, -images:] if length_module else seen["block"][:, :count]
    )


def test_a_network_whose_feed_forward_part_is_gated(app, models):
    """Newer relatives of Flux end it in ``down_proj``."""
    network = copy.deepcopy(models["Flux"].model.diffusion_model)
    for block in network.double_blocks:
        block.img_mlp = torch.nn.ModuleDict(
            {"up_proj": torch.nn.Linear(64, 80), "down_proj": torch.nn.Linear(80, 64)}
        )
    specs = app.module("nodes.activations.catalog_unet").catalog(network)
    inner = next(spec for spec in specs if spec.id == "vit-block0-ffn-inner")
    assert (inner.module, inner.channels) == ("double_blocks.0.img_mlp.down_proj", 80)


@pytest.mark.parametrize(
    ("name", "block", "path", "text", "widths"),
    [
        ("SD3", 1, "joint_blocks.1.x_block.attn.qkv", 0, (128, 128, 128)),
        ("SD3", 0, "joint_blocks.0.x_block.attn2.qkv", 0, (128, 128, 128)),
        ("Flux", 0, "double_blocks.0.img_attn.qkv", 0, (64, 64, 64)),
        ("Chroma", 2, "single_blocks.0.linear1", JOINT_TEXT, (64, 64, 64)),
        ("Flux", 3, "single_blocks.1.linear1", JOINT_TEXT, (64, 64, 64)),
        ("PixArtAlpha", 1, "blocks.1.attn.qkv", 0, (48, 48, 48)),
        ("Lumina2", 2, "layers.2.attention.qkv", JOINT_TEXT, (96, 48, 48)),
        (
            "Flux2",
            2,
            "single_blocks.0.linear1",
            512,
            (64, 64, 64),
        ),  # its text is filled up to 512 tokens
        ("HunyuanDiT", 1, "blocks.1.attn1.Wqkv", 0, (64, 64, 64)),
    ],
)
def test_fused_projections_are_cut_by_layout(app, models, name, block, path, text, widths):
    prefix = "self-" if name in ("PixArtAlpha", "HunyuanDiT") or "attn2" in path else ""
    ids = [f"vit-block{block}-{prefix}{letter}" for letter in "qkv"]
    tapped, caught = seen_by_hand(
        models[name], [path], lambda: tap(app, models[name], "\n".join(ids))
    )
    fused = caught[path][1][:, text : text + HEIGHT * WIDTH, : sum(widths)]
    for id_, expected in zip(ids, fused.split(widths, dim=-1), strict=True):
        assert torch.equal(tapped.tensors[id_].flatten(2).transpose(1, 2), expected), id_


@pytest.mark.parametrize(
    ("name", "module", "calls_of"),
    [
        (
            "PixArtAlpha",
            "comfy.ldm.pixart.blocks",
            {"vit-block1-self-map": 2, "vit-block1-cross-map": 3},
        ),
        ("WAN21_T2V", "comfy.ldm.wan.model", {"vit-block1-cross-map": 3}),
        (
            "SD3",
            "comfy.ldm.modules.diffusionmodules.mmdit",
            {"vit-block0-cross-map": 0, "vit-block0-self-map": 1, "vit-block1-cross-map": 2},
        ),
        ("Flux", "comfy.ldm.flux.math", {"vit-block1-cross-map": 1, "vit-block3-cross-map": 3}),
        ("Chroma", "comfy.ldm.flux.math", {"vit-block0-cross-map": 0, "vit-block2-cross-map": 2}),
        (
            "QwenImage",
            "comfy.ldm.qwen_image.model",
            {"vit-block0-cross-map": 0, "vit-block1-cross-map": 1},
        ),
    ],
)
def test_maps_are_those_of_the_attention_that_runs(
    app, models, monkeypatch, name, module, calls_of
):
    """Against the softmax of the queries and keys that ComfyUI hands to its attention; of joint
    ones its text part.
    """
    import importlib

    target, calls = importlib.import_module(module), []
    called = "optimized_attention_masked" if name == "QwenImage" else "optimized_attention"
    attention = getattr(target, called)

    def spied(q, k, v, heads, *args, **options):
        split = q if q.ndim == 4 else q.unflatten(2, (heads, -1)).transpose(1, 2)
        keys = k if k.ndim == 4 else k.unflatten(2, (heads, -1)).transpose(1, 2)
        calls.append((split @ keys.transpose(2, 3) * split.shape[-1] ** -0.5).softmax(-1))
        return attention(q, k, v, heads, *args, **options)

    monkeypatch.setattr(target, called, spied)
    tapped = tap(app, models[name], "\n".join([*calls_of, "attn-mean"]))
    for id_, number in calls_of.items():
        found, expected = tapped.tensors[id_], calls[number]
        if len(expected) < len(found):  # PixArt joins the texts of a batch
            expected = expected.reshape(found.shape)
        joint = (
            expected.shape[2] == HEIGHT * WIDTH + JOINT_TEXT
        )  # the last map's says whether the model's is
        expected = expected[:, :, JOINT_TEXT:, :JOINT_TEXT] if joint else expected
        assert (found - expected.view(found.shape)).abs().max() < 1e-6, id_
    if joint:
        crossed = [call for call in calls if call.shape[3] > HEIGHT * WIDTH]
        mean = torch.stack([call[:, :, JOINT_TEXT:, :JOINT_TEXT].mean(1) for call in crossed]).mean(
            0
        )
        found = tapped.tensors["attn-mean"].flatten(2).transpose(1, 2)
        assert len(crossed) >= 2 and (found - mean).abs().max() < 1e-6


@pytest.mark.parametrize("name", tiny_transformers.NAMES)
def test_recording_a_transformer_does_not_change_the_image(app, models, name):
    given = {**PATTERN, "ids": "*-out", "recorded_steps": "last", "rows": "both"}
    recording_model, recording = app.run("GBX_ActivationRecorder", model=models[name], **given)
    latent = latent_of(models[name], 1)
    settings = {
        "seed": 7,
        "steps": 2,
        "cfg": 2.0,
        "sampler_name": "euler",
        "scheduler": "normal",
        "denoise": 1.0,
        "positive": tiny_transformers.conditioning(patcher=models[name]),
        "negative": tiny_transformers.conditioning(7, models[name]),
        "latent_image": latent,
    }
    plain, recorded = (
        app.run("KSampler", model=one, **settings)[0] for one in (models[name], recording_model)
    )
    assert torch.equal(plain["samples"], recorded["samples"])
    activations = app.run(
        "GBX_ReadActivations", recording=recording, latent=recorded, step_index=-1
    )[0]
    assert [row.conditional for row in activations.rows] == [True, False]


def test_presets_for_transformers(app, models):
    selection = app.module("nodes.activations.select_ids")
    specs = catalog_of(app, models["Flux"])
    assert [spec.id for spec in selection.select(specs, selection.Preset.RECOMMENDED)] == [
        "vit-block2-out"
    ]
    for preset, reason in (
        (selection.Preset.GENERAL_FILTER, "this model is a transformer"),
        (selection.Preset.PAPER_POOL, "has no 'paper_pool'"),
        ("ours_xl", "a set for SDXL"),
    ):
        with pytest.raises(ValueError, match=reason):
            selection.select(specs, preset)
    for name in tiny_transformers.NAMES:
        cross = selection.select(catalog_of(app, models[name]), selection.Preset.CROSS_ATTENTION)
        assert [spec.id for spec in cross] == ["attn-mean"]
    lumina = catalog_of(app, models["Lumina2"])
    assert [spec.id for spec in selection.select(lumina, selection.Preset.RECOMMENDED)] == [
        "vit-block1-out"
    ]


@pytest.mark.parametrize(("name", "frames"), [("SD3", 1), ("WAN21_T2V", 3)])
def test_quality_of_transformers_and_videos(app, models, name, frames):
    """No rule is published for them: the filters keep all, and limits on what was measured still
    apply.
    """
    size = {"frames": frames} if frames > 1 else {}
    latent = tiny_transformers.latent(models[name], 2, 8, 12, **size)
    samples = latent["samples"]
    tapped = app.run(
        "GBX_LayerActivationTap",
        **PATTERN,
        model=models[name],
        positive=tiny_transformers.conditioning(),
        ids="*-out",
        latent={"samples": torch.cat([samples, samples])},
        seed=0,
        noise_unit="sigma",
        level=0.5,
        noise_samples=1,
    )[0]
    given = {
        "measure": "quality",
        "activations": tapped,
        "model": models[name],
        "latent": latent,
        "points": "",
        "threshold": 0.1,
        "train_images": 2,
        "resolution": 64,
        "seed": 0,
        "noise_samples": 2,
        "max_noise_fraction": 1.0,
        "max_locality": 2.0,
        "keep": 5,
        "filename_prefix": "",
    }
    for id_filter in ("paper_filter", "general_filter", "measured"):
        figure, report, ids, *_ = app.run("GBX_ScoreActivations", **given, id_filter=id_filter)
        assert figure.ndim == 4 and ids.splitlines() == [
            line.split()[0] for line in report.splitlines()[1:]
        ]


def test_the_catalog_of_a_transformer(app, models):
    figure, table, ids = app.run(
        "GBX_ActivationCatalog",
        model=models["Flux"],
        preset="recommended",
        ids="",
        width=160,
        height=96,
    )
    assert (
        "vit-block0-q  double_blocks.0.img_attn.qkv  64x6x10" in table and ids == "vit-block2-out"
    )
    assert figure.ndim == 4 and figure.amin() < 1


def test_each_frame_of_a_video_is_a_row(app, models):
    """Tokens and attention of 2 videos of 3 frames against what the network's own modules hand
    out.
    """
    model, path = models["WAN21_T2V"], "blocks.2"
    video = tiny_transformers.latent(model, 2, 12, 20, frames=3)
    ids = "vit-block2-out\nvit-block1-cross-map\nattn-mean"
    tapped, caught = seen_by_hand(model, [path], lambda: tap(app, model, ids, latent=video))
    out = tapped.tensors["vit-block2-out"]
    assert out.shape == (6, 96, 6, 10) and [row.image for row in tapped.rows] == list(range(6))
    assert torch.equal(out, caught[path][1].view(2, 3, 6, 10, 96).flatten(0, 1).permute(0, 3, 1, 2))
    assert tapped.settings["frames"] == 3
    assert tapped.tensors["vit-block1-cross-map"].shape[:3] == (6, 4, 60)
    assert tapped.tensors["attn-mean"].shape[2:] == (6, 10)
    image = (
        torch.arange(18.0).view(18, 1, 1, 1).expand(18, 48, 80, 3) / 18
    )  # decoded: 9 images a video
    shown = app.module("nodes.activations.tap_inputs").images_of(image, tapped)
    assert (shown[:, 0, 0, 0] * 18).round().tolist() == [0, 4, 8, 9, 13, 17]
    (figure,) = app.run(
        "GBX_ActivationPicture", activations=tapped.select(["vit-block2-out"]), **VIEW
    )[:1]
    assert len(figure) == 6


def test_recording_a_video_keeps_its_frames_as_rows(app, models):
    model = models["WAN21_T2V"]
    recording_model, recording = app.run(
        "GBX_ActivationRecorder",
        model=model,
        **PATTERN,
        ids="vit-block1-out",
        recorded_steps="last",
        rows="both",
    )
    latent = tiny_transformers.latent(model, 1, 8, 8, frames=2)
    text = {
        "positive": tiny_transformers.conditioning(),
        "negative": tiny_transformers.conditioning(5),
    }
    samples = app.run(
        "KSampler",
        model=recording_model,
        seed=7,
        steps=2,
        cfg=2.0,
        sampler_name="euler",
        denoise=1.0,
        scheduler="normal",
        latent_image=latent,
        **text,
    )[0]
    activations = app.run(
        "GBX_ReadActivations", recording=recording, latent=samples, step_index=-1
    )[0]
    assert activations.tensors["vit-block1-out"].shape == (4, 96, 4, 4)
    assert [(row.image, row.conditional) for row in activations.rows] == [
        (0, True),
        (1, True),
        (0, False),
        (1, False),
    ]
