"""Edit by Words inside a real ComfyUI: equal to a changed prompt at strength 1, whatever else acts
on the weights.
"""

import contextlib

import pytest
import reduced
import tiny_transformers
import torch
from tapping import World, hooks_left

PROMPT, CHANGED = "portrait, short brown hair, blue hoodie", "portrait, short red hair, blue hoodie"
EDIT = "brown hair -> red hair: "


class Words(World):
    def __init__(self, app, *loaded):
        super().__init__(app, *loaded)
        self.positive, self.changed = self.text(PROMPT), self.text(CHANGED)

    def text(self, text):
        return self.app.run("CLIPTextEncode", clip=self.clip, text=text)[0]

    def edit(self, edits, model=None, prompt=PROMPT, **changes):
        given = {
            "model": model or self.model,
            "clip": self.clip,
            "start_percent": 0.0,
            "end_percent": 1.0,
        }
        return self.app.run("GBX_EditByWords", edits=edits, prompt=prompt, **given | changes)[0]

    def samples(self, model, **changes):
        return self.sample(model, **changes)["samples"]


@pytest.fixture(scope="module")
def demo(app):
    return Words(app, *app.run("GBX_LoadDemoModel", weights="avatars-v2"))


def point(demo):
    space = demo.app.run("GBX_W2WLoadSpace", space_name="avatars-v2-w2w.safetensors")[0]
    given = {"member_name": "person_0013", "seed": 0, "count": 1, "components": 64, "spread": 1.0}
    return demo.app.run("GBX_W2WSample", space=space, source="member", **given)[0][0]


def same(found, expected, plain):
    """Within float32's rounding of another order of sums, and far from what a run without the edit
    gives. Convolutions without AVX-512 are off by five times what those with it are.
    """
    assert (found - expected).abs().max() < 2e-4 * expected.abs().max()
    assert (expected - plain).abs().max() > 0.1


@pytest.mark.parametrize(
    ("edits", "changes"),
    [
        ("", {}),
        (f"{EDIT}0", {}),
        ("brown hair -> brown hair: 3", {}),
        ("brown hair -> Brown  hair: 3", {}),  # another text that is encoded alike
        (f"{EDIT}2", {"mask": torch.zeros(1, 8, 8)}),
        (f"{EDIT}2", {"start_percent": 0.999, "end_percent": 0.9995}),
    ],
)
def test_what_changes_nothing_is_bit_equal(demo, edits, changes):
    assert torch.equal(demo.samples(demo.edit(edits, **changes)), demo.samples(demo.model))


def test_strength_1_away_from_the_prompt_is_the_changed_prompt(demo):
    plain, expected = demo.samples(demo.model), demo.samples(demo.model, positive=demo.changed)
    same(demo.samples(demo.edit(f"{EDIT}1")), expected, plain)
    two = demo.edit("blue hoodie -> blue hoodie: 1", demo.edit(f"{EDIT}1"))
    same(demo.samples(two), expected, plain)
    assert hooks_left(demo.model) == 0


def test_strengths_add_up_in_one_node_and_in_a_chain(demo):
    plain = demo.samples(demo.model)
    expected = demo.samples(demo.edit(f"{EDIT}1.5, hoodie -> shirt: 0.5"))
    same(demo.samples(demo.edit("hoodie -> shirt: 0.5", demo.edit(f"{EDIT}1.5"))), expected, plain)
    same(demo.samples(demo.edit(f"{EDIT}0.75, {EDIT}0.75, hoodie -> shirt: 0.5")), expected, plain)


def test_a_layer_by_the_definition(demo):
    """One evaluation at strength 2 with a mask, by hooks of the test's own on each attention."""
    network = demo.model.model.diffusion_model
    mask = torch.rand(1, 32, 48, generator=torch.Generator().manual_seed(1))
    paths = [path for path, _ in network.named_modules() if path.endswith(".attn2")]
    texts = [demo.text(one)[0][0] for one in (CHANGED, PROMPT)]

    def read(module, x, context):
        q, k, v = module.to_q(x), module.to_k(context), module.to_v(context)
        q, k, v = (one.unflatten(2, (module.heads, -1)).transpose(1, 2) for one in (q, k, v))
        weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
        return (weights @ v).transpose(1, 2).flatten(2)

    def changed(module, args, kwargs, _output):
        x, context = args[0], kwargs["context"]
        size = {24: (4, 6), 6: (2, 3), 2: (1, 2)}[x.shape[1]]
        placed = torch.nn.functional.interpolate(mask[None], size, mode="area").flatten()[:, None]
        toward, away = (read(module, x, one.expand(len(x), -1, -1)) for one in texts)
        positive = (context == texts[1]).flatten(1).all(1).float()[:, None, None]
        return module.to_out(read(module, x, context) + positive * 2 * placed * (toward - away))

    given = {"latent": demo.latent(2, 32, 48), "steps": 1}
    plain, found = (
        demo.samples(demo.model, **given),
        demo.samples(demo.edit(f"{EDIT}2", mask=mask), **given),
    )
    handles = [
        network.get_submodule(path).register_forward_hook(changed, with_kwargs=True, prepend=True)
        for path in paths
    ]
    try:
        same(found, demo.samples(demo.model, **given), plain)
    finally:
        for handle in handles:
            handle.remove()


