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
    lora_patches, export = app.module("nodes.weights.lora_intervals_comfy"), app.module("nodes.weights.lora_writer")
    assert len(lora_patches.named_adapters(family.model, export.to_tensors(family.point.layers()))) == len(LAYERS)


@pytest.mark.parametrize("style", ["lora_unet_", "diffusion_model.", "unet."])
def test_adapters_are_what_stock_loading_makes_of_all_names(app, style):
    """Names that begin no tensor are not tried; the others come out as in comfy.lora.load_lora, of every kind."""
    import reduced
    from comfy import lora as stock

    model = reduced.checkpoint("sd15")[0]
    names = stock.model_lora_keys_unet(model.model, {})
    chosen = list({names[name]: name for name in sorted(names) if name.startswith(style)}.values())[:6]
    tensors = {}
    kinds = (
        ("lora_down.weight", "lora_up.weight"),
        ("lora_A.weight", "lora_B.weight"),
        ("diff",),
        ("lokr_w1", "lokr_w2"),
    )
    for number, name in enumerate(chosen):
        tensors |= {f"{name}.{part}": torch.full((2, 2), 1.0 + number) for part in kinds[number % len(kinds)]}
        tensors[f"{name}.alpha"] = torch.tensor(2.0)
    wanted = stock.load_lora(tensors, names, log_missing=False)
    found = app.module("nodes.weights.lora_intervals_comfy").named_adapters(model, tensors)
    assert len(wanted) == len(chosen) == 6
    assert set(found) == set(wanted)
    for target, adapter in wanted.items():
        assert type(found[target]) is type(adapter)
        one, other = (getattr(value, "weights", None) or value[1] for value in (found[target], adapter))
        assert [part for part in one if torch.is_tensor(part)] and all(
            torch.equal(a, b) if torch.is_tensor(a) else a == b for a, b in zip(one, other, strict=True)
        )


@pytest.mark.parametrize("architecture", ["sd15", "sdxl", "flux", "sd3"])
def test_layer_names_of_real_architectures(app, architecture):
    """Every layer that a trainer may adapt keeps its place from ComfyUI's own name to a file and back."""
    import reduced

    keys, lora_patches = app.module("nodes.common.lora_keys"), app.module("nodes.weights.lora_intervals_comfy")
    model = reduced.checkpoint(architecture)[0]
    tensors, wanted = {}, {}
    for name, weight in model.model.state_dict().items():
        if name.startswith("diffusion_model.") and name.endswith(".weight") and weight.ndim >= 2:
            layer = keys.canonical(name.removesuffix(".weight"))
            down, up, alpha = keys.keys(layer)
            tensors |= {down: torch.ones(1, *weight.shape[1:]), up: torch.ones(weight.shape[0], 1)}
            tensors[alpha] = torch.tensor(1.0)
            wanted[name] = down
    assert len(set(wanted.values())) == len(wanted)
    found = lora_patches.named_adapters(model, tensors)
    assert set(found) == set(wanted)


def test_flux_layers_by_diffusers_names_change_a_part_of_a_fused_weight(app):
    import reduced

    lora_patches = app.module("nodes.weights.lora_intervals_comfy")
    model = reduced.checkpoint("flux")[0]
    name = "transformer.transformer_blocks.0.attn.to_k"
    tensors = {
        f"{name}.lora_A.weight": torch.ones(1, 128),
        f"{name}.lora_B.weight": torch.ones(128, 1),
        f"{name}.alpha": torch.tensor(2.0),
    }
    timed = lora_patches.apply_lora(model, tensors, 0.5, 0.0, 0.5)
    ((key, (change,)),) = timed.weight_wrapper_patches.items()
    weight = model.model.state_dict()[key]
    assert torch.equal(change(weight), weight)
    change._span.now = change._span.start
    wanted = weight.clone()
    wanted[128:256] += 1.0
    torch.testing.assert_close(change(weight), wanted)
