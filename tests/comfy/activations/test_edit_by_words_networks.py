"""Edit by Words on every class of transformer that hands its attention over: at strength 1 away
from the prompt it is the changed prompt, with texts of any length.
"""

import pytest
import tiny_transformers
import torch
from tapping import hooks_left

#: These hand no options to their attentions; smaller latents or longer texts they do not take.
BY_NAME = ("PixArtAlpha", "HunyuanDiT")
NAMES = [name for name in tiny_transformers.NAMES if name not in BY_NAME]
PROMPT, CHANGED, LONGER = "a cat", "a dog", "a very large dog"
TOKENS = {PROMPT: 7, CHANGED: 7, LONGER: 11}
FRAMES = {"WAN21_T2V": 3, "LTXV": 3}


class Texts:
    """A CLIP of random texts of known lengths."""

    def __init__(self, patcher):
        self._patcher = patcher

    def tokenize(self, text, **_options):
        return {"all": [text]}

    def encode_from_tokens_scheduled(self, tokens, **_options):
        (text,) = tokens["all"]
        seed = sum(map(ord, text))
        return tiny_transformers.conditioning(TOKENS[text], self._patcher, seed=seed)


@pytest.fixture(scope="module", params=NAMES)
def network(app, request):
    return request.param, tiny_transformers.model(request.param)


def sampled(app, patcher, name, model=None, text=PROMPT, count=1, **changes):
    clip = Texts(patcher)
    frames = FRAMES.get(name, 1)
    given = {
        "model": model or patcher,
        "seed": 7,
        "steps": 2,
        "cfg": 2.0,
        "sampler_name": "euler",
        "scheduler": "normal",
        "denoise": 1.0,
        "positive": clip.encode_from_tokens_scheduled(clip.tokenize(text)),
        "negative": clip.encode_from_tokens_scheduled(clip.tokenize("a cat")),
        "latent_image": tiny_transformers.latent(patcher, count, 8, 12, frames=frames),
    }
    return app.run("KSampler", **{**given, **changes})[0]["samples"]


def edited(app, patcher, strength, away=PROMPT, toward=CHANGED, **changes):
    """The MODEL with one edit, from one text to another."""
    edit = app.module("nodes.activations.word_edit").WordEdit(toward, away, strength)
    build = app.module("nodes.activations.word_edit_comfy").edited_model
    return build(patcher, Texts(patcher), [edit], 0.0, 1.0, **changes)


def same(found, expected, plain):
    """Within float32's rounding, against a change that is far larger."""
    change = (expected - plain).norm()
    assert change > 1e-3 * plain.norm()
    assert (found - expected).norm() < 1e-4 * change


@pytest.mark.parametrize("toward", [CHANGED, LONGER])
@pytest.mark.parametrize("cfg", [1.0, 2.0])
def test_strength_1_away_from_the_prompt_is_the_changed_prompt(app, network, toward, cfg):
    name, patcher = network
    plain = sampled(app, patcher, name, cfg=cfg)
    expected = sampled(app, patcher, name, text=toward, cfg=cfg)
    model = edited(app, patcher, 1.0, toward=toward)
    same(sampled(app, patcher, name, model, cfg=cfg), expected, plain)
    assert hooks_left(patcher) == 0


def test_a_batch_of_two_and_two_texts_of_the_edit(app, network):
    """Toward T away from A, and toward A away from the prompt: together T, with a text that is not
    the prompt's on either side.
    """
    name, patcher = network
    word_edit = app.module("nodes.activations.word_edit")
    build = app.module("nodes.activations.word_edit_comfy").edited_model
    both = [word_edit.WordEdit(CHANGED, LONGER, 1.0), word_edit.WordEdit(LONGER, PROMPT, 1.0)]
    model = build(patcher, Texts(patcher), both, 0.0, 1.0)
    plain = sampled(app, patcher, name, count=2)
    expected = sampled(app, patcher, name, text=CHANGED, count=2)
    same(sampled(app, patcher, name, model, count=2), expected, plain)


def test_strengths_move_along_one_line_at_first(app, network):
    """Twice a small strength is twice the change; a mask of zeros changes nothing."""
    name, patcher = network
    plain = sampled(app, patcher, name, steps=1, cfg=1.0)

    def change(strength):
        model = edited(app, patcher, strength, away=LONGER)
        return sampled(app, patcher, name, model, steps=1, cfg=1.0) - plain

    small, twice = change(0.01), change(0.02)
    assert small.norm() > 1e-6 * plain.norm()
    assert (twice - 2 * small).norm() < 0.1 * twice.norm()
    nothing = edited(app, patcher, 2.0, mask=torch.zeros(1, 8, 8))
    assert torch.equal(sampled(app, patcher, name, nothing, steps=1, cfg=1.0), plain)