def test_weights_that_change_between_two_levels(demo):
    """Strength 1 is the changed prompt with W2W Apply in the middle of a run too: keys and values
    follow.
    """
    given = {"point": point(demo), "strength": 1.5, "start_percent": 0.2, "end_percent": 0.6}
    applied = demo.app.run("GBX_W2WApply", model=demo.model, **given)[0]
    plain = demo.samples(applied, steps=6)
    expected = demo.samples(applied, positive=demo.changed, steps=6)
    same(demo.samples(demo.edit(f"{EDIT}1", applied), steps=6), expected, plain)
    before = demo.app.run("GBX_W2WApply", model=demo.edit(f"{EDIT}1"), **given)[0]
    same(demo.samples(before, steps=6), expected, plain)


def test_identity_guidance_that_evaluates_two_weights(demo):
    given = {
        "point": point(demo),
        "identity_strength": 1.5,
        "edit_strength": 0.0,
        "end_percent": 1.0,
    }
    guided = demo.app.run("GBX_W2WGuidance", model=demo.model, **given)[0]
    expected = demo.samples(guided, positive=demo.changed)
    same(demo.samples(demo.edit(f"{EDIT}1", guided)), expected, demo.samples(guided))


def test_scheduled_hooks_of_stock_nodes(demo):
    """A LoRA hook from 30 % of the run on, on the positive prompt: ComfyUI then writes into the
    weights.
    """
    key = "diffusion_model.output_blocks.4.1.transformer_blocks.0.attn2.to_v.weight"
    weight = demo.model.model.get_parameter(key)
    generator = torch.Generator().manual_seed(0)
    lora = {
        "lora_unet_output_blocks_4_1_transformer_blocks_0_attn2_to_v.lora_up.weight": torch.randn(
            weight.shape[0], 4, generator=generator
        ),
        "lora_unet_output_blocks_4_1_transformer_blocks_0_attn2_to_v.lora_down.weight": torch.randn(
            4, weight.shape[1], generator=generator
        ),
    }
    hooks = __import__("comfy.hooks").hooks

    def hooked(conditioning):
        group = hooks.create_hook_lora(lora, 0.3, 0.0)
        keyframes = hooks.HookKeyframeGroup()
        for strength, start in ((0.0, 0.0), (1.0, 0.3)):
            keyframes.add(hooks.HookKeyframe(strength=strength, start_percent=start))
        group.set_keyframes_on_hooks(keyframes)
        return demo.app.run("ConditioningSetProperties", cond_NEW=conditioning, strength=1.0,
                            set_cond_area="default", hooks=group)[0]  # fmt: skip

    expected = demo.samples(demo.model, positive=hooked(demo.changed), steps=5)
    assert (expected - demo.samples(demo.model, positive=demo.changed, steps=5)).abs().max() > 0.1
    found = demo.samples(demo.edit(f"{EDIT}1"), positive=hooked(demo.positive), steps=5)
    same(found, expected, demo.samples(demo.model, positive=hooked(demo.positive), steps=5))


def test_replaced_and_patched_attentions_of_other_nodes_survive(demo):
    """A replaced attention that adds to the output (as image prompts do), and one more patch on
    each side.
    """

    def replaced(q, k, v, extra):
        attention = __import__("comfy.ldm.modules.attention").ldm.modules.attention
        return attention.optimized_attention(q, k, v, extra["n_heads"]) + 0.3 * q.mean(
            1, keepdim=True
        )

    def halved(n, context, value, _extra):
        return n, context * 0.9, value * 0.9

    def patched(model):
        clone = model.clone()
        for place in (("output", 4), ("output", 5)):
            clone.set_model_attn2_replace(replaced, *place)
        clone.set_model_attn2_output_patch(lambda n, _extra: n * 1.1)
        return clone

    alone = demo.samples(patched(demo.model))
    expected = demo.samples(patched(demo.model), positive=demo.changed)
    same(demo.samples(demo.edit(f"{EDIT}1", patched(demo.model))), expected, alone)
    same(demo.samples(patched(demo.edit(f"{EDIT}1"))), expected, alone)


def test_only_the_rows_of_the_positive_prompt_change(demo):
    """With the prompt on both sides and cfg 1 on top, the negative side is that of the plain
    model.
    """
    one = demo.samples(demo.edit(f"{EDIT}1"), negative=demo.positive)
    same(
        one,
        demo.samples(demo.model, positive=demo.changed, negative=demo.positive),
        demo.samples(demo.model),
    )


def test_a_run_that_fails_leaves_no_hooks_and_no_memory(demo):
    edited = demo.edit(f"{EDIT}2")

    def fails(_args):
        raise RuntimeError("in the middle")

    broken = edited.clone()
    broken.set_model_sampler_post_cfg_function(fails)
    with pytest.raises(RuntimeError, match="in the middle"):
        demo.samples(broken)
    assert hooks_left(demo.model) == 0
    assert torch.equal(demo.samples(edited), demo.samples(demo.edit(f"{EDIT}2")))


