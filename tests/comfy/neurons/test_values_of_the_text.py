"""Value neurons of transformers: a factor on the values at the text's positions is the network run
with those channels scaled by hand, in one sequence of text and image and apart from it.
"""

from types import SimpleNamespace

import pytest
import tiny_transformers
import torch
from tapping import hooks_left

OVERRIDE = "optimized_attention_override"
TEXT, OTHER = 7, 11  # tokens
IMAGE = 24  # tokens of 8 x 12 positions, two a side
#: A block, the number of its attention that reads the text, and where the text stands among the
#: keys: in front of the image, or alone.
BLOCKS = {
    "SD3": ("joint_blocks.1", 0, "front"),
    "Flux": ("double_blocks.1", 0, "front"),
    "Chroma": ("single_blocks.0", 0, "front"),
    "QwenImage": ("transformer_blocks.1", 0, "front"),
    "WAN21_T2V": ("blocks.1", 1, "alone"),
    "LTXV": ("transformer_blocks.2", 1, "alone"),
}
#: These hand no options to their attentions: a block, and the module whose outputs hold values.
BY_NAME = {"PixArtAlpha": "blocks.1", "HunyuanDiT": "blocks.1"}
FRAMES = {"LTXV": 3, "WAN21_T2V": 3}
SAMPLING = {"sampler_name": "euler", "scheduler": "simple", "denoise": 1.0, "steps": 2, "seed": 7}


@pytest.fixture(scope="module", params=BLOCKS)
def network(request):
    return request.param, tiny_transformers.model(request.param)


def sample(app, patcher, name, model=None, cfg=1.0, tokens=TEXT, count=1, positive=None):
    return app.run(
        "KSampler",
        model=model or patcher,
        positive=positive or tiny_transformers.conditioning(tokens, patcher),
        negative=tiny_transformers.conditioning(OTHER, patcher, seed=4),
        latent_image=tiny_transformers.latent(patcher, count, 8, 12, frames=FRAMES.get(name, 1)),
        cfg=cfg,
        **SAMPLING,
    )[0]["samples"]


def first_step(app):
    return app.module("nodes.neurons.first_step_comfy")


def layers_of(app, patcher):
    return first_step(app).layers_of_type(
        patcher,
        "value",
        lambda: tiny_transformers.conditioning(TEXT, patcher),
        first_step(app).latent_shape(patcher, 64, 96),
    )


def mask_of(app, path, indices, scale=0.0):
    pack = app.module("nodes.neurons.mask")
    return pack.NeuronMask(pack.uniform_scales([(path, index) for index in indices], scale))


def masked(app, patcher, mask, **changes):
    given = {"strength": 1.0, "start_percent": 0.0, "end_percent": 1.0, "apply_to": "both"}
    return app.run("GBX_NemoNeuronMask", model=patcher, mask=mask, **(given | changes))[0]


def path_of(name):
    return f"{BLOCKS[name][0]}.text_values"


def by_hand(patcher, name, channels, scale):
    """A MODEL whose own override scales the channels of one attention of one block, with the place
    of the text written down here.
    """
    block, number, place = BLOCKS[name]
    module = patcher.model.diffusion_model.get_submodule(block)
    state = SimpleNamespace(inside=False, calls=0)

    def override(attend, query, key, value, heads, *args, **options):
        is_own = state.inside and state.calls == number
        state.calls += 1
        if not is_own:
            return attend(query, key, value, heads, *args, **options)
        is_split = options.get("skip_reshape", False)
        flat = (value.transpose(1, 2) if is_split else value).flatten(2).clone()
        keys = flat.shape[1]
        text = keys if place == "alone" else keys - IMAGE
        flat[:, :text, channels] *= scale
        if is_split:
            flat = flat.unflatten(2, (value.shape[1], -1)).transpose(1, 2)
        return attend(query, key, flat, heads, *args, **options)

    def begin(*_args):
        state.inside = True
        state.calls = 0

    def end(*_args):
        state.inside = False

    clone = patcher.clone()
    clone.model_options["transformer_options"][OVERRIDE] = override

    class Context:
        def __enter__(self):
            self.handles = [
                module.register_forward_pre_hook(begin),
                module.register_forward_hook(end),
            ]
            return clone

        def __exit__(self, *_error):
            for handle in self.handles:
                handle.remove()

    return Context()


def same(found, expected, plain):
    """Within float32's rounding, against a change that is far larger."""
    change = (expected - plain).norm()
    assert change > 1e-4 * plain.norm()
    assert (found - expected).norm() < 1e-4 * change


