"""Activations of transformers: names, cuts of fused projections, where the picture's tokens are, and maps."""

import pytest
import tiny_transformers
import torch
from tapping import PATTERN, hooks_left

JOINT_TEXT = 7  # tokens that stand before the picture's
HEIGHT, WIDTH = 13, 22  # tokens of a latent of 26 x 44
BLOCK = {
    "SD3": ["q", "k", "v", "attn-out", "ffn-inner", "out"],
    "PixArtAlpha": ["self-q", "self-k", "self-v", "self-map", "cross-q", "cross-map", "ffn-inner", "out"],
    "Lumina2": ["q", "k", "v", "attn-out", "ffn-inner", "out"],
    "WAN21_T2V": ["self-q", "self-k", "self-v", "cross-q", "cross-map", "ffn-inner", "out"],
}
FLUX = (["q", "k", "v", "attn-out", "ffn-inner", "out"], ["q", "k", "v", "attn-inner", "ffn-inner", "out"])


@pytest.fixture(scope="module")
def models(comfy):
    return {name: tiny_transformers.model(name) for name in tiny_transformers.NAMES}


def catalog_of(comfy, patcher):
    return comfy.module("nodes.activations.catalog").catalog(patcher.model.diffusion_model)


def tap(comfy, patcher, ids, **changes):
    pictures = {"positive": tiny_transformers.conditioning(), "latent": tiny_transformers.latent(patcher, 2, 26, 44)}
    given = {**PATTERN, **pictures, "ids": ids, "model": patcher, "seed": 3, "draws": 1, "noise_level": "sigma",
             "level": 0.5}  # fmt: skip
    return comfy.run("GBX_LayerActivationTap", **{**given, **changes})[0]


def seen_by_hand(patcher, paths, run):
    """First inputs and outputs of modules while something runs."""
    caught, handles = {}, []
    for path in paths:
        module = patcher.model.diffusion_model.get_submodule(path)
        handles.append(module.register_forward_hook(
            lambda m, args, out, path=path: caught.update({path: (args[0].clone(), out)})))  # fmt: skip
    try:
        return run(), caught
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("name", tiny_transformers.NAMES)
def test_every_id_comes_with_its_channels_on_the_pictures_grid(comfy, models, name):
    """Names as in the official code (oracle O11: eight a block of PixArt); pictures that are not square."""
    entries, tapped = catalog_of(comfy, models[name]), tap(comfy, models[name], "*")
    if name == "Flux":
        expected = [f"vit-block{number}-{part}" for number in range(4) for part in FLUX[number >= 2]]
    else:
        expected = [f"vit-block{number}-{part}" for number in range(3) for part in BLOCK[name]]
    expected += ["attn-mean"] if "cross-map" in " ".join(expected) else []
    assert [entry.id for entry in entries] == expected == list(tapped.tensors)
    for entry in entries:
        value = tapped.tensors[entry.id]
        if entry.kind == "tokens":
            assert value.shape == (2, entry.channels, HEIGHT, WIDTH), entry.id
        else:
            assert (value.sum(1 if entry.members else -1) - 1).abs().max() < 1e-4, entry.id
    assert hooks_left(models[name]) == 0


@pytest.mark.parametrize(("name", "last", "path", "text"), [
    ("SD3", 2, "final_layer", 0), ("Flux", 3, "final_layer", 0), ("PixArtAlpha", 2, "final_layer", 0),
    ("Lumina2", 2, "final_layer", JOINT_TEXT), ("WAN21_T2V", 2, "head", 0),
])  # fmt: skip
def test_the_last_blocks_output_is_what_the_final_layer_gets(comfy, models, name, last, path, text):
    """So the right tokens of the right output are taken, in the picture's order."""
    tapped, caught = seen_by_hand(models[name], [path], lambda: tap(comfy, models[name], f"vit-block{last}-out"))
    expected = caught[path][0][:, text : text + HEIGHT * WIDTH]
    found = tapped.tensors[f"vit-block{last}-out"].flatten(2).transpose(1, 2)
    assert torch.equal(found, expected)


