"""Checkpoints of learned factors: one .safetensors file from which a learning resumes exactly."""

from __future__ import annotations

from pathlib import Path

import torch

from ..common.resume import Identity, check_adam, check_tensors, damaged, load_state, save_state
from .learned_factors import FactorLearning

_KIND = "learned mask"
_VERSION = 2
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def save(learning: FactorLearning, path: Path, identity: Identity, finished: str = "") -> None:
    """Write factors, Adam's moments and losses, whole or not at all; ``finished``: the inputs with
    which the person has finished it early.
    """
    state = learning.optimizer.state_dict()["state"].get(0, {})
    tensors = {name: torch.as_tensor(value) for name, value in state.items()}
    tensors["factors"] = learning.factors
    tensors["losses"] = torch.tensor(learning.losses, dtype=torch.float64)
    save_state(
        path,
        _KIND,
        version=_VERSION,
        identity=identity,
        tensors=tensors,
        about={"finished": finished},
    )


def restore(learning: FactorLearning, path: Path, identity: Identity, inputs: str) -> bool:
    """Set a learning to the state in its file, if there is one; whether it was finished early, with
    these inputs.

    Raises ValueError for a file of another learning, or of numbers that no learning leaves.
    """
    loaded = load_state(path, _KIND, _VERSION, identity)
    if loaded is None:
        return False
    tensors, about = loaded
    losses = tensors.get("losses", torch.zeros(()))
    shape = learning.factors.shape
    if losses.ndim != 1 or len(losses) > learning.settings.steps:
        raise damaged(path.name)
    shapes = {"factors": shape, "losses": losses.shape}
    check_tensors(path.name, tensors, shapes)
    factors = tensors["factors"].to(learning.factors.dtype)
    low = learning.settings.low
    if not torch.equal(factors.clamp(low, 1.0), factors):
        raise damaged(path.name)
    state = {}
    if len(losses):  # else it was stopped before its first step
        state = {name: tensors[name] for name in _MOMENTS if name in tensors}
        try:
            check_adam({0: state}, [learning.factors])
        except ValueError:
            raise damaged(path.name) from None
    with torch.inference_mode(False):
        with torch.no_grad():
            learning.factors.copy_(factors)
        if state:
            # Clones: ComfyUI's inference mode has read tensors that Adam could not change.
            moments = {name: value.clone() for name, value in state.items()}
            learning.optimizer.load_state_dict(
                {**learning.optimizer.state_dict(), "state": {0: moments}}
            )
    learning.losses[:] = losses.tolist()
    return isinstance(about, dict) and about.get("finished") == inputs
