"""Calls that begin at a value layer give what whole calls give, in every architecture, and leave nothing behind."""

import pytest
import reduced
import torch
from tapping import hooks_left

SHAPES = {"demo": (8, 8, 8), "sd15": (4, 8, 8), "sdxl": (4, 8, 8)}


def loaded(comfy, name):
    """A model and a conditioning of one prompt."""
    if name == "demo":
        model, clip, _ = comfy.run("GBX_LoadDemoModel", weights="avatars-v1")
    else:
        model, clip, _ = reduced.checkpoint(name)
    return model, comfy.run("CLIPTextEncode", clip=clip, text="portrait of zorvex quill")[0]


def at_first_step(comfy, name, work, change=lambda model, conditioning: None):
    model, conditioning = loaded(comfy, name)
    model = model.clone()
    change(model, conditioning)
    with torch.inference_mode():
        result = comfy.module("nodes.host.first_step").at_first_step(model, conditioning, SHAPES[name], 961, work)
    assert hooks_left(model) == 0
    assert not any("forward" in module.__dict__ for module in model.model.diffusion_model.modules())
    return result


def differences(comfy, name, change=lambda model, conditioning: None):
    """How far a call that begins at a layer is from the whole call, for some layers, and whether it began there."""
    layers = comfy.module("nodes.neurons.layers").value_layers(loaded(comfy, name)[0].model.diffusion_model)
    layers = layers[:: len(layers) // 4]
    generator = torch.Generator().manual_seed(3)
    noise, rows = torch.randn(2, *SHAPES[name], generator=generator), [1, 0, 0, 1, 1]

    def silenced(layer, count):
        return (torch.rand(count, layer.width, generator=generator) > 0.5).float()

    def work(predict):
        base = {layer.path: silenced(layer, 2) for layer in layers}
        predict.remember(noise, base, [layer.path for layer in layers])
        found = {}
        for number, layer in enumerate(layers):
            factors = {path: factor[rows] for path, factor in base.items()}
            factors |= {later.path: silenced(later, len(rows)) for later in layers[number:]}
            whole = predict(noise[rows], factors)
            found[layer.path] = float((predict.beginning_at(layer.path, rows, factors) - whole).abs().max())
        return found, all(predict._replay.begins(layer.path) for layer in layers)

    return at_first_step(comfy, name, work, change)


@pytest.mark.parametrize("name", SHAPES)
def test_a_call_that_begins_at_a_layer_is_the_whole_call(comfy, name):
    """Rows of another batch are rounded differently; nothing else differs."""
    found, began = differences(comfy, name)
    assert began and max(found.values()) < 1e-4


def test_the_same_rows_in_the_same_batch_are_equal_to_the_last_bit(comfy):
    path = "output_blocks.5.1.transformer_blocks.0.attn2.to_v"
    noise = torch.randn(3, *SHAPES["demo"], generator=torch.Generator().manual_seed(0))
    factors = {path: (torch.arange(64) % 3 > 0).float()}

    def work(predict):
        predict.remember(noise, {}, [path])
        return predict.beginning_at(path, [0, 1, 2], factors), predict(noise, factors)

    assert torch.equal(*at_first_step(comfy, "demo", work))


def test_what_is_before_is_not_computed(comfy):
    path, seen = "middle_block.1.transformer_blocks.0.attn2.to_v", []
    noise = torch.randn(2, *SHAPES["demo"])

    def work(predict):
        predict.remember(noise, {}, [path])
        network = predict._network
        watched = [network.input_blocks[1][0].in_layers[2], network.output_blocks[0][0].in_layers[2]]
        handles = [module.register_forward_hook(lambda module, *_: seen.append(module)) for module in watched]
        predict.beginning_at(path, [0, 1], {})
        for handle in handles:
            handle.remove()
        return seen == watched[1:]

    assert at_first_step(comfy, "demo", work)


def two_prompts(model, conditioning):
    conditioning.append([conditioning[0][0].flip(1), dict(conditioning[0][1])])


def text_patch(model, conditioning):
    model.set_model_attn2_patch(lambda n, context, value, options: (n, context + n.mean(), value))


@pytest.mark.parametrize("change", [two_prompts, text_patch])
def test_what_cannot_begin_at_a_layer_runs_whole(comfy, change):
    found, _ = differences(comfy, "demo", change)
    assert max(found.values()) == 0


def test_nothing_is_left_after_an_error(comfy):
    path = "output_blocks.5.1.transformer_blocks.0.attn2.to_v"
    noise = torch.randn(2, *SHAPES["demo"])

    def work(predict):
        predict.remember(noise, {}, [path])
        with pytest.raises(RuntimeError):
            predict.beginning_at(path, [0, 1], {path: torch.ones(7)})

    at_first_step(comfy, "demo", work)
