"""Exact solvers of the linear assignment problem."""

from __future__ import annotations

import functools

import numpy as np
import torch

from ...kernels import least_assignment

SOLVERS = ("auto", "scipy", "lapx")


def solve(cost: np.ndarray, solver: str = "auto", device: torch.device | str = "cpu") -> tuple[np.ndarray, str]:
    """The column of each row in an assignment of least total cost, and the solver that found it.

    `cost` is square. "auto" takes lapx where it is installed and has proved itself (three to five times as fast), else
    SciPy, or on a GPU `device` an auction where that has proved itself faster than SciPy ("kernels" then, whichever
    it was). All of them release the GIL. Raises RuntimeError when lapx is asked for and cannot be used.
    """
    (columns,), name = solve_all([cost], solver, device)
    return columns, name


def solve_all(
    costs: list[np.ndarray], solver: str = "auto", device: torch.device | str = "cpu"
) -> tuple[list[np.ndarray], str]:
    """`solve` of several problems; on a GPU all of one size go there together, a program a problem."""
    if solver not in SOLVERS:
        raise ValueError(f"There is no solver {solver}: choose one of {', '.join(SOLVERS)}.")
    if solver == "lapx" and not lapx_works():
        raise RuntimeError(
            "The solver lapx is not installed, or another package has put its own 'lap' in its place: "
            "pip install --force-reinstall lapx, or choose the solver auto."
        )
    if solver != "scipy" and lapx_works():
        return [_lapx(cost) for cost in costs], "lapx"
    if solver != "auto" or torch.device(device).type != "cuda":
        return [_kernel(cost, "cpu") for cost in costs], "scipy"
    found: dict[int, np.ndarray] = {}
    for size in {len(cost) for cost in costs}:
        numbers = [number for number, cost in enumerate(costs) if len(cost) == size]
        found |= dict(zip(numbers, _kernel(np.stack([costs[number] for number in numbers]), device), strict=True))
    return [found[number] for number in range(len(costs))], "kernels"


def _kernel(cost: np.ndarray, device: torch.device | str) -> np.ndarray:
    """Of one problem or several of a size: SciPy on the CPU; on a GPU what is faster there."""
    return least_assignment(torch.from_numpy(cost).to(device))[0].cpu().numpy()


def _lapx(cost: np.ndarray) -> np.ndarray:
    import lap

    _, columns = lap.lapjvs(np.ascontiguousarray(cost), extend_cost=False, return_cost=False, jvx_like=True)
    return np.asarray(columns)


@functools.cache
def lapx_works() -> bool:
    """Whether lapx is installed and finds the optimum that SciPy finds, tried once on a seeded problem.

    The packages lap and lapx share the module name `lap`, and only lapx has `lapjvs`.
    """
    try:
        import lap
    except ImportError:
        return False
    if not hasattr(lap, "lapjvs"):
        return False
    cost = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    return np.array_equal(_lapx(cost), _kernel(cost, "cpu"))
