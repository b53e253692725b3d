"""What every eager operation promises on a GPU without kernels: few operations, and full precision
under autocast.
"""

import kernel_inputs
import pytest
import torch
from glassbox import kernels
from glassbox.kernels.table import TABLE
from torch.utils._python_dispatch import TorchDispatchMode

F32, BF16 = torch.float32, torch.bfloat16
_VIEWS = {
    "view",
    "transpose",
    "permute",
    "expand",
    "slice",
    "select",
    "t",
    "unsqueeze",
    "squeeze",
    "split",
    "detach",
    "as_strided",
    "_unsafe_view",
    "alias",
    "empty",
    "new_empty",
    "reshape",
    "unbind",
}


class Count(TorchDispatchMode):
    """Counts operations that would be launched."""

    launches = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.launches += func.overloadpacket.__name__ not in _VIEWS
        return func(*args, **(kwargs or {}))


def launches(operation, **arguments) -> int:
    with Count() as count:
        getattr(kernels, operation)(**arguments)
    return count.launches


@pytest.fixture
def on_gpu(monkeypatch):
    """The blocks of a GPU."""
    from glassbox.kernels import eager
    from glassbox.kernels.eager import (
        best_match,
        low_rank,
        mean_attention,
        nearest_drawn,
        neuron_moments,
    )

    for module in (best_match, low_rank, mean_attention, neuron_moments):
        monkeypatch.setattr(module, "block_bytes", lambda device, on_cpu: eager._ON_GPU)
    monkeypatch.setattr(nearest_drawn, "WORDS", nearest_drawn.WORDS_ON_GPU)


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize(
    ("operation", "sizes", "most"),
    [
        ("nearest_drawn", (4, 4096, 63), 160),  # 13,351 with a candidate at a time
        ("mean_attention", (2, 256, 77, 8, 40), 9),  # 98 with a head at a time
        ("assignment_cost", (32, 32, 256), 10),
        ("best_match", (300, 300, 64), 40),
        ("flat_weights", (200, 1000), 20),
        ("low_rank_apply", (320, 320, 16), 6),
        ("neuron_moments", (64, 77, 320), 25),
    ],
)
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_operations_are_few(operation, sizes, most, dtype):
    assert launches(operation, **getattr(kernel_inputs, operation)(dtype, *sizes)) <= most


@pytest.mark.usefixtures("on_gpu")
def test_operations_do_not_grow_with_heads_and_candidates():
    attention = [
        launches("mean_attention", **kernel_inputs.mean_attention(F32, 2, 64, 77, n, 8))
        for n in (2, 20)
    ]
    drawn = [
        launches("nearest_drawn", **kernel_inputs.nearest_drawn(F32, 2, 64, k)) for k in (2, 63)
    ]
    assert attention[0] == attention[1] and drawn[0] == drawn[1]


@pytest.mark.parametrize("operation", sorted(TABLE))
def test_autocast_changes_nothing(operation):
    arguments = kernel_inputs.of(operation)
    wanted = getattr(kernels, operation)(**arguments)
    with torch.autocast("cpu", dtype=BF16):
        found = getattr(kernels, operation)(**arguments)
    for one, other in zip(
        *(part if isinstance(part, tuple) else (part,) for part in (found, wanted)), strict=True
    ):
        assert one.dtype == other.dtype and torch.equal(one, other)


def test_products_of_bfloat16_lose_little_of_an_assignment():
    """What the assignment kernel's rounding costs: at most 0.1 % of the gain, of latents-like and
    of equal rows.
    """
    from scipy.optimize import linear_sum_assignment

    generator = torch.Generator().manual_seed(0)
    smooth = torch.nn.functional.interpolate(
        torch.randn(96, 4, 8, 8, generator=generator), scale_factor=4.0
    )
    for data in (
        torch.randn(96, 4096, generator=generator),
        smooth.flatten(1),
        smooth.flatten(1)[:12].repeat(8, 1),
    ):
        noise = torch.randn(96, 4096, generator=generator)
        exact = kernels.assignment_cost(data, noise)
        rounded = kernels.assignment_cost(data.bfloat16(), noise.bfloat16())
        gains = [-exact[linear_sum_assignment(cost.numpy())].sum() for cost in (exact, rounded)]
        assert gains[1] >= 0.999 * gains[0] > 0
