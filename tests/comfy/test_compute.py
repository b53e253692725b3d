"""Work follows ComfyUI's device, with its memory requests, and is the same there: on a device that there is not."""

import pytest
import torch
from spy_device import SpyDevice


@pytest.fixture
def compute(app):
    return app.module("nodes.host.compute")


@pytest.fixture
def spy(app, compute, monkeypatch):
    """ComfyUI's device is a spy, and the bytes that it was requested to free are noted."""
    import comfy.model_management as management

    spy, spy.requests = SpyDevice(), []
    monkeypatch.setattr(compute, "_DEVICES", {spy.device.type})
    monkeypatch.setattr(management, "get_torch_device", lambda: spy.device)
    monkeypatch.setattr(management, "free_memory", lambda bytes_, device: spy.requests.append((bytes_, device)))
    return spy


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _works(app):
    """What nodes do on the device, by name: the work and its tensors."""
    module = lambda name: app.module(f"nodes.activations.{name}")  # noqa: E731
    match, heat = module("correspondence"), module("token_heatmap")
    points = torch.tensor([[3.0, 4.0], [30.0, 11.0]])
    maps = {"a": drawn(1, 2, 12, 6).softmax(-1), "b": drawn(1, 3, 4, 6).softmax(-1)}
    feature, other = drawn(5, 6, 7), drawn(5, 4, 6, seed=1)
    return {
        "points": (lambda *t: match.nearest_points(*t, 32), feature, other, points),
        "mutual points": (lambda *t: (match.mutual_points(*t, 32),), feature, other, points, points),
        "mask": (lambda *t: match.transfer_mask(*t, True), feature, other, drawn(6, 7, seed=2).sigmoid()),
        "similarity": (match.similarity, feature[None], drawn(2, 5, seed=3)),
        "colors": (lambda one: module("pca").pca_colors(one), drawn(2, 5, 6, 7)),
        "word": (
            lambda a, b: heat.daam_heat_map({"a": a, "b": b}, {"a": (3, 4), "b": (2, 2)}, [1, 3], 6),
            *maps.values(),
        ),
    }


@pytest.mark.parametrize("name", ["points", "mutual points", "mask", "similarity", "colors", "word"])
def test_work_is_done_on_the_device_and_comes_back(app, compute, spy, name):
    work, *tensors = _works(app)[name]
    expected = work(*tensors)
    with spy:
        found = compute.on_device(work, *tensors)
    assert spy.moves == {"there": len(tensors), "back": len(found) if isinstance(found, tuple) else 1}
    assert len(spy.requests) == 1 and spy.requests[0][0] > 4 * sum(one.numel() for one in tensors)
    for one, other in zip(*((x if isinstance(x, tuple) else (x,)) for x in (expected, found)), strict=True):
        assert torch.equal(one, other) and not spy.is_there(other)


def test_on_the_cpu_nothing_moves(compute):
    tensor = drawn(3)
    assert compute.on_device(lambda one: one, tensor) is tensor


def test_work_without_room_is_done_on_the_cpu(compute, spy, monkeypatch):
    import comfy.model_management as management

    tried, cleared = [], []
    monkeypatch.setattr(management, "soft_empty_cache", lambda: cleared.append(1))

    def work(tensor):
        tried.append(spy.is_there(tensor))
        if spy.is_there(tensor):
            raise management.OOM_EXCEPTION("no room")
        return tensor + 1

    with spy:
        assert compute.on_device(work, torch.ones(2)).tolist() == [2, 2]
    assert tried == [True, False] and cleared == [1]


def test_an_autoencoder_is_trained_on_the_device_and_saved_from_the_cpu(app, spy):
    training = app.module("nodes.activations.autoencoder_training")
    settings, points = training.TrainingSettings(12, 3, 1e-2, 2, 0), drawn(64, 6)

    def trained(move):
        with torch.inference_mode(False), torch.enable_grad():
            trainer = training.Trainer.start(settings, move(points.clone()))
            for batch in move(points.clone()).split(16):
                trainer.step(batch)
            again = training.Trainer(settings, trainer.state(), move(points.clone()).device)
            again.step(move(points.clone())[:16])
            return again.state(), again.autoencoder("mid-vit-out", {})

    expected, _ = trained(lambda one: one)
    with spy:
        found, autoencoder = trained(lambda one: one.to(spy.device))
    assert not any(spy.is_there(one) for one in (*found.values(), autoencoder.encoder, autoencoder.usual))
    assert all(torch.equal(expected[name], found[name]) for name in expected)
