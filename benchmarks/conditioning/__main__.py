"""What the conditioning nodes add to a sampling step of SDXL: `python run.py bench conditioning
[--quick]`.

Operations are counted on SDXL's own shape without weights, at 1024 x 1024 with CFG. Times are those
of a network of SDXL's widths with one transformer block where SDXL has two or ten, at a small size,
on random weights: what a patch adds does not depend on size or depth, so its fraction here is
larger than on SDXL. Each patched step is paired with a stock one right beside it, in changing
order. Without a GPU, time is the processor time of one thread, which other work on the machine
disturbs little.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from studies.common import host, results

_WIDTH = 2816
_SHALLOW = {
    "transformer_depth": [0, 0, 1, 1, 1, 1],
    "transformer_depth_middle": 1,
    "transformer_depth_output": [0, 0, 0, 1, 1, 1, 1, 1, 1],
}
_NARROW = {"model_channels": 64, "num_head_channels": 32}  # for --quick
_LEVEL = 1.6156  # a sigma at which the gate is half open


def _sdxl() -> dict:
    return host.pack("nodes.activations.meta_networks_comfy").ARCHITECTURES["sdxl"]


def count_operations() -> dict[str, dict]:
    """Operations and bytes that mode "embedding" adds to a step of SDXL; mode "value" adds none
    inside the network.
    """
    import comfy.ops
    from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel
    from torch.utils.flop_counter import FlopCounterMode

    network = UNetModel(
        **_sdxl(), dtype=torch.bfloat16, device="meta", operations=comfy.ops.disable_weight_init
    )
    given = {"dtype": torch.bfloat16, "device": "meta"}
    with FlopCounterMode(display=False) as counter, _plain_attention():
        network(
            torch.empty(2, 4, 128, 128, **given),
            torch.empty(2, device="meta"),
            torch.empty(2, 77, 2048, **given),
            torch.empty(2, _WIDTH, **given),
        )
    step = counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        network.label_emb(torch.empty(2, _WIDTH, **given))
    added = 2 * counter.get_total_flops()
    weights = 2 * 2 * sum(value.numel() for value in network.label_emb.parameters())
    return {
        "SDXL step, operations": results.number(
            step / 1e12, 1, "TFLOP", "one step at 1024 x 1024 with CFG"
        ),
        "embedding, operations": results.number(
            added / 1e6, 1, "MFLOP", "the metadata layers twice more, for two rows"
        ),
        "embedding, fraction of operations": results.number(
            100 * added / step, 1, "%", "of a step of SDXL at 1024 x 1024"
        ),
        "embedding, bytes": results.number(
            weights / 1e6, 1, "MB", "weights of the metadata layers read twice more, bfloat16"
        ),
        "value, operations": results.number(0.0, 1, "MFLOP", "added inside the network"),
    }


class _plain_attention:  # noqa: N801
    """Lets the network's attention be PyTorch's own while the block runs: ComfyUI's others ask for
    a real device.
    """

    def __enter__(self):
        from comfy.ldm.modules import attention

        self._before = attention.optimized_attention
        attention.optimized_attention = attention.attention_pytorch

    def __exit__(self, *error):
        from comfy.ldm.modules import attention

        attention.optimized_attention = self._before


def build(quick: bool):
    """A MODEL of ComfyUI's SDXL class on random weights."""
    import comfy.model_patcher
    import comfy.supported_models

    with torch.inference_mode(False), torch.no_grad():
        narrow = {**_NARROW, "adm_in_channels": _WIDTH} if quick else {}
        config = comfy.supported_models.SDXL({**_sdxl(), **_SHALLOW, **narrow})
        config.set_inference_dtype(torch.float32, None)
        model = config.get_model({}, device="cpu")
        generator = torch.Generator().manual_seed(0)
        for parameter in model.diffusion_model.parameters():
            scale = 0.0 if parameter.ndim < 2 else parameter[0].numel() ** -0.5
            parameter.data.uniform_(-scale, scale, generator=generator)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return comfy.model_patcher.ModelPatcher(
        model, load_device=device, offload_device=torch.device("cpu")
    )