def test_tokens_that_pad_a_sequence_are_left_out(comfy):
    """Z-Image pads text and picture each to a multiple of 32 tokens."""
    patcher = tiny_transformers.model("Lumina2", pad_tokens_multiple=32)
    tapped, caught = seen_by_hand(patcher, ["final_layer"], lambda: tap(comfy, patcher, "vit-block2-out"))
    sequence = caught["final_layer"][0]
    assert sequence.shape[1] == 32 + 288
    found = tapped.tensors["vit-block2-out"].flatten(2).transpose(1, 2)
    assert torch.equal(found, sequence[:, 32 : 32 + HEIGHT * WIDTH])


def test_a_network_with_the_picture_before_the_text(comfy):
    """HunyuanVideo's single blocks begin with the picture's tokens, Flux's with the text's."""
    from comfy import ops
    from comfy.ldm.hunyuan_video.model import HunyuanVideo

    network = HunyuanVideo(
        in_channels=16, out_channels=16, vec_in_dim=32, context_in_dim=24, hidden_size=64, mlp_ratio=4.0, num_heads=2,
        depth=1, depth_single_blocks=1, axes_dim=[8, 12, 12], theta=256, patch_size=[1, 2, 2], qkv_bias=True,
        guidance_embed=True, byt5=False, meanflow=False, use_cond_type_embedding=False, vision_in_dim=None,
        device="meta", operations=ops.disable_weight_init,
    )  # fmt: skip
    entries = comfy.module("nodes.activations.catalog").catalog(network)
    expected = [f"vit-block{number}-{part}" for number in (0, 1) for part in FLUX[number]]
    assert [entry.id for entry in entries] == expected
    assert {(entry.scale, entry.last_as) for entry in entries} == {(2, "")}


@pytest.mark.parametrize(("name", "block", "path", "text", "widths"), [
    ("SD3", 1, "joint_blocks.1.x_block.attn.qkv", 0, (128, 128, 128)),
    ("Flux", 0, "double_blocks.0.img_attn.qkv", 0, (64, 64, 64)),
    ("Flux", 3, "single_blocks.1.linear1", JOINT_TEXT, (64, 64, 64)),
    ("PixArtAlpha", 1, "blocks.1.attn.qkv", 0, (48, 48, 48)),
    ("Lumina2", 2, "layers.2.attention.qkv", JOINT_TEXT, (96, 48, 48)),
])  # fmt: skip
def test_fused_projections_are_cut_by_layout(comfy, models, name, block, path, text, widths):
    prefix = "self-" if name == "PixArtAlpha" else ""
    ids = [f"vit-block{block}-{prefix}{letter}" for letter in "qkv"]
    tapped, caught = seen_by_hand(models[name], [path], lambda: tap(comfy, models[name], "\n".join(ids)))
    fused = caught[path][1][:, text : text + HEIGHT * WIDTH, : sum(widths)]
    for id_, expected in zip(ids, fused.split(widths, dim=-1), strict=True):
        assert torch.equal(tapped.tensors[id_].flatten(2).transpose(1, 2), expected), id_


