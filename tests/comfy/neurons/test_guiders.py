"""Which rows a mask acts on, under guiders with other orders of conditionings."""

import pytest
import torch
from tapping import hooks_left

LAYER = "output_blocks.4.1.transformer_blocks.0.attn2"
TEXTS = {"positive": "portrait of zorvex quill", "middle": "portrait, smiling", "negative": ""}
CFG = {"positive": "positive", "negative": "negative", "cfg": 3.0}
DUAL = {
    "cond1": "positive",
    "cond2": "middle",
    "negative": "negative",
    "cfg_conds": 3.0,
    "cfg_cond2_negative": 2.0,
}
PERP_NEG = {
    "positive": "positive",
    "negative": "negative",
    "empty_conditioning": "middle",
    "cfg": 3.0,
    "neg_scale": 1.0,
}


@pytest.fixture(scope="module")
def demo(app):
    model, clip, _ = app.run("GBX_LoadDemoModel", weights="avatars-v2")
    return model, {
        name: app.run("CLIPTextEncode", clip=clip, text=text)[0] for name, text in TEXTS.items()
    }


def masked(app, model, apply_to):
    """A model with all neurons of the layer silenced."""
    pack = app.module("nodes.neurons.mask")
    width = model.model.diffusion_model.get_submodule(f"{LAYER}.to_v").out_features
    mask = pack.NeuronMask(pack.uniform_scales((f"{LAYER}.to_v", index) for index in range(width)))
    given = {"strength": 1.0, "start_percent": 0.0, "end_percent": 1.0, "apply_to": apply_to}
    return app.run("GBX_NemoNeuronMask", model=model, mask=mask, **given)[0]


def masked_texts(app, model, texts, guider):
    """Whether the neurons are silenced in the rows of each text, by its name, in one evaluation of
    a batch of two.
    """
    module, rows = model.model.diffusion_model.get_submodule(LAYER), []

    def record(_module, _args, kwargs, output):
        silenced = (output == module.to_out[0].bias).flatten(1).all(1).tolist()
        for context, masked in zip(kwargs["context"], silenced, strict=True):
            names = [
                name
                for name, text in texts.items()
                if torch.equal(text[0][0][0].to(context), context)
            ]
            rows.append((*names, masked))

    handle = module.register_forward_hook(record, with_kwargs=True)
    try:
        with torch.inference_mode():
            noise = torch.randn(2, 24, 8, 8, generator=torch.Generator().manual_seed(0))
            (sampler,) = app.run("KSamplerSelect", sampler_name="euler")
            guider.sample(
                noise, torch.zeros_like(noise), sampler, torch.tensor([5.0, 0.0]), disable_pbar=True
            )
    finally:
        handle.remove()
    return {name: {masked for found, masked in rows if found == name} for name, _ in rows}


def guider(app, texts, node, inputs, model):
    given = {
        name: texts.get(value, value) if isinstance(value, str) else value
        for name, value in inputs.items()
    }
    return app.run(node, model=model, **given)[0]


@pytest.mark.parametrize(
    ("node", "inputs", "evaluated"),
    [
        ("CFGGuider", CFG, {"positive", "negative"}),
        ("CFGGuider", CFG | {"cfg": 1.0}, {"positive"}),
        ("DualCFGGuider", DUAL | {"style": "regular"}, {"positive", "middle", "negative"}),
        ("DualCFGGuider", DUAL | {"style": "nested"}, {"positive", "middle", "negative"}),
        (
            "DualCFGGuider",
            DUAL | {"style": "regular", "cfg_cond2_negative": 1.0},
            {"positive", "middle"},
        ),
        ("PerpNegGuider", PERP_NEG, {"positive", "middle", "negative"}),
        ("BasicGuider", {"conditioning": "positive"}, {"positive"}),
    ],
)
def test_a_mask_acts_on_the_positive_prompt_only(app, demo, node, inputs, evaluated):
    model, texts = demo
    found = {
        apply_to: masked_texts(
            app, model, texts, guider(app, texts, node, inputs, masked(app, model, apply_to))
        )
        for apply_to in ("positive", "both")
    }
    assert found == {
        "positive": {name: {name == "positive"} for name in evaluated},
        "both": {name: {True} for name in evaluated},
    }
    assert hooks_left(model) == 0


@pytest.mark.parametrize("regional", [["positive"], ["negative"], ["positive", "negative"]])
@pytest.mark.parametrize("node", ["CFGGuider", "DualCFGGuider"])
def test_a_mask_leaves_the_copies_that_regions_add_to_the_negative_side(app, demo, node, regional):
    """ComfyUI gives every region of one side a copy on the others, under the id of the region."""
    model, texts = demo
    area = {"width": 32, "height": 64, "x": 0, "y": 0, "strength": 1.0}
    prompts = dict(texts)
    for name in regional:
        (prompts[name],) = app.run("ConditioningSetArea", conditioning=texts[name], **area)
    inputs = DUAL | {"style": "regular"} if node == "DualCFGGuider" else CFG
    sampled = guider(app, prompts, node, inputs, masked(app, model, "positive"))
    found = masked_texts(app, model, texts, sampled)
    assert found == {name: {name == "positive"} for name in found} and {
        "positive",
        "negative",
    } <= set(found)


def test_a_mask_acts_beside_a_patch_that_evaluates_copies_of_the_prompt(app, demo):
    """Other nodes evaluate copies of a conditioning under ids of their own."""
    import uuid

    from comfy.patcher_extension import WrappersMP

    def copied(executor, model, conds, *args):
        return executor(
            model, [[{**entry, "uuid": uuid.uuid4()} for entry in group] for group in conds], *args
        )

    model, texts = demo
    clone = model.clone()
    clone.add_wrapper_with_key(WrappersMP.CALC_COND_BATCH, "copies", copied)
    sampled = guider(app, texts, "CFGGuider", CFG, masked(app, clone, "positive"))
    assert masked_texts(app, model, texts, sampled) == {"positive": {True}, "negative": {False}}


def test_a_guider_without_a_positive_conditioning_is_refused(app, demo):
    import comfy.samplers as samplers

    model, texts = demo
    other = samplers.CFGGuider(masked(app, model, "positive"))
    other.inner_set_conds({"text": texts["positive"]})
    with pytest.raises(ValueError, match="none of which is named positive"):
        masked_texts(app, model, texts, other)
    assert hooks_left(model) == 0
