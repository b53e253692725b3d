"""Edit by Words on networks of Flux' and SD3's class: equal to a changed prompt at strength 1,
blocks of all kinds.
"""

from contextlib import contextmanager

import pytest
import reduced
import torch
from tapping import World, hooks_left

PROMPT, CHANGED = "portrait, short brown hair, blue hoodie", "portrait, short red hair, blue hoodie"
EDIT = "brown hair -> red hair: "
#: Random weights, blocks of both kinds; the first block of SD3.5 Medium has a second attention, of
#: the image to itself.
NETWORKS = {
    "flux": ("flux", {}),
    "sd3": ("sd3", {}),
    "sd35": ("sd3", {"x_block_self_attn_layers": [0]}),
}


class Words(World):
    def __init__(self, app, name):
        architecture, more = NETWORKS[name]
        super().__init__(app, *reduced.checkpoint(architecture, **more))
        self.network = self.model.model.diffusion_model
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
        return self.sample(model, **{"latent": self.latent(2, 64, 96)} | changes)["samples"]


@pytest.fixture(scope="module", params=NETWORKS)
def words(app, request):
    return Words(app, request.param)


def same(found, expected, plain):
    """Within float32's rounding of other numbers of rows, against a change that is far larger."""
    change = (expected - plain).abs().max()
    assert change > 0.01 * plain.abs().max()
    assert (found - expected).abs().max() < 1e-4 * change


@pytest.mark.parametrize(
    ("edits", "changes"),
    [
        ("", {}),
        (f"{EDIT}0", {}),
        ("brown hair -> brown hair: 3", {}),
        (f"{EDIT}2", {"mask": torch.zeros(1, 8, 8)}),
        (f"{EDIT}2", {"start_percent": 0.03, "end_percent": 0.06}),
    ],
)
def test_what_changes_nothing_is_bit_equal(words, edits, changes):
    assert torch.equal(words.samples(words.edit(edits, **changes)), words.samples(words.model))


def test_strength_1_away_from_the_prompt_is_the_changed_prompt(words):
    plain, expected = words.samples(words.model), words.samples(words.model, positive=words.changed)
    same(words.samples(words.edit(f"{EDIT}1")), expected, plain)
    assert hooks_left(words.model) == 0


def test_a_text_of_another_length(words):
    """Two chunks of CLIP beside one, and more tokens of T5 than the 256 that it is padded to."""
    longer = " ".join(["red"] * 300)
    changed = words.text(PROMPT.replace("brown", longer))
    assert changed[0][0].shape[1] > words.positive[0][0].shape[1]
    plain, expected = words.samples(words.model), words.samples(words.model, positive=changed)
    same(words.samples(words.edit(f"brown -> {longer}: 1")), expected, plain)


def test_several_edits_each_with_a_text_of_its_own_to_move_away_from(words):
    """Toward T away from A, and toward A away from the prompt: together T."""
    edit, edited = (
        words.app.module("nodes.activations.word_edit"),
        words.app.module("nodes.activations.word_edit_comfy"),
    )
    between = "a lighthouse at night"
    both = [edit.WordEdit(CHANGED, between, 1.0), edit.WordEdit(between, PROMPT, 1.0)]
    plain, expected = words.samples(words.model), words.samples(words.model, positive=words.changed)
    same(
        words.samples(edited.edited_model(words.model, words.clip, both, 0.0, 1.0)), expected, plain
    )
    same(
        words.samples(words.edit(f"{EDIT}0.75, hoodie -> shirt: 0.5, {EDIT}0.75")),
        words.samples(words.edit(f"{EDIT}1.5, hoodie -> shirt: 0.5")),
        plain,
    )