def test_every_block_that_reads_the_text_has_value_neurons(app, network):
    name, patcher = network
    layers = layers_of(app, patcher)
    assert path_of(name) in [layer.path for layer in layers]
    assert len({layer.path for layer in layers}) == len(layers) >= 2
    values = []

    def keep(attend, query, key, value, heads, *args, **options):
        values.append(
            value.shape[1] * value.shape[3]
            if options.get("skip_reshape")
            else value.flatten(2).shape[2]
        )
        return attend(query, key, value, heads, *args, **options)

    clone = patcher.clone()
    clone.model_options["transformer_options"][OVERRIDE] = keep
    sample(app, patcher, name, clone)
    assert {layer.width for layer in layers} <= set(values)


@pytest.mark.parametrize("cfg", [1.0, 2.0])
def test_a_mask_is_the_network_with_those_channels_scaled(app, network, cfg):
    name, patcher = network
    channels = [0, 5, 40]
    plain = sample(app, patcher, name, cfg=cfg)
    with by_hand(patcher, name, channels, -1.0) as scaled:
        expected = sample(app, patcher, name, scaled, cfg=cfg)
    mask = mask_of(app, path_of(name), channels, scale=-1.0)
    same(sample(app, patcher, name, masked(app, patcher, mask), cfg=cfg), expected, plain)
    assert hooks_left(patcher) == 0


def test_off_is_bit_equal(app, network):
    name, patcher = network
    plain = sample(app, patcher, name)
    for mask, changes in (
        (mask_of(app, path_of(name), []), {}),
        (mask_of(app, path_of(name), [1, 2]), {"strength": 0.0}),
        (mask_of(app, path_of(name), [1, 2]), {"start_percent": 1.0}),
    ):
        model = masked(app, patcher, mask, **changes)
        assert torch.equal(sample(app, patcher, name, model), plain)


def test_the_negative_prompt_keeps_its_values(app, network):
    """At CFG 0 the result is that of the negative prompt."""
    name, patcher = network
    mask = mask_of(app, path_of(name), range(30), scale=-1.0)
    alone = masked(app, patcher, mask, apply_to="positive")
    both = masked(app, patcher, mask)
    plain = sample(app, patcher, name, cfg=0.0)
    assert torch.allclose(sample(app, patcher, name, alone, cfg=0.0), plain, atol=1e-5)
    assert not torch.allclose(sample(app, patcher, name, both, cfg=0.0), plain, atol=1e-5)


@pytest.mark.parametrize("name", ["Flux", "WAN21_T2V"])
def test_another_nodes_override_acts_too(app, name):
    """One that doubles what each attention puts out, before and behind the mask."""
    patcher = tiny_transformers.model(name)

    def doubled(attend, *args, **options):
        return 2 * attend(*args, **options)

    def with_override(model):
        clone = model.clone()
        clone.model_options["transformer_options"][OVERRIDE] = doubled
        return clone

    mask = mask_of(app, path_of(name), [0, 5, 40])
    plain = sample(app, patcher, name, with_override(patcher))
    found = sample(app, patcher, name, masked(app, with_override(patcher), mask))
    later = sample(app, patcher, name, with_override(masked(app, patcher, mask)))
    assert torch.equal(found, later)
    module = patcher.model.diffusion_model.get_submodule(BLOCKS[name][0])
    silenced = sample(app, patcher, name, masked(app, patcher, mask))
    assert module is not None
    assert not torch.allclose(found, plain, atol=1e-4)
    assert not torch.allclose(found, silenced, atol=1e-4)


@pytest.mark.parametrize("name", ["QwenImage", "LTXV"])
def test_two_conditionings_and_a_batch_of_two(app, name):
    """Each row is the one that it is alone."""
    patcher = tiny_transformers.model(name)
    mask = mask_of(app, path_of(name), range(20), scale=-1.0)
    model = masked(app, patcher, mask, apply_to="positive")
    first = tiny_transformers.conditioning(TEXT, patcher)
    second = tiny_transformers.conditioning(OTHER, patcher, seed=9)
    plain = sample(app, patcher, name, positive=[*first, *second], count=2)
    found = sample(app, patcher, name, model, positive=[*first, *second], count=2)
    with_both = masked(app, patcher, mask)
    expected = sample(app, patcher, name, with_both, positive=[*first, *second], count=2)
    same(found, expected, plain)