@pytest.mark.parametrize("name", ["QwenImage", "Flux"])
def test_of_two_prompts_each_moves_by_the_edit(app, name):
    """Their order means nothing, and the rows of a prompt that the edit does not name move by
    T - A, not to T.
    """
    patcher = tiny_transformers.model(name)
    clip = Texts(patcher)
    first, second = (
        clip.encode_from_tokens_scheduled(clip.tokenize(text)) for text in (PROMPT, LONGER)
    )
    given = {"cfg": 1.0, "steps": 1}
    model = edited(app, patcher, 1.0)
    one_way = sampled(app, patcher, name, model, positive=[*first, *second], **given)
    other_way = sampled(app, patcher, name, model, positive=[*second, *first], **given)
    plain = sampled(app, patcher, name, positive=[*first, *second], **given)
    same(other_way, one_way, plain)


@pytest.mark.parametrize("name", ["QwenImage", "Flux"])
def test_an_edit_beside_easy_cache(app, name):
    """A reuse threshold that leaves out every step that may be left out."""
    patcher = tiny_transformers.model(name)
    cached = app.run(
        "EasyCache",
        model=patcher,
        reuse_threshold=3.0,
        start_percent=0.15,
        end_percent=0.95,
        verbose=False,
    )[0]
    given = {"cfg": 1.0, "steps": 8}
    plain = sampled(app, patcher, name, cached, **given)
    expected = sampled(app, patcher, name, cached, text=CHANGED, **given)
    same(sampled(app, patcher, name, edited(app, cached, 1.0), **given), expected, plain)


@pytest.mark.parametrize("name", ["QwenImage", "Flux"])
@pytest.mark.parametrize("before", [False, True])
def test_neurons_of_the_prompt_beside_a_longer_text(app, name, before):
    """Factors of the positive rows alone, which the evaluation of a text has fewer of."""
    patcher = tiny_transformers.model(name)
    path, layer = next(
        (path, module)
        for path, module in patcher.model.diffusion_model.named_modules()
        if "img_mlp" in path and isinstance(module, torch.nn.Linear)
    )
    factors = {path: torch.full((layer.in_features,), 0.5)}
    scale = app.module("nodes.neurons.neuron_factors_comfy").with_scaled

    def scaled(model):
        return scale(model, factors, (1e9, -1.0), True)

    text = {"toward": LONGER}
    both = (
        edited(app, scaled(patcher), 1.0, **text)
        if before
        else scaled(edited(app, patcher, 1.0, **text))
    )
    given = {"steps": 1}
    plain = sampled(app, patcher, name, scaled(patcher), **given)
    expected = sampled(app, patcher, name, scaled(patcher), text=LONGER, **given)
    same(sampled(app, patcher, name, both, **given), expected, plain)


@pytest.mark.parametrize("name", ["QwenImage", "WAN21_T2V"])
def test_strength_2_by_the_definition(app, name):
    """Both texts as rows of one call, in which the image's tokens of both become o + 2 (T - o)."""
    patcher = tiny_transformers.model(name)
    clip = Texts(patcher)
    texts = [clip.encode_from_tokens_scheduled(clip.tokenize(one)) for one in (PROMPT, CHANGED)]
    length = TOKENS[PROMPT]

    def attention(attend, query, key, value, *args, **options):
        attended = attend(query, key, value, *args, **options)
        keys = key.shape[2 if options.get("skip_reshape") else 1]
        begin = 0 if keys == length else length  # apart from the image, or in front of it
        if name == "WAN21_T2V" and keys != length:
            return attended
        image = attended[:, begin:]
        attended[:, begin:] = image[:1] + 2 * (image[1:] - image[:1])
        return attended

    def twice(apply_model, args):
        conditions = dict(args["c"])
        conditions["c_crossattn"] = torch.cat([text[0][0] for text in texts])
        options = conditions["transformer_options"]
        conditions["transformer_options"] = {**options, "optimized_attention_override": attention}
        x = torch.cat([args["input"]] * 2)
        return apply_model(x, args["timestep"].expand(2), **conditions)[:1]

    by_hand = patcher.clone()
    by_hand.set_model_unet_function_wrapper(twice)
    given = {"cfg": 1.0, "steps": 1}
    plain = sampled(app, patcher, name, **given)
    expected = sampled(app, patcher, name, by_hand, **given)
    same(sampled(app, patcher, name, edited(app, patcher, 2.0), **given), expected, plain)


