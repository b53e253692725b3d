"""Stop in the middle of a node, and the same prompt queued again in the same server: it goes on where it was."""

import pytest
import resumable
import torch


@pytest.fixture(scope="module", autouse=True)
def loras(app, tmp_path_factory):
    resumable.make_loras(app, tmp_path_factory.mktemp("resumable"))


def content(value):
    """The numbers of an output."""
    if hasattr(value, "coefficients"):
        return value.coefficients
    if hasattr(value, "layers"):
        return torch.cat([moments.mean for moments in value.layers.values()])
    if hasattr(value, "decoder"):
        return value.decoder
    if isinstance(value, dict):
        return torch.cat([tensor.flatten() for tensor in value.values()])
    return value


def equal(one, other):
    one, other = content(one), content(other)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.parametrize("node", resumable.NODES)
def test_the_same_prompt_goes_on_where_it_was_stopped(app, monkeypatch, node):
    queue = resumable.Queue(app, node)
    whole = queue.run(f"{node}_whole", monkeypatch)
    whole_work, name = queue.work, f"{node}_stopped"
    assert whole_work > 3
    assert queue.run(name, monkeypatch, stop_at=whole_work - whole_work // 4) is None
    again = queue.run(name, monkeypatch)
    assert not queue.cached and queue.work < whole_work, "it began from the start"
    assert equal(again, whole)
    assert queue.run(name, monkeypatch) is None or queue.cached


@pytest.mark.parametrize("cache", ["LRU", "RAM_PRESSURE", "NONE"])
def test_with_every_cache_of_comfyui(app, monkeypatch, cache):
    queue = resumable.Queue(app, "GBX_TrainLoraImmiscible", cache)
    whole = queue.run(f"repeat/{cache}_whole", monkeypatch)
    whole_work = queue.work
    assert queue.run(f"repeat/{cache}", monkeypatch, stop_at=whole_work - 2) is None
    again = queue.run(f"repeat/{cache}", monkeypatch)
    assert not queue.cached and queue.work < whole_work and equal(again, whole)
