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
    if solver not in SOLVERS:
        raise ValueError(f"There is no solver {solver}: choose one of {', '.join(SOLVERS)}.")
    if solver == "lapx" and not lapx_works():
        raise RuntimeError(
            "The solver lapx is not installed, or another package has put its own 'lap' in its place: "
            "pip install --force-reinstall lapx, or choose the solver auto."
        )
    if solver != "scipy" and lapx_works():
        return _lapx(cost), "lapx"
    if solver == "auto" and torch.device(device).type == "cuda":
        return _kernel(cost, device), "kernels"
    return _kernel(cost, "cpu"), "scipy"


def _kernel(cost: np.ndarray, device: torch.device | str) -> np.ndarray:
    """SciPy on the CPU; on a GPU what is faster there."""
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