def test_a_network_that_pools_its_text_by_itself(app):
    """The vector that HunyuanDiT pools of its T5's text moves with the attention, and stays as it
    is where a mask leaves the attention as it is.
    """
    name = "HunyuanDiT"
    patcher = tiny_transformers.model(name)
    given = {"negative": Texts(patcher).encode_from_tokens_scheduled({"all": [PROMPT]})}
    plain = sampled(app, patcher, name, **given)
    expected = sampled(app, patcher, name, text=CHANGED, **given)
    same(sampled(app, patcher, name, edited(app, patcher, 1.0), **given), expected, plain)
    nowhere = edited(app, patcher, 1.0, mask=torch.zeros(1, 8, 8))
    torch.testing.assert_close(
        sampled(app, patcher, name, nowhere, **given), plain, rtol=1e-4, atol=1e-4
    )
    half = edited(app, patcher, 1.0, mask=torch.full((1, 8, 8), 0.5))
    moved = float((sampled(app, patcher, name, half, **given) - plain).norm())
    assert 0.1 < moved / float((expected - plain).norm()) < 0.9


def test_where_the_prompt_stands_when_its_padding_is_replaced(app):
    """HunyuanDiT puts vectors of its own for what the masks leave out: the prompt's tokens are the
    first keys all the same, and T5's behind them the text's too.
    """
    layouts = app.module("nodes.host.attention.token_layout")
    subsets = app.module("nodes.common.network_call")
    patcher = tiny_transformers.model("HunyuanDiT")
    ((text, values),) = tiny_transformers.conditioning(7, patcher)
    values["attention_mask"][:, 4:] = 0
    values["attention_mask_mt5xl"][:, 3:] = 0
    found = []

    def seen(apply_model, args):
        conditions = args["c"]
        inputs = {
            name: conditions[name]
            for name in conditions
            if name not in ("c_crossattn", "transformer_options", "control")
        }
        found.append(
            layouts.layout_of(
                patcher.model.diffusion_model,
                (args["input"], args["timestep"]),
                {**inputs, "context": conditions["c_crossattn"], "transformer_options": {}},
                subsets.RowSubset([0], 1),
            )
        )
        return apply_model(args["input"], args["timestep"], **conditions)

    watched = patcher.clone()
    watched.set_model_unet_function_wrapper(seen)
    sampled(app, patcher, "HunyuanDiT", watched, positive=[[text, values]], cfg=1.0, steps=1)
    (layout,) = {
        (
            layout.prompt.start,
            layout.prompt.stop,
            tuple(layout.text_keys.nonzero().flatten().tolist()),
        )
        for layout in found[0].layouts.values()
        if layout.reads_text
    }
    assert layout == (0, 7, (0, 1, 2, 3, 7, 8, 9))


def test_a_network_that_hands_no_options_to_its_attentions(app):
    name = "PixArtAlpha"
    patcher = tiny_transformers.model(name)
    given = {"latent_image": tiny_transformers.latent(patcher, 1, 48, 48)}
    plain = sampled(app, patcher, name, **given)
    expected = sampled(app, patcher, name, text=CHANGED, **given)
    same(sampled(app, patcher, name, edited(app, patcher, 1.0), **given), expected, plain)


def test_a_mask_of_ones_moves_the_attention_alone(app):
    """Qwen-Image has no pooled text, so a mask of ones is no mask; half a mask is between."""
    patcher = tiny_transformers.model("QwenImage")
    found = [
        sampled(app, patcher, "QwenImage", edited(app, patcher, 1.0, mask=mask), cfg=1.0)
        for mask in (None, torch.ones(1, 8, 8), torch.cat([torch.ones(1, 8, 4)] * 2, 2) * 0.5)
    ]
    plain = sampled(app, patcher, "QwenImage", cfg=1.0)
    assert torch.allclose(found[0], found[1], atol=1e-6)
    assert 0.1 < (found[2] - plain).norm() / (found[0] - plain).norm() < 0.9


def test_inputs_of_a_network_are_compared_by_what_they_hold(app):
    """Nested ones too, as MiniMax H3's: what equals the prompt's own input is left as it is."""
    same = app.module("nodes.activations.word_edit_transformer_comfy")._same_value
    tensor = torch.arange(6.0).view(2, 3)
    payload = {"latents": [tensor, tensor + 1], "seed": 3, "text": None}
    assert same(payload, {"latents": [tensor.clone(), tensor + 1], "seed": 3, "text": None})
    others = (
        {**payload, "seed": None},
        {**payload, "latents": [tensor, tensor]},
        {**payload, "latents": [tensor]},
        {**payload, "text": tensor},
        {"latents": payload["latents"], "seed": 3},
    )
    assert not any(same(payload, other) for other in others)
    assert not same(tensor, 1.0) and not same(tensor, tensor.T) and same(2, 2)