@contextmanager
def attention_changed(words, change):
    """Every first attention of a block through a function of its output, image's tokens only, and
    of the text's length.

    By replacing ComfyUI's function and copying the image's tokens of the first half of the rows
    into the second half before each block: another way than the node's.
    """
    import comfy.ldm.flux.math as flux
    import comfy.ldm.modules.diffusionmodules.mmdit as mmdit

    network, module = words.network, flux if hasattr(words.network, "double_blocks") else mmdit
    original, first, text = module.optimized_attention, False, words.positive[0][0].shape[1]

    def attention(*args, **kwargs):
        nonlocal first
        found = original(*args, **kwargs)
        if first:
            first = False
            found[:, text:] = change(found[:, text:])
        return found

    def before(block, args, kwargs):
        nonlocal first
        first, half = True, 1
        args, kwargs = list(args), dict(kwargs)
        image = kwargs.get("img", args[0] if len(args) == 1 else args[1] if len(args) > 1 else None)
        begin = text if image.shape[1] > 24 else 0
        image[half:, begin:] = image[:half, begin:]
        return tuple(args), kwargs

    blocks = [*getattr(network, "joint_blocks", []), *getattr(network, "double_blocks", [])]
    blocks += [*getattr(network, "single_blocks", [])]
    handles = [block.register_forward_pre_hook(before, with_kwargs=True) for block in blocks]
    module.optimized_attention = attention
    try:
        yield
    finally:
        module.optimized_attention = original
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("masked", [False, True])
def test_strength_2_by_the_definition(words, masked):
    """One evaluation of one image of 4 x 6 tokens, rows and attention by hand; a mask leaves the
    pooled text alone.
    """
    mask = torch.rand(1, 32, 48, generator=torch.Generator().manual_seed(1)) if masked else None
    placed = (
        torch.ones(24, 1)
        if mask is None
        else torch.nn.functional.interpolate(mask[None], (4, 6), mode="area")
    )
    placed = placed.reshape(24, 1)
    pooled, other = (one[0][1]["pooled_output"] for one in (words.positive, words.changed))

    def change(image):
        return torch.cat((image[:1] + 2 * placed * (image[1:] - image[:1]), image[1:]))

    def twice(apply_model, args):
        conditions = dict(args["c"])
        conditions["c_crossattn"] = torch.cat((words.positive[0][0], words.changed[0][0]))
        moved = pooled if masked else pooled + 2 * (other - pooled)
        conditions["y"] = moved.expand(2, -1)
        return apply_model(
            args["input"].expand(2, -1, -1, -1), args["timestep"].expand(2), **conditions
        )[:1]

    by_hand = words.model.clone()
    by_hand.set_model_unet_function_wrapper(twice)
    given = {"latent": words.latent(1, 64, 96), "steps": 1, "cfg": 1.0}
    plain = words.samples(words.model, **given)
    found = words.samples(words.edit(f"{EDIT}2", mask=mask), **given)
    with attention_changed(words, change):
        expected = words.samples(by_hand, **given)
    same(found, expected, plain)


def test_patches_of_other_nodes_survive(words):
    """A block's replacement that changes what comes out, and an attention of another node, on
    either side.
    """

    def replaced(args, extra):
        out = extra["original_block"]({**args, "img": args["img"] * 1.02})
        return {**out, "img": out["img"] * 0.9}

    def attention(attend, *args, **kwargs):
        return attend(*args, **kwargs) * 1.1

    def patched(model):
        clone = model.clone()
        clone.set_model_patch_replace(replaced, "dit", "double_block", 1)
        clone.model_options["transformer_options"]["optimized_attention_override"] = attention
        return clone

    alone = words.samples(patched(words.model))
    assert not torch.allclose(alone, words.samples(words.model), atol=1e-3)
    expected = words.samples(patched(words.model), positive=words.changed)
    same(words.samples(words.edit(f"{EDIT}1", patched(words.model))), expected, alone)
    same(words.samples(patched(words.edit(f"{EDIT}1"))), expected, alone)


def test_only_the_rows_of_the_positive_prompt_change(words):
    one = words.samples(words.edit(f"{EDIT}1"), negative=words.positive)
    expected = words.samples(words.model, positive=words.changed, negative=words.positive)
    same(one, expected, words.samples(words.model, negative=words.positive))


def test_a_run_that_fails_leaves_no_hooks(words):
    def fails(_args):
        raise RuntimeError("in the middle")

    broken = words.edit(f"{EDIT}2").clone()
    broken.set_model_sampler_post_cfg_function(fails)
    with pytest.raises(RuntimeError, match="in the middle"):
        words.samples(broken)
    assert hooks_left(words.model) == 0


def test_two_nodes_and_texts_of_other_models_are_refused(words, app):
    with pytest.raises(ValueError, match="both edits in one of them"):
        words.samples(words.edit("hoodie -> shirt: 1", words.edit(f"{EDIT}1")))
    clip = app.run("GBX_LoadDemoModel", weights="avatars-v2")[1]
    with pytest.raises(ValueError, match="CLIP of the model"):
        words.samples(words.edit(f"{EDIT}1", clip=clip))


def test_operations_are_those_of_as_many_further_rows(words):
    """Away from the prompt one row for each image, else two, beside the two rows of a step with
    CFG.
    """
    from torch.utils.flop_counter import (
        FlopCounterMode,
    )  # imports Triton, which kernel tests want interpreted

    def count(model):
        with FlopCounterMode(display=False) as counter:
            words.samples(model, steps=1)
        return counter.get_total_flops()

    for prompt in (PROMPT, ""):  # where text and image stand is found once
        words.samples(words.edit(f"{EDIT}2", prompt=prompt), steps=1)
    plain = count(words.model)
    one, two = (count(words.edit(f"{EDIT}2", prompt=prompt)) / plain - 1 for prompt in (PROMPT, ""))
    assert 0.4 < one < 0.52 and 0.8 < two < 1.04
