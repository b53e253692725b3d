"""Activations of transformers that no reader knows, by their attention as ComfyUI hands it over."""

import pytest
import reduced
import tiny_transformers
import torch
from tapping import PATTERN, hooks_left

TEXT = 24
CONFIGS = {
    "AuraFlow": {
        "max_seq": 1024, "cond_seq_dim": TEXT, "n_double_layers": 1, "n_layers": 3, "dim": 64,
        "n_heads": 2, "global_conddim": 64,
    },
    "CosmosT2IPredict2": {
        "image_model": "cosmos_predict2", "max_img_h": 240, "max_img_w": 240, "max_frames": 128,
        "in_channels": 16, "out_channels": 16, "patch_spatial": 2, "patch_temporal": 1,
        "model_channels": 96, "concat_padding_mask": True, "num_blocks": 3, "num_heads": 4,
        "crossattn_emb_channels": TEXT, "pos_emb_cls": "rope3d", "pos_emb_learnable": True,
        "pos_emb_interpolation": "crop", "min_fps": 1, "max_fps": 30, "use_adaln_lora": True,
        "adaln_lora_dim": 32, "extra_per_block_abs_pos_emb": False,
        "rope_h_extrapolation_ratio": 4.0, "rope_w_extrapolation_ratio": 4.0,
        "rope_t_extrapolation_ratio": 1.0, "rope_enable_fps_modulation": False,
    },
}  # fmt: skip
HEIGHT, WIDTH = 7, 10
LAST = {"AuraFlow": "final_linear", "CosmosT2IPredict2": "final_layer"}


@pytest.fixture(scope="module", params=CONFIGS)
def network(app, request):
    import comfy.supported_models

    with torch.inference_mode(False), torch.no_grad():
        config = getattr(comfy.supported_models, request.param)(dict(CONFIGS[request.param]))
        patcher = reduced._model(config, torch.Generator().manual_seed(0))
        for buffer in patcher.model.diffusion_model.buffers():
            buffer.copy_(torch.nan_to_num(buffer, 0.0, 0.0, 0.0))
    return request.param, patcher


def tap(app, patcher, ids, **changes):
    given = {
        "positive": tiny_transformers.conditioning(),
        "latent": tiny_transformers.latent(patcher, 2, 2 * HEIGHT, 2 * WIDTH),
        "model": patcher,
        "seed": 3,
        "noise_samples": 1,
        "noise_unit": "sigma",
        "level": 0.5,
    }
    return app.run("GBX_LayerActivationTap", **{**PATTERN, **given, "ids": ids, **changes})[0]


def test_ids_sizes_and_the_last_output(app, network):
    name, patcher = network
    seen = {}
    module = patcher.model.diffusion_model.get_submodule(LAST[name])
    handle = module.register_forward_pre_hook(lambda _, args: seen.update(image=args[0].clone()))
    tapped = tap(app, patcher, "*")
    handle.remove()
    count = len([id_ for id_ in tapped.tensors if id_.endswith("-out")])
    expected = [
        f"vit-block{number}-{part}"
        for number in range(count)
        for part in ("q", "k", "v", "cross-map", "out")
    ]
    assert list(tapped.tensors) == [*expected, "attn-mean"] and count == 3
    for id_ in expected:
        if not id_.endswith("map"):
            assert tapped.tensors[id_].shape[2:] == (HEIGHT, WIDTH), id_
    maps = tapped.tensors["vit-block1-cross-map"]
    assert (
        maps.shape[2:] == (HEIGHT * WIDTH, 7)
        and (maps >= 0).all()
        and (maps.sum(-1) < 1.0001).all()
    )
    if name == "CosmosT2IPredict2":  # AuraFlow's last layer gets a modulated output
        image = seen["image"].flatten(1, -2)
        found = tapped.tensors["vit-block2-out"].flatten(2).mT
        assert torch.equal(found, image)
    assert hooks_left(patcher) == 0


def test_maps_and_values_make_the_attentions_output(app, network):
    """softmax(q k) over all keys, checked against what ComfyUI's own function returns: 2e-6."""
    _name, patcher = network
    logits = app.module("nodes.common.attention").logits
    blocks = app.module("nodes.host.attention.reader").blocks_of(patcher.model.diffusion_model)
    seen = []

    def receive(call):
        layout = call.layout
        if layout is None or not layout.reads_text:
            return
        whole = logits(call, layout.first_tokens(HEIGHT * WIDTH)).softmax(-1)
        output = call.attend()
        if call.token_dimension == 1:
            output = output.unflatten(2, (call.query.shape[1], -1)).transpose(1, 2)
        output = output[:, :, layout.first_tokens(HEIGHT * WIDTH)]
        assert (whole @ call.value - output).abs().max() < 2e-6
        seen.append(whole[..., layout.prompt])

    model = app.module("nodes.host.hooks").hook_calls(
        patcher,
        lambda _call: ([], [], [(path, receive) for path, _ in blocks]),
        watches=True,
    )
    ids = [f"vit-block{number}-cross-map" for number in range(3)]
    tapped = tap(app, model, "\n".join([*ids, "attn-mean"]))
    for id_, expected in zip(ids, seen, strict=True):
        assert (tapped.tensors[id_] - expected).abs().max() < 1e-6, id_
    mean = torch.stack([maps.mean(1) for maps in seen]).mean(0)
    assert (tapped.tensors["attn-mean"].flatten(2).mT - mean).abs().max() < 1e-6


def test_a_patched_output_is_the_next_blocks_input(app, network):
    """Zeros in the place of the image's tokens, and none elsewhere."""
    _name, patcher = network
    edits = app.module("nodes.activations.activation_edit")
    specs = [
        spec
        for spec in app.module("nodes.activations.catalog_unet").catalog(
            patcher.model.diffusion_model
        )
        if spec.id == "vit-block1-out"
    ]

    def calling(call):
        zeros = edits.CallEdit(
            specs, lambda _spec, _part, feature, _frames: 0 * feature, lambda _: True, call
        )
        return zeros.receivers()

    changed = app.module("nodes.host.hooks").hook_calls(patcher, calling)
    tapped = tap(app, changed, "vit-block1-out\nvit-block2-out")
    assert not tapped.tensors["vit-block1-out"].any()
    plain = tap(app, patcher, "vit-block2-out").tensors["vit-block2-out"]
    assert (tapped.tensors["vit-block2-out"] - plain).abs().max() > 1e-3 * plain.abs().max()


def test_blocks_in_lists_of_lists_are_found(app):
    """As Stable Cascade has them; the lists themselves are never called."""
    lists = torch.nn.ModuleList([torch.nn.ModuleList([torch.nn.Linear(2, 2)]), torch.nn.Identity()])
    network = torch.nn.Sequential(torch.nn.Linear(2, 2), lists)
    blocks = app.module("nodes.host.attention.reader").blocks_of(network)
    assert [path for path, _ in blocks] == ["1.0.0", "1.1"]
