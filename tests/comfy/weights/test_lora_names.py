"""A sample of `study weights names`: dW beside ComfyUI's own Load LoRA, for every scheme of names
and some kinds.
"""

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("network", ["SD3", "Flux", "Z-Image", "LTXV", "HiDream"])
def test_every_layer_is_applied_and_exported(app, network):
    """No weight is missing and dW agrees to 1e-3; findings had up to .90 (LTXV) and .58
    (Z-Image).
    """
    from studies.weights import lora_names

    cells = lora_names.compare(network, kinds=("LoRA without alpha", "DoRA", "LoKr"))
    assert len(cells) >= 10
    assert {cell: one["value"] for cell, one in cells.items() if one["value"] > 1e-3} == {}
    assert all(one["n"] >= 5 for one in cells.values())


@pytest.mark.parametrize("network", ["SD1.5", "SDXL"])
def test_every_layer_of_text_encoders_is_applied_and_exported(app, network):
    """Embeddings and projections, too, which exports without a MODEL named as no loader does."""
    from studies.weights import lora_names

    cells = lora_names.compare_text(network)
    assert (
        len(cells) == 8
        and {cell: one["value"] for cell, one in cells.items() if one["value"] > 1e-3} == {}
    )


def test_a_layer_that_the_model_lacks_is_named(app, caplog):
    """Three names with reasons, then a count, in the report and the log; the others are applied."""
    import torch

    from studies.weights import lora_names

    targets, reader = app.module("nodes.host.lora_targets"), app.module("nodes.common.lora_reader")
    patcher = lora_names.checkpoint("LTXV")
    own = "transformer_blocks.0.attn1.to_q"
    layers = {own: reader.Factors(torch.ones(1, 128), torch.ones(128, 1))}
    layers |= {f"nowhere.{number}": layers[own] for number in range(4)}
    layers["transformer_blocks.0.attn1.to_k"] = reader.Factors(torch.ones(1, 5), torch.ones(7, 1))
    fit = targets.fit(patcher, targets.sizes_of(layers), {})
    assert list(fit.targets) == [own]
    assert fit.report("model").startswith(
        "1 of 6 layers are in the model; left out: nowhere.0 (no such layer), "
    )
    assert fit.report("model").endswith(" and 2 more.") and fit.report("model") in caplog.text
    why = fit.missing["transformer_blocks.0.attn1.to_k"]
    assert why == "7 x 5 here, 128 x 128 in the model"
    with pytest.raises(ValueError, match="made for another base model"):
        targets.fit(patcher, {"nowhere": (128, 128)}, {})
