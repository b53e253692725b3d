"""Every Triton kernel in the interpreter against eager, over types, odd sizes, strides, NaN and
infinity.
"""

import dataclasses

import kernel_inputs
import pytest
import torch
from glassbox import kernels
from glassbox.kernels import dispatch, self_check, table
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = [
    pytest.mark.usefixtures("interpreter"),
    pytest.mark.filterwarnings(
        "ignore:invalid value:RuntimeWarning"
    ),  # NumPy's, in the interpreter
]

F32, BF16, F16, I8 = torch.float32, torch.bfloat16, torch.float16, torch.int8
CASES = [
    ("nearest_drawn", F32, (1, 1, 1)),
    ("nearest_drawn", BF16, (2, 1030, 3)),
    ("nearest_drawn", F16, (3, 7, 9)),
    ("assignment_cost", F32, (64, 64, 1)),
    ("assignment_cost", F32, (65, 140, 70)),
    ("assignment_cost", BF16, (130, 66, 130)),
    ("assignment_cost", F16, (64, 64, 64)),
    ("flat_weights", BF16, (9, 1300)),
    ("flat_weights", F16, (8, 512)),
    ("flat_weights", I8, (11, 2100)),
    ("low_rank_apply", F32, (1, 1, 1)),
    ("low_rank_apply", BF16, (65, 130, 4)),
    ("low_rank_apply", F16, (3, 64, 40)),
    ("mean_attention", F32, (1, 1, 1, 1, 1)),
    ("mean_attention", F32, (2, 34, 77, 2, 40)),
    ("mean_attention", F16, (1, 33, 3, 1, 160, 2)),
    ("mean_attention", BF16, (2, 5, 128, 3, 64, 77)),
    ("mean_attention", BF16, (1, 5, 130, 3, 64, 76)),
    ("mean_attention", F32, (2, 66, 200, 1, 72)),
    ("mean_attention", F32, (2, 34, 77, 4, 40, 9, 60, 2, (2, 1, 1))),
    ("mean_attention", BF16, (1, 40, 200, 6, 16, 70, 129, 3, (1, 6, 40))),
    ("mean_attention", F32, (2, 5, 300, 2, 8, 20, 280, 1, (1, 1, 5))),
]
WHOLLY_MASKED = 130  # keys from the first on: more than two tiles of many


def both(operation, arguments):
    """Results of Triton and of eager."""
    assert table.unfit(table.TABLE[operation].kernels["triton"], arguments) is None
    return tuple(
        dispatch.function(backend, operation)(**arguments) for backend in ("triton", "eager")
    )


def agree(operation, arguments):
    assert self_check.disagreement(operation, *both(operation, arguments), arguments) is None


@pytest.fixture(autouse=True)
def tight(monkeypatch):
    """Sums in float32 in another order; the interpreter multiplies exactly, a GPU in three TF32
    products.
    """
    for operation, entry in table.TABLE.items():
        monkeypatch.setitem(table.TABLE, operation, dataclasses.replace(entry, tolerance=3e-6))


@pytest.mark.parametrize(("operation", "dtype", "sizes"), CASES)
def test_against_eager(operation, dtype, sizes):
    agree(operation, getattr(kernel_inputs, operation)(dtype, *sizes))


WITH_KERNEL = sorted(
    operation for operation, entry in table.TABLE.items() if "triton" in entry.kernels
)


def test_every_kernel_has_cases():
    assert sorted({operation for operation, *_ in CASES}) == WITH_KERNEL


@pytest.mark.parametrize("operation", WITH_KERNEL)
def test_results_do_not_depend_on_the_run(operation):
    sizes = next(sizes for name, dtype, sizes in CASES if name == operation and dtype == BF16)
    arguments = getattr(kernel_inputs, operation)(BF16, *sizes)
    first, second = (dispatch.function("triton", operation)(**arguments) for _ in range(2))
    pairs = zip(first, second, strict=True) if isinstance(first, tuple) else [(first, second)]
    assert all(torch.equal(*pair) for pair in pairs)


@pytest.mark.parametrize("programs", [1, 7])
@pytest.mark.parametrize(
    ("operation", "sizes"),
    [
        ("assignment_cost", (70, 64, 700)),
        ("flat_weights", (40, 600)),
        ("nearest_drawn", (2, 20, 9)),
    ],
)
def test_any_number_of_pieces(monkeypatch, programs, operation, sizes):
    from glassbox.kernels.triton import assignment_cost, common

    monkeypatch.setattr(common, "PROGRAMS", programs)
    monkeypatch.setattr(assignment_cost, "_PROGRAMS", programs)
    dtype = I8 if operation == "flat_weights" else F32
    agree(operation, getattr(kernel_inputs, operation)(dtype, *sizes))


