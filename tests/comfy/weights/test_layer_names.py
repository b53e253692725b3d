"""Layer names: from files of every trainer to the weights of real architectures and back."""

import pytest
import torch
import weight_nodes
from weight_nodes import LAYERS


@pytest.fixture(scope="module")
def family(app, tmp_path_factory):
    return weight_nodes.family(app, tmp_path_factory.getbasetemp())


def test_a_model_of_another_architecture_is_refused(family):
    import reduced

    model = reduced.checkpoint("flux")[0]
    for span in ({}, {"start_percent": 0.5}):
        with pytest.raises(ValueError, match="made for another base model"):
            family.apply(family.point, model, **span)


def test_every_layer_of_the_space_is_in_the_model(family, app):
    targets = app.module("nodes.host.lora_targets")
    layout = family.point.space.layout
    assert len(targets.fit(family.model, layout.matrix_sizes, {}).targets) == len(LAYERS)


def test_patches_are_what_stock_loading_makes_of_the_exported_file(family, app):
    """The same keys, and the same numbers in the adapters, bit for bit."""
    from comfy import lora as stock

    export = app.module("nodes.weights.lora_writer")
    names = stock.model_lora_keys_unet(family.model.model, {})
    wanted = stock.load_lora(export.to_tensors(family.point.layers()), names, log_missing=False)
    patched = family.apply(family.point).patches
    assert set(patched) == set(wanted)
    for key, ((strength, adapter, *_),) in patched.items():
        assert strength == 1.0
        found, expected = adapter.weights, wanted[key].weights
        assert torch.equal(found[0].flatten(1), expected[0].flatten(1))
        assert torch.equal(found[1], expected[1])
        assert found[2:] == expected[2:]


def test_the_names_of_a_model_are_looked_up_once(family, app, monkeypatch):
    """Two more moves of a slider ask ComfyUI for no table, and look at the weights of the point's
    layers alone.
    """
    targets = app.module("nodes.host.lora_targets")
    family.apply(family.point)
    tables, weights = [], []
    make, look = targets.comfy.lora.model_lora_keys_unet, targets.comfy.utils.get_attr
    monkeypatch.setattr(
        targets.comfy.lora,
        "model_lora_keys_unet",
        lambda *given: tables.append(given) or make(*given),
    )
    monkeypatch.setattr(
        targets.comfy.utils, "get_attr", lambda *given: weights.append(given) or look(*given)
    )
    for _ in range(2):
        family.apply(family.point)
    assert not tables
    assert 0 < len(weights) <= 2 * 2 * len(LAYERS)


def test_a_changed_model_is_looked_up_again(app):
    """A layer that comes later is found, and one that has gone is not; the table does not keep a
    model alive.
    """
    import gc
    import weakref

    import reduced

    targets = app.module("nodes.host.lora_targets")
    model = reduced.checkpoint("sd15")[0].model
    layer = "input_blocks.0.added"
    assert not targets.targets(model, {layer: f"diffusion_model.{layer}"})
    block = model.diffusion_model.input_blocks[0]
    block.add_module("added", torch.nn.Linear(3, 5))
    (found,) = targets.targets(model, {layer: f"diffusion_model.{layer}"}).values()
    assert (found.key, found.shape) == (f"diffusion_model.{layer}.weight", (5, 3))
    del block.added
    assert not targets.targets(model, {layer: f"diffusion_model.{layer}"})
    reference = weakref.ref(model)
    del model, block
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("architecture", ["sd15", "sdxl", "flux", "sd3"])
def test_layer_names_of_real_architectures(app, architecture):
    """Every layer that a trainer may adapt keeps its place from ComfyUI's own name to a file and
    back.
    """
    import reduced
    from comfy import lora as stock

    keys, targets = app.module("nodes.common.lora_keys"), app.module("nodes.host.lora_targets")
    model = reduced.checkpoint(architecture)[0]
    tensors, wanted = {}, {}
    for name, weight in model.model.state_dict().items():
        if name.startswith("diffusion_model.") and name.endswith(".weight") and weight.ndim >= 2:
            layer = keys.canonical(name.removesuffix(".weight"))
            down, up, alpha = keys.keys(layer)
            tensors |= {down: torch.ones(1, *weight.shape[1:]), up: torch.ones(weight.shape[0], 1)}
            tensors[alpha] = torch.tensor(1.0)
            wanted[name] = layer
    assert len(set(wanted.values())) == len(wanted)
    names = stock.model_lora_keys_unet(model.model, {})
    assert set(stock.load_lora(tensors, names, log_missing=False)) == set(wanted)
    found = targets.targets(model.model, dict.fromkeys(wanted.values(), ""))
    assert {target.key: layer for layer, target in found.items()} == wanted


def test_flux_layers_by_diffusers_names_change_a_part_of_a_fused_weight(app):
    import reduced

    lora_patches, targets = (
        app.module("nodes.weights.lora_intervals_comfy"),
        app.module("nodes.host.lora_targets"),
    )
    model = reduced.checkpoint("flux")[0]
    layer = "transformer_blocks.0.attn.to_k"
    factors = app.module("nodes.common.lora_reader").Factors(
        torch.ones(1, 128), torch.ones(128, 1), 2.0
    )
    fit = targets.fit(model, {layer: (128, 128)}, {})
    changes = lora_patches.adapters({layer: factors}, fit.targets)
    timed = lora_patches.apply_changes(model, changes, 0.5, 0.0, 0.5)
    ((key, (change,)),) = timed.weight_wrapper_patches.items()
    weight = model.model.state_dict()[key]
    assert torch.equal(change(weight), weight)
    change._span.now = change._span.start
    wanted = weight.clone()
    wanted[128:256] += 1.0
    torch.testing.assert_close(change(weight), wanted)
