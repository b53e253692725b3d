"""Every Triton kernel in the interpreter against eager, over types, odd sizes, strides and numbers that are none."""

import kernel_inputs
import pytest
import torch
from glassbox import kernels
from glassbox.kernels import dispatch, proof, table
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = [
    pytest.mark.usefixtures("interpreter"),
    pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning"),  # NumPy's, in the interpreter
]

F32, BF16, F16, I8 = torch.float32, torch.bfloat16, torch.float16, torch.int8
#: Sums in float32 in another order; the interpreter multiplies exactly, a GPU in three TF32 products.
TOLERANCE = 3e-6
CASES = [
    ("pair_moments", F32, (1, 1)), ("pair_moments", BF16, (3, 2500)), ("pair_moments", F16, (2, 1024)),
    ("blend", F32, (1, 1)), ("blend", BF16, (3, 1500)), ("blend", F16, (2, 1024)),
    ("nearest_drawn", F32, (1, 1, 1)), ("nearest_drawn", BF16, (2, 1030, 3)), ("nearest_drawn", F16, (3, 7, 9)),
    ("assignment_cost", F32, (1, 1, 1)), ("assignment_cost", F32, (65, 3, 70)), ("assignment_cost", BF16, (5, 66, 130)),
    ("assignment_cost", F16, (64, 64, 64)),
    ("least_assignment", F32, (2,)), ("least_assignment", BF16, (2, 5)), ("least_assignment", F16, (9,)),
    ("best_match", F32, (1, 1, 1)), ("best_match", F32, (70, 131, 65)), ("best_match", BF16, (66, 5, 40)),
    ("best_match", F16, (64, 64, 64)), ("best_match", F32, (3, 70, 20, False)),
    ("flat_weights", F32, (1, 1)), ("flat_weights", BF16, (9, 1300)), ("flat_weights", F16, (8, 512)),
    ("flat_weights", I8, (11, 2100)),
    ("apply_point", F32, (1, 1, 1)), ("apply_point", BF16, (9, 65, 3, 4, 130)), ("apply_point", F16, (3, 64, 64)),
    ("apply_point", I8, (11, 70, 66, 5, 5, 200, 10)),
    ("low_rank_apply", F32, (1, 1, 1)), ("low_rank_apply", BF16, (65, 70, 4)), ("low_rank_apply", F16, (3, 64, 40)),
    ("neuron_moments", F32, (1, 1, 1)), ("neuron_moments", BF16, (3, 77, 70)), ("neuron_moments", F16, (2, 16, 64)),
    ("mean_attention", F32, (1, 1, 1, 1, 1)), ("mean_attention", F32, (2, 66, 77, 2, 40)),
    ("mean_attention", BF16, (1, 5, 130, 3, 64, [2, 0], [76, 3, 3])), ("mean_attention", F16, (1, 33, 3, 1, 160)),
]  # fmt: skip


def both(operation, arguments):
    """Results of Triton and of eager."""
    assert table.unfit(operation, arguments) is None
    return tuple(dispatch.function(backend, operation)(**arguments) for backend in ("triton", "eager"))


def agree(operation, arguments):
    found, wanted = (proof.compared(operation, result) for result in both(operation, arguments))
    assert proof.disagreement(found, wanted, TOLERANCE, proof.scale(operation, arguments)) is None


@pytest.mark.parametrize(("operation", "dtype", "sizes"), CASES)
def test_against_eager(operation, dtype, sizes):
    agree(operation, getattr(kernel_inputs, operation)(dtype, *sizes))


def test_every_operation_has_cases():
    assert {operation for operation, *_ in CASES} == set(table.TABLE)


@pytest.mark.parametrize("operation", sorted(table.TABLE))
def test_results_do_not_depend_on_the_run(operation):
    sizes = next(sizes for name, dtype, sizes in CASES if name == operation and dtype == BF16)
    arguments = getattr(kernel_inputs, operation)(BF16, *sizes)
    first, second = (dispatch.function("triton", operation)(**arguments) for _ in range(2))
    pairs = zip(first, second, strict=True) if isinstance(first, tuple) else [(first, second)]
    assert all(torch.equal(*pair) for pair in pairs)


@pytest.mark.parametrize("programs", [1, 7])
@pytest.mark.parametrize(
    ("operation", "sizes"),
    [("pair_moments", (2, 5000)), ("assignment_cost", (3, 4, 700)), ("best_match", (10, 200, 8)),
     ("flat_weights", (40, 600)), ("apply_point", (40, 9, 30, 70, 8))],
)  # fmt: skip
def test_any_number_of_pieces(monkeypatch, programs, operation, sizes):
    from glassbox.kernels.triton import common

    monkeypatch.setattr(common, "PROGRAMS", programs)
    agree(operation, getattr(kernel_inputs, operation)(F32, *sizes))