def prompts() -> tuple[list, list]:
    """Two random prompts of SDXL that ask for an original size."""
    generator = torch.Generator().manual_seed(1)
    return tuple(
        [
            [
                torch.randn(1, 77, 2048, generator=generator),
                {
                    "pooled_output": torch.randn(1, 1280, generator=generator),
                    "width": 512,
                    "height": 512,
                },
            ]
        ]
        for _ in range(2)
    )


def guider(model, metadata_strength: float | None = None):
    """CFG at 7, or Metadata Guider at a strength."""
    import comfy.samplers

    positive, negative = prompts()
    if metadata_strength is None:
        made = comfy.samplers.CFGGuider(model)
        made.set_conds(positive, negative)
        made.set_cfg(7.0)
        return made
    made = host.pack("nodes.conditioning.size_metadata_comfy").MetadataGuider(model)
    made.set_conds(
        positive, [[positive[0][0], {"pooled_output": positive[0][1]["pooled_output"]}]], negative
    )
    made.set_strengths(7.0, metadata_strength)
    return made


@torch.inference_mode()
def one_step(made, side: int) -> float:
    """Seconds of one Euler step, with everything that ComfyUI does around it."""
    import comfy.samplers

    noise, sampler = torch.zeros(1, 4, side, side), comfy.samplers.sampler_object("euler")
    started = _clock()
    made.sample(noise, noise, sampler, torch.tensor([_LEVEL, 0.0]), disable_pbar=True, seed=0)
    return _clock() - started


def _clock() -> float:
    if not torch.cuda.is_available():
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def measure_times(pairs: int, quick: bool) -> dict[str, dict]:
    """Each patch against stock, in pairs."""
    model, side = build(quick), 16
    gated = host.pack("nodes.conditioning.metadata_schedule_comfy").gated
    schedule = host.pack("nodes.conditioning.metadata_schedule").GateSchedule
    modes = {
        mode: schedule("cosine", 2.0, "original_size", 0, 0, mode, "both")
        for mode in ("value", "embedding")
    }
    sampling = host.pack("nodes.conditioning.noise_rescale_comfy")
    contenders: dict[str, Callable] = {
        "Metadata Schedule, value": lambda: guider(gated(model, modes["value"], inside=False)),
        "Metadata Schedule, embedding": lambda: guider(
            gated(model, modes["embedding"], inside=True)
        ),
        "Resolution Noise Rescale": lambda: guider(
            sampling.rescaled(model, 1.5, sampling.SAMPLER_ONLY)
        ),
        "Metadata Guider, strength 1": lambda: guider(model, 1.0),
        "Metadata Guider, strength 0.5": lambda: guider(model, 0.5),
    }
    stock, order, numbers = guider(model), random.Random(0), {}
    for name, make in contenders.items():
        made, ratios, base = make(), [], []
        for number in range(-1, pairs):
            two = [made, stock]
            order.shuffle(two)
            seconds = {id(which): one_step(which, side) for which in two}
            if number >= 0:  # the first pair warms up
                base.append(seconds[id(stock)])
                ratios.append(100 * (seconds[id(made)] / seconds[id(stock)] - 1))
        numbers[f"{name}, added time"] = results.bootstrap(
            np.array(ratios),
            f"of a step of {np.median(base):.2f} s at {8 * side} x {8 * side}, paired medians",
            "%",
            np.median,
        )
        print(name, numbers[f"{name}, added time"], flush=True)
    return numbers


def main(argv: Sequence[str]) -> int:
    """Count and measure."""
    parser = argparse.ArgumentParser(
        prog="run.py bench conditioning", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="a narrow network")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    host.prepare()
    numbers = count_operations() | measure_times(16, options.quick)
    suffix = ("_quick", " --quick") if options.quick else ("", "")
    path = results.write(
        f"bench_conditioning{suffix[0]}",
        f"python run.py bench conditioning{suffix[1]}",
        0,
        host.ROOT / "assets" / "avatars-v2",
        numbers,
    )
    print(path)
    return 0
