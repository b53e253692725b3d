"""Triton's interpreter: the kernels run on CPU tensors when TRITON_INTERPRET is set before anything
imports Triton.
"""

import importlib
import importlib.util
import os
import pkgutil

import pytest
import torch


def _import_interpreted() -> str | None:
    """Import every kernel for the interpreter; the reason why not, or None. The rest of the process
    stays as it is.
    """
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed (it exists for Linux; requirements-dev.txt lists it)"
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        package = importlib.import_module("glassbox.kernels.triton")
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{module.name}")
        # The first call imports more of Triton.
        drawn = importlib.import_module(f"{package.__name__}.nearest_drawn").nearest_drawn
        drawn(torch.ones(1, 1), torch.zeros(1, dtype=torch.int64), 1)
    finally:
        os.environ.pop("TRITON_INTERPRET")
        if before is not None:
            os.environ["TRITON_INTERPRET"] = before
    interpreted = importlib.import_module("glassbox.kernels.triton.common").INTERPRETED
    return (
        None
        if interpreted
        else "something imported Triton before these tests, without its interpreter"
    )


_why_not = _import_interpreted()


@pytest.fixture(scope="session")
def interpreter():
    """For tests that run Triton kernels on the CPU."""
    if _why_not:
        pytest.skip(_why_not)


@pytest.fixture
def forced(interpreter):
    """The Triton backend wherever it takes the input."""
    from glassbox import kernels

    before = kernels.use("triton")
    yield
    kernels.use(before)