@pytest.mark.parametrize("operation", ["pair_moments", "blend", "assignment_cost", "best_match", "neuron_moments"])
def test_strides(operation):
    """Rows that are far apart, every second one, and one row that stands for all."""
    sizes = {"assignment_cost": (4, 4, 9), "best_match": (4, 4, 9), "neuron_moments": (3, 4, 9)}.get(operation, (4, 9))
    arguments = getattr(kernel_inputs, operation)(F32, *sizes)
    first = next(iter(arguments))
    sparse = torch.zeros(2 * sizes[0], *arguments[first].shape[1:-1], 20)[::2, ..., 3:12]
    for view in (sparse.copy_(arguments[first]), arguments[first][:1].expand(sizes[0], *arguments[first].shape[1:])):
        assert not view.is_contiguous()
        agree(operation, arguments | {first: view})


def test_types_that_differ():
    agree("assignment_cost", {"data": kernel_inputs.gaussian(3, 40, dtype=BF16),
                              "noise": kernel_inputs.gaussian(5, 40, seed=1)})  # fmt: skip
    agree("low_rank_apply", kernel_inputs.low_rank_apply(F32, 5, 6, 2)
          | {"weight": kernel_inputs.gaussian(5, 6, dtype=BF16)})  # fmt: skip


@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(
    ("operation", "sizes", "name"),
    [("pair_moments", (3, 40), "noise"), ("blend", (3, 40), "data"), ("assignment_cost", (3, 4, 40), "data"),
     ("low_rank_apply", (5, 6, 2), "up"), ("flat_weights", (5, 40), "basis"), ("neuron_moments", (2, 3, 40), "values"),
     ("mean_attention", (1, 5, 6, 2, 8), "query")],
)  # fmt: skip
def test_numbers_that_are_none(operation, sizes, name, odd):
    """They make the same places of the result not finite as in eager, and leave all others right."""
    arguments = getattr(kernel_inputs, operation)(F32, *sizes)
    arguments[name].flatten()[1] = odd
    agree(operation, arguments)


def test_nan_in_a_match():
    arguments = kernel_inputs.best_match(F32, 70, 66, 8)
    arguments["targets"][65, 0] = arguments["targets"][3, 0] = torch.nan
    (similarity, index, _), (_, wanted, _) = both("best_match", arguments)
    assert similarity.isnan().all() and index.tolist() == wanted.tolist() == [3] * 70
    arguments = kernel_inputs.best_match(F32, 3, 4, 8, mutual=False)
    arguments["queries"][1, 0] = torch.nan
    (similarity, index), (expected, wanted) = both("best_match", arguments)
    assert torch.equal(index, wanted) and torch.allclose(similarity, expected, equal_nan=True)


def test_nan_takes_the_first_candidate():
    arguments = kernel_inputs.nearest_drawn(F32, 2, 9, 4)
    arguments["data"][1, 0] = torch.nan
    for noise, index in both("nearest_drawn", arguments):
        assert index[1] == 0 and noise.isfinite().all()


def test_rows_of_zero_are_not_read():
    arguments = kernel_inputs.flat_weights(F32, 9, 70)
    arguments["coefficients"][[2, 8]] = 0
    arguments["basis"][[2, 8]] = torch.nan
    found, _ = both("flat_weights", arguments)
    assert found.isfinite().all()
    agree("flat_weights", arguments)


def test_a_filter_is_a_matrix():
    gaussian = kernel_inputs.gaussian
    agree("low_rank_apply", {"weight": gaussian(6, 5, 3, 3), "up": gaussian(6, 2, 1, 1), "down": gaussian(2, 5, 3, 3),
                             "strength": -1.5})  # fmt: skip


def test_weights_of_several_types_and_shapes():
    arguments = kernel_inputs.apply_point(F32, 3, 6, 45, 70, 8, rank=3)
    arguments["weights"][0] = kernel_inputs.gaussian(6, 5, 3, 3, dtype=BF16)
    found, wanted = both("apply_point", arguments)
    assert [weight.dtype for weight in found] == [BF16, F32] and found[0].shape == (6, 5, 3, 3)
    assert proof.disagreement(found, wanted, TOLERANCE) is None
    assert both("apply_point", arguments | {"weights": [], "places": []}) == ((), ())
    arguments["weights"][1] = arguments["weights"][1].T.contiguous().T
    assert table.unfit("apply_point", arguments) == "weights is not contiguous"


