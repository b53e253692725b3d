"""Quantized checkpoints, as most people load Flux: each way to act on a MODEL gives what it gives
on the same numbers in float32, or is refused by one sentence before anything is evaluated.
"""

import members
import pytest
import quantized
import torch
import weight_nodes

_REFUSED = "custom loader"
_SENTENCE = "This MODEL is quantized .* load the fp16, bf16 or plain fp8 file"
_LAYER = "output_blocks.4.1.transformer_blocks.0.attn2"
#: Of the norm, since single values differ with the processor: quantized layers multiply in another
#: order, and the first step from a sigma of 4,500 rounds latents of some 10,000, whose last place
#: is 1e-3.
_CLOSE = 5e-4
#: Of ComfyUI's own forward pass of int8 layers, which rounds their inputs to 8 bits, most at the
#: first step.
_CLOSE_IN_INT8 = 0.1


@pytest.fixture(scope="module")
def family(app, tmp_path_factory):
    return weight_nodes.family(app, tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module", params=quantized.KINDS)
def models(family, request):
    """The kind, the quantized MODEL, and the MODEL of the same numbers in float32."""
    if not quantized.known(request.param):
        pytest.skip("This ComfyUI does not read the form.")
    return request.param, *quantized.pair(family.model, request.param)


def close(found, expected, kind=""):
    """Whether two results agree; ``kind``: in which form a whole image was sampled."""
    tolerance = _CLOSE_IN_INT8 if kind == "int8" else _CLOSE
    return (found - expected).norm() <= tolerance * expected.norm()


def test_the_form_itself(family, models):
    kind, small, exact = models
    weight = small.model.diffusion_model.get_submodule(f"{_LAYER}.to_v").weight
    assert getattr(weight, "_qdata", weight).element_size() == 1
    assert close(family.sample(small, steps=2), family.sample(exact, steps=2), kind)


def hooked(app, model, node):
    """A MODEL with one of the nodes whose hooks act on the outputs of layers."""
    if node == "GBX_NemoNeuronMask":
        mask = app.module("nodes.neurons.mask")
        rows = ((f"{_LAYER}.to_v", index) for index in range(64))
        given = {"mask": mask.NeuronMask(mask.uniform_scales(rows)), "strength": 1.0}
        given |= {"start_percent": 0.0, "end_percent": 1.0, "apply_to": "positive"}
    else:
        given = {
            "preset": "custom_ids",
            "ids": "up-level1-*-res-out",
            "recorded_steps": "all",
            "rows": "both",
        }
        given |= {"pool_size": 1, "precision": "fp32"}
    return app.run(node, model=model, **given)[0]


@pytest.mark.parametrize("node", ["GBX_NemoNeuronMask", "GBX_ActivationRecorder"])
def test_hooks_on_outputs_work_on_quantized_layers(app, family, models, node):
    kind, small, exact = models
    found, expected = (family.sample(hooked(app, model, node), steps=2) for model in (small, exact))
    assert close(found, expected, kind)
    changed = not close(expected, family.sample(exact, steps=2))
    assert changed == (node == "GBX_NemoNeuronMask")


def test_a_point_for_the_whole_run_is_what_load_lora_makes(app, family, models):
    """Of the same tensors bit for bit, of the file but for its own rounding, in units of what the
    form rounds off.

    A layer rounds the sum again, up or down by its own random numbers: of a difference d it makes
    whole steps s, in the mean square d s, beside the s^2 / 6 that rounding costs at all. float16
    gives d < 2^-11 of a value, the form s > 1 / levels of it. In float32 a few values of each
    thousand may fall to the other side.
    """
    kind, small, exact = models
    to_tensors = app.module("nodes.weights.lora_writer").to_tensors

    def loaded(lora):
        return app.run("LoraModelLoader", model=small, lora=lora, strength_model=1.0)[0]

    def exported(precision):
        given = {"filename_prefix": "", "rank": 0, "file_format": "kohya", "precision": precision}
        return loaded(app.run("GBX_W2WToLoRA", point=family.point, **given)[0])

    applied, same = family.apply(family.point, small), loaded(to_tensors(family.point.layers()))
    assert torch.equal(family.sample(applied, steps=2), family.sample(same, steps=2))

    layers = [
        key.removeprefix("diffusion_model.").removesuffix(".weight") for key in applied.patches
    ]
    assert len(layers) == len(weight_nodes.LAYERS)
    mine, true = (
        quantized.loaded_weights(one, layers)
        for one in (applied, family.apply(family.point, exact))
    )
    costs = {
        "fp32": (1e-6, 0.1),
        "fp16": (2**-11, (6 * quantized.LEVELS.get(kind, 16) * 2**-11) ** 0.5),
    }
    for precision, (of_the_weight, of_the_rounding) in costs.items():
        file = quantized.loaded_weights(exported(precision), layers)
        for layer, weight in mine.items():
            rounding = (weight - true[layer]).norm()
            assert (file[layer] - weight).norm() <= of_the_weight * true[
                layer
            ].norm() + of_the_rounding * rounding


def of_an_interval(app, family, model):
    return family.sample(
        family.apply(family.point, model, start_percent=0.0, end_percent=0.5), steps=2
    )


def of_guidance(app, family, model):
    given = {"point": family.point, "identity_strength": 1.0, "edit_strength": 0.0}
    return family.sample(app.run("GBX_W2WGuidance", model=model, **given)[0], steps=2)


def of_inversion(app, family, model):
    choices = {
        "steps": 2,
        "learning_rate": 0.1,
        "weight_decay": 1e-10,
        "components": 100,
        "seed": 4,
        "precision": "fp32",
        "gradient_checkpointing": False,
        "preview_interval": 2,
        "checkpoint_name": "",
    }
    latent = {"samples": torch.randn(1, 24, 8, 8, generator=members.generator(0))}
    given = {"model": model, "space": family.space, "latent": latent, "positive": family.positive}
    return app.run("GBX_W2WInvert", **given, **choices)[0].coefficients


@pytest.mark.parametrize("make", [of_an_interval, of_guidance, of_inversion])
def test_weight_functions_get_the_true_numbers_or_are_refused(
    app, family, models, make, monkeypatch
):
    from comfy.model_base import BaseModel

    kind, small, exact = models
    if kind != _REFUSED:
        sampled = "" if make is of_inversion else kind
        assert close(make(app, family, small), make(app, family, exact), sampled)
        return
    monkeypatch.setattr(BaseModel, "_apply_model", None)  # nothing may be evaluated
    with pytest.raises(ValueError, match=_SENTENCE):
        make(app, family, small)


def adjusted(app, family, model):
    """The embedding after two steps of Embedding Adjustment, which trains through the quantized
    layers.
    """
    size = {"width": 64, "height": 64, "noise_samples": 2, "seed": 3}
    how = {"target_norm": 0.0, "steps": 2, "learning_rate": 0.05, "precision": "fp32", **size}
    with (
        torch.inference_mode()
    ):  # as ComfyUI runs nodes: outside of it torch cannot move quantized tensors
        found = app.run(
            "GBX_EmbeddingAdjustment",
            model=model,
            positive=family.positive,
            negative=family.negative,
            **how,
        )
    return found[0][0][0]


def test_embedding_adjustment_gives_the_same_embedding_or_is_refused(app, family, models):
    kind, small, exact = models
    if kind == _REFUSED:
        with pytest.raises(ValueError, match=_SENTENCE):
            adjusted(app, family, small)
        return
    expected, start = adjusted(app, family, exact), family.positive[0][0]
    family.sample(
        family.apply(family.point, small), steps=1
    )  # leaves its weights loaded, which must be moved away
    moved = (expected - start).norm()
    assert moved > 0
    # AdamW makes whole steps of gradients near 0, whose sign is that of rounding: few values, but
    # large differences.
    assert (adjusted(app, family, small) - expected).norm() < 0.02 * moved


def trained(app, family, model, algorithm):
    """The parameters of adapters after three steps."""
    adapters, trainer = (
        app.module(f"nodes.host.training.{name}") for name in ("adapters", "trainer")
    )
    made = adapters.create(
        model, algorithm, 2, torch.float32, 1, None, layers="attn2, input_blocks.1"
    )
    latent = torch.randn(1, 24, 8, 8, generator=members.generator(0))
    optimizer = torch.optim.SGD(made.parameters.values(), 0.1)

    def work(session):
        for step in range(3):
            noise, sigmas = (
                torch.randn(1, 24, 8, 8, generator=members.generator(step)),
                torch.tensor([1.0]),
            )
            noised = session.noised(session.latents[0], noise, sigmas)
            (session.denoised(noised, sigmas, [0]) - session.latents[0]).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    trainer.run(model, made.functions, [latent], [family.positive], work, dtype=torch.float32)
    return torch.cat([value.flatten() for value in made.lora().values()])


@pytest.mark.parametrize("algorithm", ["LoRA", "OFT"])
def test_adapters_are_trained_on_the_true_numbers_or_refused(app, family, models, algorithm):
    kind, small, exact = models
    if kind == _REFUSED:
        with pytest.raises(ValueError, match=_SENTENCE):
            trained(app, family, small, algorithm)
        return
    expected = trained(app, family, exact, algorithm)
    adapters = app.module("nodes.host.training.adapters")
    start = adapters.create(
        exact, algorithm, 2, torch.float32, 1, None, layers="attn2, input_blocks.1"
    ).lora()
    moved = (expected - torch.cat([value.flatten() for value in start.values()])).abs().max()
    assert (trained(app, family, small, algorithm) - expected).abs().max() < 0.01 * moved


def test_adapters_of_files_read_the_true_numbers_or_are_refused(app, models):
    """DoRA's update depends on the base weight."""
    kind, small, exact = models
    updates = app.module("nodes.host.adapter_updates")
    if kind == _REFUSED:
        with pytest.raises(ValueError, match=_SENTENCE):
            updates.ComfyAdapters(small)
        return
    readers = [updates.ComfyAdapters(model) for model in (small, exact)]
    layer = next(
        name for name in readers[0]._weights if name.endswith("attn2_to_v") or "attn2.to_v" in name
    )
    inputs, outputs = readers[0].shape(layer, {})
    generator = members.generator(3)
    tensors = {
        "lora_down.weight": torch.randn(2, *inputs, generator=generator),
        "lora_up.weight": torch.randn(*outputs, 2, generator=generator),
        "dora_scale": torch.rand(*outputs, generator=generator),
    }
    found, expected = (reader.update(layer, tensors) for reader in readers)
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.fixture
def fp8_device(app, monkeypatch):
    """ComfyUI takes the CPU for a device that multiplies fp8 by fp8."""
    from comfy import model_management

    monkeypatch.setattr(model_management, "supports_fp8_compute", lambda device: True)


def test_layers_that_can_only_multiply_fp8_by_fp8_are_refused(app, family, fp8_device):
    """As scaled fp8 files of older hosts do on newer GPUs."""
    from comfy import ops

    if not hasattr(ops, "scaled_fp8_ops"):
        pytest.skip("Newer layers compute in full precision when their weights are changed.")
    small, _ = quantized.pair(family.model, "scaled fp8")
    assert of_an_interval(app, family, small) is not None
    for layer in small.model.modules():
        if hasattr(layer, "scale_input"):
            layer.scale_input = torch.nn.Parameter(torch.ones(()), requires_grad=False)
    weights = {name: value.clone() for name, value in small.model.state_dict().items()}
    with pytest.raises(ValueError, match=r"^This MODEL is quantized \(diffusion_model\.") as caught:
        of_an_interval(app, family, small)
    assert str(caught.value).endswith("load the fp16, bf16 or plain fp8 file of the model.")
    named = str(caught.value).split("(")[1].split(".weight)")[0]
    assert small.model.get_submodule(named).scale_input is not None
    for name, value in small.model.state_dict().items():
        now, before = (one.reshape(-1).view(torch.uint8) for one in (value, weights[name]))
        assert torch.equal(now, before), name
    for layer in small.model.modules():  # what alone stood in the way
        if hasattr(layer, "scale_input"):
            layer.scale_input = None
    assert of_an_interval(app, family, small) is not None


def test_layers_that_multiply_fp8_by_fp8_have_true_gradients(app, family, fp8_device):
    """As mixed precision files do on newer GPUs, but for layers whose weights have functions."""
    small, exact = quantized.pair(family.model, "mixed precision")
    layer = small.model.diffusion_model.get_submodule(f"{_LAYER}.to_v")
    assert not layer._full_precision_mm
    assert close(of_inversion(app, family, small), of_inversion(app, family, exact))
