"""Attention Scaling on transformers: logits of the text's first token, and no attention to padding,
as an override by hand computes them.
"""

import pytest
import reduced
import tiny_transformers
import torch
from tapping import hooks_left

OVERRIDE = "optimized_attention_override"
IMAGE = 24  # tokens of 8 x 12 positions, two a side
PROMPT = "a red hat"
REAL = 5  # begin, three words, end
SAMPLING = {"sampler_name": "euler", "scheduler": "simple", "denoise": 1.0, "steps": 2, "seed": 7}
WIDTHS = {"QwenImage": {"joint_attention_dim": 64}, "WAN21_T2V": {"text_dim": 64, "text_len": 77}}


@pytest.fixture(scope="module", params=WIDTHS)
def family(request):
    patcher = tiny_transformers.model(request.param, **WIDTHS[request.param])
    return request.param, patcher, reduced.checkpoint("sd15")[1]


def sample(app, family, model=None, cfg=1.0):
    _, patcher, clip = family
    positive, negative = (
        app.run("CLIPTextEncode", clip=clip, text=text)[0] for text in (PROMPT, "")
    )
    return app.run(
        "KSampler",
        model=model or patcher,
        positive=positive,
        negative=negative,
        latent_image=tiny_transformers.latent(patcher, 1, 8, 12),
        cfg=cfg,
        **SAMPLING,
    )[0]["samples"]


def scaled(app, family, **changes):
    given = {"scale": 1.25, "mask_padding": True}
    _, patcher, clip = family
    return app.run(
        "GBX_AttentionScaling", model=patcher, clip=clip, prompt=PROMPT, **(given | changes)
    )[0]


def by_hand(patcher, scale, hides):
    """Every attention in which the image reads the 77 tokens, as plain softmax."""

    def override(attend, query, key, value, heads, *args, **options):
        is_split = options.get("skip_reshape", False)
        tensors = query, key, value
        if not is_split:
            tensors = [one.unflatten(2, (heads, -1)).transpose(1, 2) for one in tensors]
        q, k, v = tensors
        if k.shape[2] not in (77, 77 + IMAGE) or (k.shape[2] == 77 and q.shape[2] == 77):
            return attend(query, key, value, heads, *args, **options)
        logits = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
        logits[..., 0] *= scale
        if hides:
            logits[..., REAL:77] = -torch.inf
        found = logits.softmax(-1) @ v
        return found if options.get("skip_output_reshape") else found.transpose(1, 2).flatten(2)

    clone = patcher.clone()
    clone.model_options["transformer_options"][OVERRIDE] = override
    return clone


@pytest.mark.parametrize(("scale", "hides"), [(1.7, False), (1.0, True), (1.25, True)])
def test_it_is_the_attention_with_those_logits(app, family, scale, hides):
    plain = sample(app, family)
    expected = sample(app, family, by_hand(family[1], scale, hides))
    found = sample(app, family, scaled(app, family, scale=scale, mask_padding=hides))
    change = (expected - plain).norm()
    assert change > 1e-4 * plain.norm()
    assert (found - expected).norm() < 1e-3 * change
    assert hooks_left(family[1]) == 0


def test_nothing_is_stock_and_the_negative_prompt_stays(app, family):
    nothing = scaled(app, family, scale=1.0, mask_padding=False)
    assert torch.equal(sample(app, family, nothing), sample(app, family))
    # At CFG 0 the result is that of the negative prompt.
    plain = sample(app, family, cfg=0.0)
    assert torch.allclose(sample(app, family, scaled(app, family), cfg=0.0), plain, atol=1e-5)


def test_a_prompt_of_another_length(app, family):
    """Where the first token is would not be known."""
    _, patcher, clip = family
    longer = "a red hat and " * 40
    positive = app.run("CLIPTextEncode", clip=clip, text=longer)[0]
    model = scaled(app, family)
    latent = tiny_transformers.latent(patcher, 1, 8, 12)
    given = {"positive": positive, "negative": positive, "latent_image": latent, "cfg": 1.0}
    with pytest.raises(ValueError, match="tokens and the node's prompt 77: enter the prompt that"):
        app.run("KSampler", model=model, **given, **SAMPLING)


def test_a_mask_of_the_network_is_kept(app):
    """Of bools, and of an addition to the logits."""
    pack = app.module("nodes.neurons.attention_scaling_comfy")
    bias = torch.tensor([0.0, -1e9, 0.0]).view(1, 1, 1, 3)
    shown = torch.tensor([[True, True, False], [True, True, True]]).view(1, 1, 2, 3)
    logits = torch.zeros(1, 1, 2, 3)
    found = (logits + pack._with_bias(shown, bias, 2)).softmax(-1)
    expected = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.0, 0.5]])
    assert torch.allclose(found[0, 0], expected)
    added = torch.tensor([1.0, 2.0, 3.0]).view(1, 1, 1, 3)
    assert torch.equal(pack._with_bias(added, bias, 2), added + bias)
    assert pack._with_bias(None, bias, 2).shape == (1, 1, 2, 3)
