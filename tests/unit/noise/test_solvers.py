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


def test_on_a_gpu_the_kernels_choose(monkeypatch):
    monkeypatch.setitem(sys.modules, "lap", None)
    asked = []
    monkeypatch.setattr(solvers, "_kernel", lambda cost, device: asked.append(device) or optimum(cost))
    assert [solvers.solve(a_cost(), *rest)[1] for rest in (("auto", "cuda"), ("scipy", "cuda"))] == ["kernels", "scipy"]
    assert asked == ["cuda", "cpu"]


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
