"""The solvers agree, and lapx is used only where it has proved itself."""

import sys
import types

import numpy as np
import pytest
from glassbox.nodes.noise import solvers
from scipy.optimize import linear_sum_assignment


@pytest.fixture(autouse=True)
def fresh():
    solvers.lapx_works.cache_clear()
    yield
    solvers.lapx_works.cache_clear()


def stand_in(columns_of) -> types.ModuleType:
    """A module like lapx whose solver is the given function."""
    module = types.ModuleType("lap")

    def lapjvs(cost, extend_cost=None, return_cost=True, jvx_like=True, prefer_float32=True):
        assert not extend_cost and not return_cost and jvx_like
        return np.arange(len(cost)), columns_of(cost)

    module.lapjvs = lapjvs
    return module


def optimum(cost):
    return linear_sum_assignment(cost)[1]


def a_cost(size: int = 20) -> np.ndarray:
    return np.random.default_rng(3).standard_normal((size, size))


def test_scipy_is_the_default_without_lapx(monkeypatch):
    monkeypatch.setitem(sys.modules, "lap", None)
    columns, name = solvers.solve(a_cost())
    assert name == "scipy"
    assert columns.tolist() == optimum(a_cost()).tolist()


@pytest.fixture
def asked(monkeypatch):
    """What the kernels are asked for: shape and device; without lapx, and without a GPU."""
    monkeypatch.setitem(sys.modules, "lap", None)
    kernel, calls = solvers._kernel, []

    def on_the_cpu(cost, device):
        calls.append((cost.shape, device))
        return kernel(cost, "cpu")

    monkeypatch.setattr(solvers, "_kernel", on_the_cpu)
    return calls


def test_on_a_gpu_the_kernels_choose(asked):
    for rest, name in ((("auto", "cuda"), "kernels"), (("scipy", "cuda"), "scipy")):
        columns, found = solvers.solve(a_cost(), *rest)
        assert found == name and columns.tolist() == optimum(a_cost()).tolist()
    assert asked == [((1, 20, 20), "cuda"), ((20, 20), "cpu")]


def test_problems_of_one_size_go_to_a_gpu_together(asked):
    costs = [a_cost(size) + number for number, size in enumerate((5, 3, 5, 4, 3))]
    columns, name = solvers.solve_all(costs, "auto", "cuda")
    assert name == "kernels" and sorted(asked) == [((1, 4, 4), "cuda"), ((2, 3, 3), "cuda"), ((2, 5, 5), "cuda")]
    assert [one.tolist() for one in columns] == [optimum(cost).tolist() for cost in costs]


def test_groups_of_pictures_are_solved_together(asked):
    """The blocks of one caption each: as many answers as each alone gives, in one call on a GPU."""
    from glassbox.nodes.noise import assignment

    table = np.random.default_rng(0).standard_normal((9, 9))
    blocks = [[0, 3, 6], [8], [1, 4, 7], [2, 5]]
    columns, _ = assignment._solve_blocks(table, blocks, "auto", "cuda")
    assert [shape for shape, _ in sorted(asked)] == [(1, 2, 2), (2, 3, 3)]
    for block in blocks:
        assert columns[block].tolist() == [block[place] for place in optimum(table[np.ix_(block, block)])]
    assert assignment._solve_blocks(table, [[0], [1]], "auto", "cuda")[1] == "none"


def test_lapx_is_taken_where_it_finds_the_optimum(monkeypatch):
    monkeypatch.setitem(sys.modules, "lap", stand_in(optimum))
    columns, name = solvers.solve(a_cost())
    assert name == "lapx"
    assert columns.tolist() == optimum(a_cost()).tolist()
    assert solvers.solve(a_cost(), "scipy")[1] == "scipy"


def test_lapx_that_finds_another_assignment_is_left_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "lap", stand_in(lambda cost: np.arange(len(cost))))
    assert solvers.solve(a_cost())[1] == "scipy"


def test_the_package_lap_under_the_same_name_is_not_lapx(monkeypatch):
    monkeypatch.setitem(sys.modules, "lap", types.ModuleType("lap"))
    assert solvers.solve(a_cost())[1] == "scipy"
    with pytest.raises(RuntimeError, match="pip install"):
        solvers.solve(a_cost(), "lapx")


def test_the_real_lapx():
    pytest.importorskip("lap")
    if not solvers.lapx_works():
        pytest.skip("the module lap is not lapx")
    for size in (2, 31, 128):
        assert solvers.solve(a_cost(size), "lapx")[0].tolist() == optimum(a_cost(size)).tolist()


def test_an_unknown_solver_is_named():
    with pytest.raises(ValueError, match="There is no solver magic"):
        solvers.solve(a_cost(), "magic")