@pytest.mark.parametrize(
    ("operation", "sizes"),
    [
        ("assignment_cost", (64, 64, 9)),
        ("nearest_drawn", (4, 9, 3)),
        ("mean_attention", (2, 4, 5, 2, 8)),
    ],
)
def test_strided_inputs_give_the_same(operation, sizes):
    """Rows that are far apart, every second one, and one row that stands for all."""
    arguments = getattr(kernel_inputs, operation)(F32, *sizes)
    first = next(iter(arguments))
    whole = arguments[first]
    sparse = torch.zeros(2 * sizes[0], *whole.shape[1:-1], 30)[::2, ..., 3 : 3 + whole.shape[-1]]
    for view in (sparse.copy_(whole), whole[:1].expand_as(whole)):
        assert not view.is_contiguous()
        agree(operation, arguments | {first: view})


def test_types_that_differ():
    agree(
        "assignment_cost",
        {
            "data": kernel_inputs.gaussian(64, 40, dtype=BF16),
            "noise": kernel_inputs.gaussian(65, 40, seed=1),
        },
    )
    agree(
        "low_rank_apply",
        kernel_inputs.low_rank_apply(F32, 5, 6, 2)
        | {"weight": kernel_inputs.gaussian(5, 6, dtype=F16)},
    )


@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(
    ("operation", "sizes", "name"),
    [
        ("assignment_cost", (64, 64, 40), "data"),
        ("low_rank_apply", (5, 6, 2), "up"),
        ("mean_attention", (1, 5, 6, 2, 8), "query"),
    ],
)
def test_nan_and_infinity(operation, sizes, name, odd):
    """They make the same places of the result not finite as in eager, and leave all others
    right.
    """
    arguments = getattr(kernel_inputs, operation)(F32, *sizes)
    arguments[name] = arguments[name].contiguous()
    arguments[name].view(-1)[1] = odd
    agree(operation, arguments)


def test_nan_takes_the_first_candidate():
    arguments = kernel_inputs.nearest_drawn(F32, 2, 9, 4)
    arguments["data"][1, 0] = torch.nan
    for noise, index in both("nearest_drawn", arguments):
        assert index[1] == 0 and noise.isfinite().all()


def test_rows_of_zero_are_not_read():
    arguments = kernel_inputs.flat_weights(F16, 9, 70)
    arguments["coefficients"][[2, 8]] = 0
    arguments["basis"][[2, 8]] = torch.nan
    found, _ = both("flat_weights", arguments)
    assert found.isfinite().all()
    agree("flat_weights", arguments)


def test_a_filter_is_a_matrix():
    gaussian = kernel_inputs.gaussian
    agree(
        "low_rank_apply",
        {
            "weight": gaussian(6, 5, 3, 3, dtype=BF16),
            "up": gaussian(6, 2, 1, 1),
            "down": gaussian(2, 5, 3, 3),
            "strength": -1.5,
        },
    )


@settings(max_examples=10, derandomize=True)
@given(
    st.integers(1, 150), st.integers(1, 150), st.integers(1, 200), st.sampled_from([F32, BF16, F16])
)
def test_cost_of_any_size(rows, columns, size, dtype):
    arguments = kernel_inputs.assignment_cost(dtype, rows, columns, size)
    found = dispatch.function("triton", "assignment_cost")(**arguments)
    products = -(arguments["data"].double() @ arguments["noise"].double().T)
    wanted = (
        products - products.mean(0, keepdim=True) - products.mean(1, keepdim=True) + products.mean()
    )
    assert (found - wanted).abs().max() <= 1e-5 * max(1.0, float(products.abs().max()))


@settings(max_examples=10, derandomize=True)
@given(st.integers(1, 20), st.integers(1, 2100), st.sampled_from([F16, BF16, I8]))
def test_flat_weights_of_any_size(rows, size, dtype):
    agree("flat_weights", kernel_inputs.flat_weights(dtype, rows, size))


@settings(max_examples=12, derandomize=True)
@given(
    st.integers(1, 40),
    st.integers(1, 200),
    st.integers(1, 3),
    st.sampled_from([1, 5, 16, 40, 72]),
    st.data(),
)
def test_attention_of_any_size(positions, keys, heads, channels, data):
    begin = data.draw(st.integers(0, keys - 1))
    count = data.draw(st.integers(1, keys - begin))
    agree(
        "mean_attention",
        kernel_inputs.mean_attention(F32, 1, positions, keys, heads, channels, count, begin),
    )


def test_tiles_that_are_masked_as_a_whole():
    """Padding before the text, of more keys than a tile has."""
    arguments = kernel_inputs.mean_attention(F32, 2, 9, 300, 2, 8, 40, 200, mask=(1, 1, 1))
    arguments["mask"][..., :WHOLLY_MASKED] = -torch.inf
    agree("mean_attention", arguments)


@pytest.mark.usefixtures("forced")
def test_public_functions_run_triton_when_forced(monkeypatch):
    calls = []
    original = dispatch.function
    monkeypatch.setattr(
        dispatch, "function", lambda backend, name: calls.append(backend) or original(backend, name)
    )
    large, small = torch.ones(64, 3), torch.ones(2, 3)
    for data in (large, small, large.double(), torch.ones(64, 0)):
        calls.append(tuple(data.shape))
        kernels.assignment_cost(data, data)
    assert calls == [
        (64, 3),
        "eager",
        "triton",
        (2, 3),
        "eager",
        (64, 3),
        "eager",
        (64, 0),
        "eager",
    ]
