"""A disk that fills while Train Sparse Autoencoder writes: one sentence, and the training goes on
once there is space.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch
from tapping import World

#: Chunks end at 6 and 12 steps: a state is written at each, then the autoencoder.
_STEPS = 12
_INPUTS = {
    "activation_id": "up-level1-repeat0-vit-out",
    "image_folder": "",
    "features": 32,
    "k": 4,
    "batch_size": 64,
    "learning_rate": 1e-3,
    "seed": 3,
    "steps": 2,
    "cfg": 3.0,
}


@pytest.fixture(scope="module")
def demo(app):
    return World(app, *app.run("GBX_LoadDemoModel", weights="avatars-v2"))


def _train(demo: World, name: str):
    (latent,) = demo.app.run("EmptyLatentImage", width=128, height=128, batch_size=1)
    prompts = "\n".join(f"portrait, {hair} hair" for hair in ("red", "black", "brown", "pink"))
    networks = {"model": demo.model, "clip": demo.clip, "latent": latent}
    inputs = {**networks, **_INPUTS, "prompts": prompts, "training_steps": _STEPS}
    return demo.app.run("GBX_TrainSparseAutoencoder", name=f"full/{name}", **inputs)[0]


def _tensors(autoencoder) -> list[torch.Tensor]:
    return [value for value in vars(autoencoder).values() if isinstance(value, torch.Tensor)]


def test_a_full_disk_ends_in_a_sentence_and_the_run_goes_on(demo, monkeypatch):
    import folder_paths

    output = Path(folder_paths.get_output_directory())
    #: Tests that kill a process leave unfinished files in this folder, too.
    unfinished = set(output.rglob("*.part"))
    fsync = os.fsync
    flushed: list[None] = []
    room = [10**6]

    def full(descriptor: int) -> None:
        flushed.append(None)
        if len(flushed) > room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    expected = _tensors(_train(demo, "whole"))
    writes = len(flushed)
    assert writes >= 3, "two states and the autoencoder"
    for number in range(writes):
        flushed.clear()
        room[0] = number
        with pytest.raises(Exception, match=r"cannot be written to .*: free space") as error:
            _train(demo, f"at_{number}")
        assert "\n" not in str(error.value)
        assert set(output.rglob("*.part")) <= unfinished
        room[0] = 10**6
        found = _tensors(_train(demo, f"at_{number}"))
        assert len(found) == len(expected)
        assert all(map(torch.equal, found, expected))
