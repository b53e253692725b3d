"""Bake Neuron Mask: one patch a layer, whatever the number of distinct factors, with the numbers of
one per neuron.
"""

import pytest
import quantized
import reduced
import torch

_BLOCK = "output_blocks.5.1.transformer_blocks.0"
_VALUES = f"{_BLOCK}.attn2.to_v"
_HIDDEN = f"{_BLOCK}.ff.net.2"  # its neurons are what it reads: columns of its weight
_LAYERS = (_VALUES, _HIDDEN)


@pytest.fixture(scope="module")
def model(app):
    return reduced.checkpoint("sd15")[0]


@pytest.fixture(scope="module")
def bake(app):
    return app.module("nodes.neurons.neuron_factors_comfy").bake_factors


def factors_of(model, seed: int = 3) -> dict[str, torch.Tensor]:
    """A factor of its own for each neuron of both layers, but for every fourth neuron, which is
    left alone.
    """
    generator = torch.Generator().manual_seed(seed)
    values = model.model.diffusion_model.get_submodule(_VALUES).out_features
    hidden = model.model.diffusion_model.get_submodule(_HIDDEN).in_features
    factors = {}
    for path, width in (
        (_VALUES, values),
        (_HIDDEN, hidden - 5),
    ):  # the last ones, as in Flux's single blocks
        factors[path] = torch.rand(width, generator=generator) * 3 - 1
        factors[path][::4] = 1.0
    return factors


def one_patch_per_neuron(model, factors: dict[str, torch.Tensor]):
    """The reference: ComfyUI's own strength of the model, on the row or column of each neuron."""
    clone = model.clone()
    nothing = ("diff", (torch.zeros(1),))
    for path, factor in factors.items():
        weight = model.model.diffusion_model.get_submodule(path).weight
        dimension = 0 if path == _VALUES else 1
        skipped = (
            0
            if path == _VALUES
            else model.model.diffusion_model.get_submodule(path).in_features - len(factor)
        )
        assert skipped in (0, 5) and weight.ndim == 2
        for neuron in (factor != 1).nonzero().flatten().tolist():
            place = (f"diffusion_model.{path}.weight", (dimension, skipped + neuron, 1))
            clone.add_patches(
                {place: nothing}, strength_patch=0.0, strength_model=float(factor[neuron])
            )
    return clone


def with_lora(model, seed: int):
    """A MODEL with a LoRA of rank 2 on both layers."""
    import comfy.lora

    clone, generator, tensors, keys = model.clone(), torch.Generator().manual_seed(seed), {}, {}
    for path in _LAYERS:
        layer = model.model.diffusion_model.get_submodule(path)
        tensors[f"{path}.lora_down.weight"] = torch.randn(2, layer.in_features, generator=generator)
        tensors[f"{path}.lora_up.weight"] = (
            torch.randn(layer.out_features, 2, generator=generator) / 10
        )
        keys[path] = f"diffusion_model.{path}.weight"
    clone.add_patches(comfy.lora.load_lora(tensors, keys), 0.7)
    assert len(clone.patches) >= len(_LAYERS)
    return clone


@pytest.mark.parametrize("count", [1, 10, 60])
def test_one_patch_a_layer_for_any_number_of_factors(model, bake, monkeypatch, count):
    calls = []
    add_patches = type(model).add_patches

    def counted(self, *args, **kwargs):
        calls.append(args)
        return add_patches(self, *args, **kwargs)

    monkeypatch.setattr(type(model), "add_patches", counted)
    factors = {path: torch.ones_like(factor) for path, factor in factors_of(model).items()}
    for factor in factors.values():
        factor[:count] = torch.linspace(0.0, 0.9, count)
    baked = bake(model, factors)
    assert len(calls) == 1
    assert {key: len(patches) for key, patches in baked.patches.items()} == {
        f"diffusion_model.{path}.weight": 1 for path in _LAYERS
    }
    assert not model.patches


def test_layers_whose_factors_are_all_1_get_no_patch(model, bake):
    factors = factors_of(model)
    factors[_HIDDEN] = torch.ones_like(factors[_HIDDEN])
    assert list(bake(model, factors).patches) == [f"diffusion_model.{_VALUES}.weight"]


@pytest.mark.parametrize("loras", ["none", "before", "after", "both"])
def test_weights_are_bit_equal_to_one_patch_per_neuron(model, bake, loras):
    """LoRAs that the MODEL has are scaled, later ones are not: so the order counts, and is
    tried.
    """
    factors = factors_of(model)
    start = with_lora(model, 1) if loras in ("before", "both") else model
    results = []
    for patcher in (bake(start, factors), one_patch_per_neuron(start, factors)):
        patcher = with_lora(patcher, 2) if loras in ("after", "both") else patcher
        results.append(quantized.loaded_weights(patcher, list(_LAYERS)))
    for path in _LAYERS:
        assert torch.equal(results[0][path], results[1][path])
    plain = quantized.loaded_weights(start, list(_LAYERS))
    assert all(not torch.equal(results[0][path], plain[path]) for path in _LAYERS)
    silent = (factors[_VALUES] == 1).nonzero().flatten()
    if loras in ("none", "before"):
        assert torch.equal(results[0][_VALUES][silent], plain[_VALUES][silent])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_patch_rounds_as_one_per_neuron_in_each_precision(model, bake, dtype):
    """As layers of which only a part fits the memory of the device compute it: in the weight's own
    precision.
    """
    import comfy.lora

    factors = factors_of(model)
    with torch.inference_mode():
        for path in _LAYERS:
            key = f"diffusion_model.{path}.weight"
            weight = model.model.diffusion_model.get_submodule(path).weight.to(dtype)
            results = [
                comfy.lora.calculate_weight(
                    patcher.patches[key], weight.clone(), key, intermediate_dtype=dtype
                )
                for patcher in (bake(model, factors), one_patch_per_neuron(model, factors))
            ]
            assert results[0].dtype == dtype and torch.equal(*results)
            assert not torch.equal(results[0], weight)


@pytest.mark.parametrize("kind", quantized.KINDS)
def test_quantized_weights_are_bit_equal_to_one_patch_per_neuron(model, bake, kind):
    if not quantized.known(kind):
        pytest.skip("This ComfyUI does not read the form.")
    small, _ = quantized.pair(model, kind)
    factors = factors_of(model)
    results = [
        quantized.loaded_weights(with_lora(patcher, 2), list(_LAYERS))
        for patcher in (
            bake(with_lora(small, 1), factors),
            one_patch_per_neuron(with_lora(small, 1), factors),
        )
    ]
    plain = quantized.loaded_weights(small, list(_LAYERS))
    for path in _LAYERS:
        assert torch.equal(results[0][path], results[1][path])
        assert not torch.equal(results[0][path], plain[path])


def test_kept_work_sees_one_neuron_of_a_wide_layer(app, bake):
    """Digests read a sample of large tensors; of factors every number counts."""
    digest = app.module("nodes.common.resume").digest
    adapter = app.module("nodes.neurons.neuron_factors_comfy").neuron_scaling
    factor = torch.full((20000,), 0.5)
    other = factor.clone()
    other[12345] = 0.25
    digests = [
        digest(adapter(value, 0, 0), whole=4096) for value in (factor, factor.clone(), other)
    ]
    assert digests[0] == digests[1] != digests[2]
