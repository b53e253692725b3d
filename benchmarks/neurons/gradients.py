"""What a gradient to all factors costs over an evaluation: SD1.5 in its real size on random
weights, latent 32.

One row forward and backward against one row forward in the same session, in turns, and the most
bytes of the tensors that either makes. With these a ranking or a learned mask is compared with a
search by rows (`study neurons learned`).
"""

from __future__ import annotations

import torch

from studies.common import host, results
from studies.common.turns import times, timing_numbers

from ..activations.memory import counted
from ..weights.network import sd15_model

_SIDE, _FORWARD, _GRADIENT = 32, "forward", "forward and backward"


def measure(quick: bool) -> dict[str, dict]:
    """Seconds of the processor on one thread, and counted bytes."""
    half, layers = (
        host.pack("nodes.neurons.neuron_attribution_comfy"),
        host.pack("nodes.neurons.neuron_layers"),
    )
    pure, search = (
        host.pack("nodes.neurons.neuron_attribution"),
        host.pack("nodes.neurons.nemo_search"),
    )
    patcher = sd15_model(torch.float32, filled=True)
    neurons = search.Neurons(tuple(layers.value_layers(patcher.model.diffusion_model)))
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(1, 4, _SIDE, _SIDE, generator=draws)
    condition = [[torch.randn(1, 77, 768, generator=draws), {}]]
    factors = torch.ones(sum(layer.width for layer in neurons.layers), requires_grad=True)
    where = f"SD1.5, latent {_SIDE}"
    numbers: dict[str, dict] = {}

    def work(session) -> None:
        @torch.no_grad()
        def forward() -> None:
            session.predicted(x, [961], [0], pure.by_layer(factors.detach(), neurons))

        def gradient() -> None:
            of_layers = pure.by_layer(factors, neurons)
            loss = session.predicted(x, [961], [0], of_layers).square().sum()
            torch.autograd.grad(loss, factors)

        contenders = {_FORWARD: forward, _GRADIENT: gradient}
        for contender in contenders.values():
            contender()
        peaks = {name: counted(contender)[0] for name, contender in contenders.items()}
        measured = times(contenders, 2 if quick else 8, alone=True)
        numbers.update(
            timing_numbers(
                where, measured, _FORWARD, "one row, factors of all value neurons, float32"
            )
        )
        for name, peak in peaks.items():
            what = "bytes of the tensors of one row, float32; counted"
            numbers[f"{where}, {name}, peak memory"] = results.number(peak / 1e6, 1, "MB", what)

    with torch.inference_mode(False):
        half.run(patcher, [x], [condition], work)
    return numbers