def test_networks_and_texts_that_do_not_fit(app, demo):
    other, clip = tiny_transformers.model("Lumina2"), reduced.checkpoint("flux")[1]
    given = {"edits": "red: 1", "prompt": "", "start_percent": 0.0, "end_percent": 1.0}
    edited = app.run("GBX_EditByWords", model=other, clip=clip, **given)[0]
    run = {"seed": 0, "steps": 1, "cfg": 1.0, "sampler_name": "euler", "scheduler": "normal"}
    texts = dict.fromkeys(("positive", "negative"), tiny_transformers.conditioning())
    latent = tiny_transformers.latent(other, 1, 8, 8)
    with pytest.raises(ValueError, match="connect the CLIP of the model"):
        app.run("KSampler", model=edited, latent_image=latent, denoise=1.0, **run, **texts)
    with pytest.raises(ValueError, match="connect the CLIP of the model"):
        app.run("GBX_EditByWords", model=demo.model, clip=clip, **given)


@pytest.mark.parametrize(("family", "side", "adm"), [("SD15", 64, None), ("SDXL", 128, 2816)])
def test_operations_of_an_edit(app, monkeypatch, family, side, adm):
    """Counted on the real network without memory: at most .3 % of a step of two rows."""
    import comfy.ldm.modules.diffusionmodules.openaimodel as unet
    import comfy.ops
    from comfy import supported_models

    half = app.module("nodes.activations.word_edit_comfy")
    call = app.module("nodes.common.network_call")
    attention = half.attention
    monkeypatch.setattr(attention, "optimized_attention", attention.attention_pytorch)
    config = {**getattr(supported_models, family).unet_config, **_REST[family]}
    with torch.inference_mode(False), torch.device("meta"):
        network = unet.UNetModel(**config, device="meta", operations=comfy.ops.disable_weight_init)
    width = config["context_dim"]
    prompt, changed = torch.zeros(1, 77, width), torch.ones(1, 77, width)
    texts = half.EncodedTexts([half.EncodedEdit(changed, prompt, 1.0)])
    cache = half._RunCache(network)
    parts = tuple(
        call.Part(role=role, rows=slice(row, row + 1), area=call.WHOLE, text=None, prompt=prompt)
        for row, role in enumerate(("positive", "negative"))
    )
    edit = half._CallEdit(
        call.Call(network=network, parts=parts, rows=2, sigma=1.0, schedule=()), texts, None, cache
    )
    x, context = (
        torch.zeros(2, 4, side, side, device="meta"),
        torch.zeros(2, 77, width, device="meta"),
    )
    y = None if adm is None else torch.zeros(2, adm, device="meta")

    from torch.utils.flop_counter import (
        FlopCounterMode,
    )  # imports Triton, which kernel tests want interpreted

    def count(edited):
        with torch.inference_mode(), FlopCounterMode(display=False) as counter, edited:
            network(x, torch.zeros(2, device="meta"), context=context, y=y, transformer_options={})
        return counter.get_total_flops()

    plain = count(contextlib.nullcontext())
    first, later = (
        count(half._edited_cross_attentions(edit, half._cross_attentions(network)))
        for _ in range(2)
    )
    assert later < first < 1.01 * plain, "keys and values are made once"
    assert 0.001 < later / plain - 1 < 0.003


_UNET = {
    "image_size": 32, "in_channels": 4, "out_channels": 4, "model_channels": 320,
    "use_spatial_transformer": True,
    "legacy": False,
}  # fmt: skip
_REST = {
    "SD15": _UNET | {
        "num_res_blocks": [2] * 4, "channel_mult": [1, 2, 4, 4],
        "transformer_depth": [1] * 6 + [0, 0],
        "transformer_depth_middle": 1, "transformer_depth_output": [1] * 9 + [0] * 3,
        "num_heads": 8,
    },
    "SDXL": _UNET | {
        "num_res_blocks": [2] * 3, "channel_mult": [1, 2, 4],
        "transformer_depth": [0, 0, 2, 2, 10, 10],
        "transformer_depth_middle": 10, "transformer_depth_output": [0, 0, 0, 2, 2, 2, 10, 10, 10],
        "num_heads": -1,
        "num_head_channels": 64, "num_classes": "sequential",
    },
}  # fmt: skip


def test_a_mask_of_a_shorter_text_is_repeated_for_a_longer_one(app):
    """As ComfyUI repeats a text that is shorter than others of the batch; rows and queries stay."""
    fitted = app.module("nodes.activations.word_edit_comfy")._fitted
    mask = torch.arange(24.0).view(2, 3, 4)
    assert torch.equal(fitted(mask, 8), torch.cat([mask, mask], -1))
    assert torch.equal(fitted(mask, 6), torch.cat([mask, mask[..., :2]], -1))
    assert fitted(mask, 4) is mask and fitted(None, 8) is None