def test_a_network_takes_one_launch(monkeypatch):
    from glassbox.kernels.triton import low_rank

    launched = []

    class Counted:
        def __init__(self, name):
            self.name, self.kernel = name, getattr(low_rank, name)

        def __getitem__(self, grid):
            launched.append((self.name, grid))
            return self.kernel[grid]

    for name in ("_combine", "_apply", "_apply_all"):
        monkeypatch.setattr(low_rank, name, Counted(name))
    arguments = kernel_inputs.apply_point(BF16, 9, 65, 30, 7, 130, 5, 5)
    arguments["weights"][1] = arguments["weights"][1].to(F16)
    agree("apply_point", arguments)
    size = len(arguments["mean"])
    assert launched == [("_apply_all", (-(-size // 128) + 2 + 3 + 1,))]  # blocks of the vector, and tiles of 64 x 64


@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(1, 80), st.integers(1, 80)), min_size=1, max_size=5), st.integers(1, 5),
       st.sampled_from([F32, BF16, I8]))  # fmt: skip
def test_any_network(shapes, rank, dtype):
    sizes = [size for shape in shapes for size in shape]
    agree("apply_point", kernel_inputs.apply_point(dtype, 4, *sizes, rank=rank))


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 4), st.integers(0, 1000))
def test_ties_of_small_integers(rows, columns, size, seed):
    """Vectors of -1, 0 and 1 tie all the time: index and mutual must be those of eager, the lowest."""
    generator = torch.Generator().manual_seed(seed)
    queries, targets = (torch.randint(-1, 2, (n, size), generator=generator).float() for n in (rows, columns))
    found, _ = both("best_match", {"queries": queries, "targets": targets, "mutual": True})
    norms = [x.norm(dim=1).clamp_min(1e-12).reciprocal() for x in (queries, targets)]
    whole = (queries @ targets.T) * norms[0][:, None] * norms[1][None, :]
    assert torch.equal(found[1], whole.argmax(1))
    assert torch.equal(found[2], whole.argmax(0)[found[1]] == torch.arange(rows))


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.integers(1, 5), st.integers(1, 2100), st.sampled_from([F32, BF16, F16]))
def test_moments_and_blend_of_any_size(rows, size, dtype):
    agree("pair_moments", kernel_inputs.pair_moments(dtype, rows, size))
    agree("blend", kernel_inputs.blend(dtype, rows, size))


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 200), st.sampled_from([F32, BF16, F16]))
def test_cost_of_any_size(rows, columns, size, dtype):
    arguments = kernel_inputs.assignment_cost(dtype, rows, columns, size)
    found = dispatch.function("triton", "assignment_cost")(**arguments)
    products = -(arguments["data"].double() @ arguments["noise"].double().T)
    wanted = products - products.mean(0, keepdim=True) - products.mean(1, keepdim=True) + products.mean()
    assert (found - wanted).abs().max() <= 1e-5 * max(1.0, float(products.abs().max()))


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.integers(1, 20), st.integers(1, 2100), st.sampled_from([F32, BF16, I8]))
def test_flat_weights_of_any_size(rows, size, dtype):
    agree("flat_weights", kernel_inputs.flat_weights(dtype, rows, size))


@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.integers(1, 40), st.integers(1, 80), st.integers(1, 3), st.sampled_from([1, 5, 16, 40]), st.data())
def test_attention_of_any_size(positions, keys, heads, channels, data):
    chosen = data.draw(st.lists(st.integers(0, heads - 1), min_size=1, max_size=4))
    tokens = data.draw(st.lists(st.integers(0, keys - 1), min_size=1, max_size=4))
    agree("mean_attention", kernel_inputs.mean_attention(F32, 1, positions, keys, heads, channels, chosen, tokens))


@pytest.mark.usefixtures("forced")
def test_public_functions_run_triton_when_forced(monkeypatch):
    calls = []
    original = dispatch.function
    monkeypatch.setattr(dispatch, "function", lambda backend, name: calls.append(backend) or original(backend, name))
    kernels.assignment_cost(torch.ones(2, 3), torch.ones(2, 3))
    kernels.assignment_cost(torch.ones(2, 0), torch.ones(2, 0))
    kernels.assignment_cost(torch.ones(2, 3).double(), torch.ones(2, 3).double())
    assert calls == ["triton", "eager", "eager"]