@pytest.mark.parametrize("name", ["Flux", "WAN21_T2V"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_to_factors(app, name, checkpointing):
    """Of the sum of the predicted noise, against finite differences; also where blocks are computed
    again.
    """
    patcher = tiny_transformers.model(name)
    pack = app.module("nodes.neurons.neuron_attribution_comfy")
    (layer,) = (layer for layer in layers_of(app, patcher) if layer.path == path_of(name))
    shape = first_step(app).latent_shape(patcher, 64, 96)
    latent = torch.randn((1, *shape), generator=torch.Generator().manual_seed(5))
    weights = torch.randn((1, *shape), generator=torch.Generator().manual_seed(6))
    direction = torch.randn(layer.width, generator=torch.Generator().manual_seed(7))

    def work(session):
        def total(factor):
            predicted = session.predicted(latent, [600], [0], {layer.path: factor})
            return (predicted * weights).sum()

        factor = torch.full((layer.width,), 0.7).requires_grad_()
        (gradient,) = torch.autograd.grad(total(factor), factor)
        with torch.no_grad():
            step = 1e-2
            ahead = total(0.7 + step * direction)
            behind = total(0.7 - step * direction)
        return gradient, (ahead - behind) / (2 * step)

    gradient, slope = pack.run(
        patcher,
        [latent],
        [tiny_transformers.conditioning(TEXT, patcher)],
        work,
        checkpointing=checkpointing,
    )
    assert float(gradient @ direction) == pytest.approx(float(slope), rel=2e-2)
    assert float(gradient.abs().max()) > 1e-5


def test_baking_is_refused_in_one_sentence(app, network):
    name, patcher = network
    mask = mask_of(app, path_of(name), [1])
    with pytest.raises(ValueError, match="no weight holds them alone: use NeMo Neuron Mask"):
        app.run("GBX_BakeNeuronMask", model=patcher, mask=mask, strength=1.0)


def test_a_neuron_that_there_is_not(app):
    """Before anything has evaluated the network its width is not known, then the run says it."""
    patcher = tiny_transformers.model("QwenImage")
    mask = mask_of(app, "transformer_blocks.0.text_values", [4000])
    with pytest.raises(
        ValueError, match="has 64 value neurons here and the mask names number 4000"
    ):
        sample(app, patcher, "QwenImage", masked(app, patcher, mask))
    layers_of(app, patcher)
    with pytest.raises(ValueError, match="has 64 neurons here and the mask names number 4000"):
        masked(app, patcher, mask)
    with pytest.raises(ValueError, match="has no layer elsewhere"):
        masked(app, patcher, mask_of(app, "elsewhere.0.text_values", [1]))


def values_scaled(patcher, block, channels, scale):
    """A hook on the layer that puts keys and values out, beside each other, for the text alone."""
    module = patcher.model.diffusion_model.get_submodule(block)
    layer = module.cross_attn.kv_linear if hasattr(module, "cross_attn") else module.attn2.kv_proj

    def scaled(_module, _args, output):
        output = output.clone()
        for channel in channels:
            output[..., output.shape[-1] // 2 + channel] *= scale
        return output

    return layer.register_forward_hook(scaled)


@pytest.mark.parametrize("name", BY_NAME)
def test_networks_that_hand_no_options_to_their_attentions(app, name):
    """Against a hook on their own layer, while sampling and with gradients; another pack's override
    is left alone as in stock ComfyUI, and the name is given back.
    """
    import sys

    patcher = tiny_transformers.model(name)
    block = BY_NAME[name]
    size = (48, 48) if name == "PixArtAlpha" else (8, 12)
    text = tiny_transformers.conditioning(TEXT, patcher)
    latent = tiny_transformers.latent(patcher, 1, *size)
    given = {"positive": text, "negative": text, "latent_image": latent, "cfg": 1.0, **SAMPLING}

    def run(model):
        return app.run("KSampler", model=model, **given)[0]["samples"]

    plain = run(patcher)
    mask = mask_of(app, f"{block}.text_values", [0, 5, 20], scale=-1.0)
    masked_model = masked(app, patcher, mask)
    handle = values_scaled(patcher, block, [0, 5, 20], -1.0)
    expected = run(patcher)
    handle.remove()
    same(run(masked_model), expected, plain)
    foreign = masked_model.clone()
    foreign.model_options["transformer_options"][OVERRIDE] = lambda *args, **more: 1 / 0
    same(run(foreign), expected, plain)
    off = masked(app, patcher, mask, strength=0.0)
    assert torch.equal(run(off), plain) and hooks_left(patcher) == 0

    import comfy.ldm.modules.attention as stock

    for module in patcher.model.diffusion_model.modules():
        names = vars(sys.modules[type(module).__module__])
        assert names.get("optimized_attention", stock.optimized_attention) is (
            stock.optimized_attention
        )

    pack = app.module("nodes.neurons.neuron_attribution_comfy")
    noised = latent["samples"].clone()
    width = patcher.model.diffusion_model.get_submodule(block).mlp.fc2.out_features

    def work(session):
        gradients = []
        factor = torch.full((width,), 0.7).requires_grad_()
        predicted = session.predicted(noised, [600], [0], {f"{block}.text_values": factor})
        gradients.append(torch.autograd.grad(predicted.square().sum(), factor)[0])
        return gradients[0]

    found = pack.run(patcher, [noised], [text], work)
    assert float(found.abs().max()) > 1e-4
    # When a block is computed again nothing tells which one it is.
    with pytest.raises(ValueError, match="turn gradient_checkpointing off"):
        pack.run(patcher, [noised], [text], work, checkpointing=True)
