"""Work follows ComfyUI's device, with its memory requests, and is the same there: on a device that
there is not.
"""

import sys

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
    monkeypatch.setattr(
        management, "free_memory", lambda bytes_, device: spy.requests.append((bytes_, device))
    )
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
        "mutual points": (
            lambda *t: (match.mutual_points(*t, 32),),
            feature,
            other,
            points,
            points,
        ),
        "mask": (
            lambda *t: match.transfer_mask(*t, True),
            feature,
            other,
            drawn(6, 7, seed=2).sigmoid(),
        ),
        "similarity": (match.similarity, feature[None], drawn(2, 5, seed=3)),
        "colors": (lambda one: module("pca").pca_colors(one), drawn(2, 5, 6, 7)),
        "word": (
            lambda a, b: heat.daam_heat_maps(
                {"a": a, "b": b}, {"a": (3, 4), "b": (2, 2)}, [[1, 3]], 6
            )[0],
            *maps.values(),
        ),
    }


@pytest.mark.parametrize(
    "name", ["points", "mutual points", "mask", "similarity", "colors", "word"]
)
def test_work_is_done_on_the_device_and_comes_back(app, compute, spy, name):
    work, *tensors = _works(app)[name]
    expected = work(*tensors)
    with spy:
        found = compute.on_device(work, *tensors)
    assert spy.moves == {
        "there": len(tensors),
        "back": len(found) if isinstance(found, tuple) else 1,
    }
    assert len(spy.requests) == 1 and spy.requests[0][0] > 4 * sum(one.numel() for one in tensors)
    for one, other in zip(
        *((x if isinstance(x, tuple) else (x,)) for x in (expected, found)), strict=True
    ):
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
    settings, points = (
        training.TrainingSettings(features=12, k=3, learning_rate=1e-2, dead_after=2, seed=0),
        drawn(64, 6),
    )

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
    assert not any(
        spy.is_there(one) for one in (*found.values(), autoencoder.encoder, autoencoder.usual)
    )
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_clusters_are_found_on_the_device(app, compute, spy):
    """Four blobs: the clusters of scikit-learn, which is what the CPU has; without blobs as good a
    sum of squares.
    """
    kmeans = app.module("nodes.activations.kmeans")
    blobs = drawn(4, 16, seed=5)[:, :, None, None].expand(4, 16, 5, 6) + 0.05 * drawn(4, 16, 5, 6)
    with spy:
        found = kmeans.cluster(blobs, 4, 0, run=compute.on_device)
    assert spy.moves["there"] == 8 and torch.equal(found, kmeans.cluster(blobs, 4, 0))
    cloud = torch.nn.functional.normalize(drawn(1, 8, 20, 20, seed=6), dim=1)
    points = cloud.movedim(1, -1).flatten(0, 2)

    def squares(labels):
        groups = [points[labels.flatten() == label] for label in range(5)]
        return sum(float((group - group.mean(0)).square().sum()) for group in groups)

    with spy:
        found = kmeans.cluster(cloud, 5, 3, run=compute.on_device)
    assert squares(found) <= 1.03 * squares(kmeans.cluster(cloud, 5, 3))


def test_a_few_shot_segmenter_is_trained_and_used_on_the_device(app, compute, spy, monkeypatch):
    monkeypatch.setattr(
        sys.modules["torch.optim.adam"], "_device_dtype_check_for_fused", lambda *_, **__: None
    )
    few_shot, given = (
        app.module("nodes.activations.few_shot"),
        app.module("nodes.activations.activations"),
    )
    tapped = given.Activations(
        {"a": drawn(2, 3, 4, 4), "b": drawn(2, 2, 2, 2, seed=1)}, (given.Row(0),) * 2, 1.0, 5.0
    )
    labels = (drawn(2, 16, 16, seed=2) > 0).long()

    def made():
        run = compute.on_device
        segmenter = tapped.computed(
            run, lambda a, known: few_shot.train(a, known, ("x",), 16, 0, 1), labels
        )
        return segmenter, tapped.computed(run, lambda a: few_shot.segment(segmenter, a))

    segmenter = few_shot.train(tapped, labels, ("x",), 16, 0, 1)
    expected = few_shot.segment(segmenter, tapped)
    with spy:
        moved, found = made()
    assert spy.requests and spy.moves["there"] >= 5
    for name, value in segmenter.members.parameters.items():
        assert torch.equal(value, moved.members.parameters[name]) and not spy.is_there(
            moved.members.parameters[name]
        )
    assert torch.equal(found.labels, expected.labels) and torch.equal(
        found.divergence, expected.divergence
    )


def test_activations_are_scored_on_the_device(app, compute, spy, monkeypatch):
    monkeypatch.setattr(
        sys.modules["torch.optim.adam"], "_device_dtype_check_for_fused", lambda *_, **__: None
    )
    scores, given = (
        app.module("nodes.activations.label_scores"),
        app.module("nodes.activations.activations"),
    )
    tapped = given.Activations(
        {"a": drawn(3, 3, 4, 4), "b": drawn(3, 2, 2, 2, seed=1)}, (given.Row(0),) * 3, 1.0, 5.0
    )
    labels, points = (drawn(3, 16, 16, seed=2) > 0).long(), "\n\n".join(["1, 2\n9, 12"] * 3)

    def found(run):
        by_parts = scores.by_parts(tapped, labels, 2, 16, 0, 1, iter, run)
        return by_parts, scores.by_points(tapped, points, (16, 16), 16, 0.2, iter, run)

    expected = found(lambda work, *tensors: work(*tensors))
    with spy:
        assert found(compute.on_device) == expected
    assert spy.moves["there"] >= 8 and spy.moves["back"] == 4 and len(spy.requests) == 4
