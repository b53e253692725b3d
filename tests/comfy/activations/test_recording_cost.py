"""What a recording of cross-attention maps costs a sampling run: operations counted without memory,
copies counted.
"""

import pytest
import torch
from tapping import World

from .test_edit_by_words import _REST

_SIDE = 128  # of SDXL's latent at 1024 pixels
_TOKENS = 77


@pytest.fixture(scope="module")
def demo(app):
    return World(app, *app.run("GBX_LoadDemoModel", weights="avatars-v2"))


@pytest.mark.parametrize("preset", ["cross_attention", "cross_attention_mean"])
def test_maps_of_sdxl_add_little_to_a_step(app, monkeypatch, preset):
    """On the real network on the meta device, of a step with CFG whose positive row is recorded: at
    most 2 %.
    """
    import comfy.ldm.modules.diffusionmodules.openaimodel as unet
    import comfy.ops
    from comfy import supported_models
    from comfy.ldm.modules import attention

    monkeypatch.setattr(attention, "optimized_attention", attention.attention_pytorch)
    config = {**supported_models.SDXL.unet_config, **_REST["SDXL"]}
    with torch.inference_mode(False), torch.device("meta"):
        network = unet.UNetModel(**config, device="meta", operations=comfy.ops.disable_weight_init)
    module = {
        name: app.module(f"nodes.activations.{name}")
        for name in ("catalog_unet", "select_ids", "tap")
    }
    call = app.module("nodes.common.network_call")
    specs = module["select_ids"].select(module["catalog_unet"].catalog(network), preset, "")
    context = torch.zeros(2, _TOKENS, config["context_dim"], device="meta")
    parts = tuple(
        call.Part(role=role, rows=slice(row, row + 1), area=call.WHOLE, text=context[row : row + 1])
        for row, role in enumerate(("positive", "negative"))
    )
    x = torch.zeros(2, 4, _SIDE, _SIDE, device="meta")
    y = torch.zeros(2, 2816, device="meta")
    copies = app.module("nodes.activations.activations").DeviceCopies()
    tap = module["tap"].CallTap(
        specs,
        module["tap"].TapSettings(),
        call.Call(network=network, parts=parts, rows=2, sigma=1.0, schedule=()),
        copies,
    )

    from torch.utils.flop_counter import (
        FlopCounterMode,
    )  # imports Triton, which kernel tests want interpreted

    def count(receivers):
        hooks = app.module("nodes.host.hooks")
        watched = hooks.forward_hooks(network, receivers, watches=True)
        with torch.inference_mode(), FlopCounterMode(display=False) as counter, watched:
            network(x, torch.zeros(2, device="meta"), context=context, y=y)
        return counter.get_total_flops()

    plain = count(((), ()))
    added = count(tap.receivers()) / plain - 1
    assert tap.tensors[True].keys() == {spec.id for spec in specs}
    assert 0.0005 < added < 0.02


class Copies:
    """The calls of what copies to the CPU while it is entered."""

    def __init__(self, app, monkeypatch):
        self.count = 0
        module = app.module("nodes.activations.recorder")
        original = module.cpu_copy

        def counted(tensor, dtype):
            self.count += 1
            return original(tensor, dtype)

        monkeypatch.setattr(module, "cpu_copy", counted)
        monkeypatch.setattr(app.module("nodes.activations.activations"), "cpu_copy", counted)


@pytest.mark.parametrize("preset", ["cross_attention", "cross_attention_mean"])
def test_a_mean_is_copied_once_at_the_end_of_the_run(app, demo, monkeypatch, preset):
    """As many copies for three steps as for one: one of each activation."""
    counts = {}
    for steps in (1, 3):
        model, recording = demo.record(preset=preset, ids="", rows="conditional", mean_only=True)
        copies = Copies(app, monkeypatch)
        samples = demo.sample(model, demo.latent(1, 64, 64), steps=steps)
        monkeypatch.undo()
        counts[steps] = copies.count
        assert len(demo.read(recording, samples)[0].tensors) == copies.count
    assert counts[1] == counts[3] > 0


def test_a_mean_is_that_of_the_single_steps(demo):
    """In float32, to the rounding of another order of sums; in half precision it is rounded
    once.
    """
    latent = demo.latent(1, 64, 64)
    for precision, tolerance in (("fp32", 1e-6), ("fp16", 1e-3)):
        means = []
        for mean_only in (True, False):
            given = {"preset": "cross_attention", "ids": "", "rows": "both", "precision": precision}
            model, recording = demo.record(**given, mean_only=mean_only)
            samples = demo.sample(model, latent, steps=3)
            means.append(demo.app.run("GBX_ReadActivations", recording=recording, latent=samples,
            step_index=0,
                                      average=True)[0].tensors)  # fmt: skip
        for id_, mean in means[0].items():
            assert mean.dtype == means[1][id_].dtype and not mean.is_cuda
            assert (mean.float() - means[1][id_].float()).abs().max() <= tolerance


def test_words_in_one_pass_are_word_by_word_bit_for_bit(app):
    heat = app.module("nodes.activations.token_heatmap")
    generator = torch.Generator().manual_seed(0)
    maps = {
        name: torch.rand(2, heads, side * side, 14, generator=generator).half()
        for name, heads, side in (("a", 3, 6), ("b", 5, 3))
    }
    sizes = {"a": (6, 6), "b": (3, 3)}
    words = [[1], [2, 3], [5, 1, 6]]
    together = heat.daam_heat_maps(maps, sizes, words, 7)
    for word, found in zip(words, together, strict=True):
        assert torch.equal(heat.daam_heat_maps(maps, sizes, [word], 7)[0], found)


def test_images_are_shrunk_before_they_are_colored(app):
    overlays = app.module("nodes.activations.overlays")
    image = torch.rand(2, 300, 600, 3, generator=torch.Generator().manual_seed(0))
    small = overlays.shrink(image, 100)
    assert small.shape == (2, 50, 100, 3)
    assert torch.allclose(small[:, 0, 0], image[:, :6, :6].mean((1, 2)), atol=1e-6)
    assert overlays.shrink(image, 600) is image
