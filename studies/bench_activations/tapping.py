"""Taps on a U-Net of SD1.5's size with random weights, at 256 pixels on the CPU and 512 on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from ..common import host, results
from ..common.turns import times

CONFIG = {
    "image_size": 32, "in_channels": 4, "out_channels": 4, "model_channels": 320, "num_res_blocks": [2, 2, 2, 2],
    "channel_mult": [1, 2, 4, 4], "transformer_depth": [1] * 6 + [0, 0], "transformer_depth_middle": 1,
    "transformer_depth_output": [1] * 9 + [0] * 3, "num_heads": 8, "num_head_channels": -1, "context_dim": 768,
    "use_spatial_transformer": True, "use_linear_in_transformer": False, "legacy": False, "adm_in_channels": None,
    "use_temporal_attention": False, "use_temporal_resblock": False,
}  # fmt: skip
_SIGMA = 0.228147  # the paper's t = 50
_WHAT = "random weights of SD1.5's size, one evaluation at the paper's t through ComfyUI's sampling path"


class Bench:
    """The model, what is evaluated, and the ways to look inside."""

    def __init__(self):
        self.model = _model()
        side = 64 if torch.cuda.is_available() else 32
        generator = torch.Generator().manual_seed(0)
        self.latent = {"samples": torch.randn(1, 4, side, side, generator=generator)}
        self.positive = [[torch.randn(1, 77, 768, generator=generator), {}]]
        self._host = host.pack("nodes.host.evaluate")
        self._nodes = host.pack("nodes.activations.tapping.nodes")
        self.entries = host.pack("nodes.activations.catalog").catalog(self.model.model.diffusion_model)

    def chosen(self, preset: str, ids: str = "") -> list:
        return host.pack("nodes.activations.selection").select(self.entries, preset, ids)

    @torch.inference_mode()
    def plain(self) -> None:
        self._host.evaluate(self.model, self.positive, self.latent, _SIGMA, 0)

    @torch.inference_mode()
    def tap(self, chosen: list):
        keep = host.pack("nodes.activations.tap").Keep()
        return next(self._nodes.tap_draws(self.model, self.positive, self.latent, _SIGMA, chosen, keep, 0, 1))

    def by_hand(self, chosen: list) -> None:
        """Forward hooks as one finds them in notebooks: on the modules, each output copied to the CPU as it is."""
        caught: dict[str, torch.Tensor] = {}
        with _hooks(self.model.model.diffusion_model, [entry for entry in chosen if entry.module], caught):
            self.plain()


def measure(quick: bool) -> dict[str, dict]:
    """Time over the plain evaluation, turn by turn, and the bytes that a tap keeps."""
    bench, turns = Bench(), 3 if quick else 7
    selection = host.pack("nodes.activations.selection")
    wanted = {
        "1 activation": bench.chosen(selection.LIST, "up-level1-repeat1-vit-block0-cross-q"),
        "Ours-v1.5 (4)": bench.chosen("Ours-v1.5"),
        "the paper's filter (33)": bench.chosen(selection.FILTER),
        "all but maps (165)": bench.chosen(selection.ALL_BUT_MAPS),
    }
    contenders = {"plain": bench.plain}
    for name, chosen in wanted.items():
        contenders[f"tap of {name}"] = lambda chosen=chosen: bench.tap(chosen)
    contenders["hooks by hand, the same 165"] = lambda: bench.by_hand(wanted["all but maps (165)"])
    measured = times(contenders, turns)
    numbers = {"plain evaluation": results.bootstrap(measured["plain"], _WHAT, "ms", np.median)}
    for name, values in measured.items():
        if name != "plain":
            what = f"time over the plain evaluation, turn by turn; {_WHAT}"
            numbers[f"{name} over plain"] = results.bootstrap(values / measured["plain"], what, "times", np.median)
    for name, chosen in wanted.items():
        kept = sum(value.numel() * value.element_size() for value in bench.tap(chosen).tensors.values()) / 2**20
        numbers[f"tap of {name}: kept"] = {"value": kept, "low": kept, "high": kept, "n": 1, "unit": "MiB",
                                           "what": "counted: float16 on the CPU, and all that is copied"}  # fmt: skip
    return numbers


def _model():
    import comfy.model_management
    import comfy.model_patcher
    import comfy.supported_models

    config = comfy.supported_models.SD15(dict(CONFIG))
    config.set_inference_dtype(torch.float32, None)
    with torch.inference_mode(False), torch.no_grad():
        model = config.get_model({}, device="cpu")
        generator = torch.Generator().manual_seed(0)
        for name, parameter in model.diffusion_model.named_parameters():
            if parameter.ndim < 2:
                parameter.data.fill_(0.0 if name.endswith("bias") else 1.0)
            else:
                parameter.data.normal_(generator=generator).div_(parameter[0].numel() ** 0.5)
    device = comfy.model_management.get_torch_device()
    return comfy.model_patcher.ModelPatcher(model, load_device=device, offload_device=torch.device("cpu"))


@contextmanager
def _hooks(network: torch.nn.Module, entries: list, caught: dict) -> Iterator[None]:
    def hook(id_: str):
        return lambda module, given, output: caught.update({id_: output.detach().cpu().clone()})

    handles = [network.get_submodule(entry.module).register_forward_hook(hook(entry.id)) for entry in entries]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
