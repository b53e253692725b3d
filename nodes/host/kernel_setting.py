"""The setting on the canvas that says which backend of kernels/ runs."""

from __future__ import annotations

from ... import kernels

#: Leave it to the environment variable.
ENVIRONMENT = "environment"


def choose(backend: str) -> dict[str, str]:
    """Force "eager" or "triton", or "auto", in this process, or ENVIRONMENT; raises ValueError for another name."""
    kernels.use(None if backend == ENVIRONMENT else backend)
    return {"backend": backend}