@pytest.mark.parametrize(("name", "module", "ids"), [
    ("PixArtAlpha", "comfy.ldm.pixart.blocks", ["self-map", "cross-map"]),
    ("WAN21_T2V", "comfy.ldm.wan.model", ["cross-map"]),
])  # fmt: skip
def test_maps_are_those_of_the_attention_that_runs(comfy, models, monkeypatch, name, module, ids):
    """Against the softmax of the queries and keys that ComfyUI hands to its attention."""
    import importlib

    target, calls = importlib.import_module(module), []
    attention = target.optimized_attention

    def spied(q, k, v, heads, **options):
        split = q if q.ndim == 4 else q.unflatten(2, (heads, -1)).transpose(1, 2)
        keys = k if k.ndim == 4 else k.unflatten(2, (heads, -1)).transpose(1, 2)
        calls.append((split @ keys.transpose(2, 3) * split.shape[-1] ** -0.5).softmax(-1))
        return attention(q, k, v, heads, **options)

    monkeypatch.setattr(target, "optimized_attention", lambda q, k, v, heads=None, *args, **options: spied(
        q, k, v, heads if heads is not None else args[0], **options))  # fmt: skip
    tapped = tap(comfy, models[name], "\n".join(f"vit-block1-{id_}" for id_ in ids))
    self_map, cross_map = calls[2:4]  # two attentions a block
    expected = {"self-map": self_map, "cross-map": cross_map}
    for id_ in ids:
        found = tapped.tensors[f"vit-block1-{id_}"]
        assert (found - expected[id_].view(found.shape)).abs().max() < 1e-6


def test_maps_that_would_be_wrong_are_not_offered(comfy):
    """With a norm between projection and softmax, as an option of PixArt has it."""
    patcher = tiny_transformers.model("PixArtAlpha")
    for block in patcher.model.diffusion_model.blocks:
        block.attn.q_norm = torch.nn.LayerNorm(48)
    assert not [entry.id for entry in catalog_of(comfy, patcher) if entry.id.endswith("self-map")]


@pytest.mark.parametrize("name", tiny_transformers.NAMES)
def test_recording_a_transformer_does_not_change_the_picture(comfy, models, name):
    given = {**PATTERN, "ids": "*-out", "when": "last", "rows": "both"}
    recording_model, recording = comfy.run("GBX_ActivationRecorder", model=models[name], **given)
    latent = tiny_transformers.latent(models[name], 1, 26, 44)
    settings = {"seed": 7, "steps": 2, "cfg": 2.0, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0,
                "positive": tiny_transformers.conditioning(), "negative": tiny_transformers.conditioning(7),
                "latent_image": latent}  # fmt: skip
    plain, recorded = (comfy.run("KSampler", model=one, **settings)[0] for one in (models[name], recording_model))
    assert torch.equal(plain["samples"], recorded["samples"])
    activations = comfy.run("GBX_ReadActivations", recording=recording, samples=recorded, index=-1)[0]
    assert [row.conditional for row in activations.rows] == [True, False]


def test_presets_for_transformers(comfy, models):
    selection = comfy.module("nodes.activations.selection")
    entries = catalog_of(comfy, models["Flux"])
    assert [entry.id for entry in selection.select(entries, selection.BEST)] == ["vit-block2-out"]
    for preset, reason in ((selection.RULE, "this is a transformer"), (selection.WORDS, "picture attend together"),
                           (selection.POOL, "gives no pool"), ("Ours-XL", "a set for SDXL")):  # fmt: skip
        with pytest.raises(ValueError, match=reason):
            selection.select(entries, preset)
    words = selection.select(catalog_of(comfy, models["WAN21_T2V"]), selection.WORDS)
    assert [entry.id for entry in words] == ["attn-mean"]


def test_the_catalog_of_a_transformer(comfy, models):
    picture, table, ids = comfy.run("GBX_ActivationCatalog", model=models["Flux"], preset="best for this model", ids="",
                                    width=160, height=96)  # fmt: skip
    assert "vit-block0-q  double_blocks.0.img_attn.qkv  64x6x10" in table and ids == "vit-block2-out"
    assert picture.ndim == 4 and picture.amin() < 1


def test_a_video_is_refused(comfy, models):
    video = tiny_transformers.latent(models["WAN21_T2V"], 1, 12, 20, frames=3)
    with pytest.raises(ValueError, match="The latent has 3 frames, and activations are read of pictures"):
        tap(comfy, models["WAN21_T2V"], "*-out", latent=video)
