"""W2W Invert on SD1.5 in its real size (random weights, 512 pixels): CPU time of a step, peak
memory of the process.
"""

from __future__ import annotations

import resource
import time

import numpy as np
import torch

from studies.common import host, results

from .moving import made_up_space
from .network import sd15_model


def measure(steps: int = 3, components: int = 1000) -> dict[str, dict]:
    """Precision auto with gradient checkpointing, the node's defaults."""
    precision = host.pack("nodes.host.precision").resolve_precision("auto", torch.device("cpu"))
    model, space = sd15_model(precision.dtype, filled=True), made_up_space(components)
    train, inversion = (
        host.pack("nodes.host.training.trainer"),
        host.pack("nodes.weights.inversion"),
    )
    nodes = host.pack("nodes.weights.inversion_comfy")
    draws = torch.Generator().manual_seed(0)
    latent = torch.randn(1, 4, 64, 64, generator=draws)
    condition = [[torch.randn(1, 77, 768, generator=draws), {}]]
    seconds: list[float] = []
    with torch.inference_mode(False):
        made = inversion.TrainablePoint(space, torch.zeros(0), components)
        run = inversion.Inversion(model=made, settings=inversion.InversionSettings(steps=steps))

        def work(session) -> None:
            began = [time.process_time()]
            run.run(session, None, lambda done: began.append(time.process_time()))
            seconds.extend(np.diff(began))

        settings = {"dtype": precision.dtype, "checkpointing": True}
        train.run(
            model, nodes.weight_functions(model, made), [latent], [condition], work, **settings
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    what = (
        f"one image of 512 pixels, {components} coefficients, {precision}, gradient checkpointing"
    )
    return {
        "SD1.5 inversion step": results.bootstrap(
            np.array(seconds), what, "CPU seconds", np.median
        ),
        "SD1.5 inversion, peak memory": results.bootstrap(
            np.array([peak]), "of the whole process", "GB"
        ),
    }
