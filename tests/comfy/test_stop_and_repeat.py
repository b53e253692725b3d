"""Stop in the middle of a node, and the same prompt queued again in the same server: it goes on
where it was.
"""

import pytest
import resumable
from resumable import equal


@pytest.fixture(scope="module", autouse=True)
def files(app, tmp_path_factory):
    resumable.make_files(app, tmp_path_factory.mktemp("resumable"))


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


_FREE = {
    "GBX_TrainLoraImmiscible": "validation_interval",
    "GBX_W2WInvert": "preview_interval",
    "GBX_TrainSlider": "checkpoint_interval",
    "GBX_W2WTrainSpace": "checkpoint_interval",
}


@pytest.mark.parametrize(("node", "free"), _FREE.items())
def test_what_was_finished_early_stays_so_in_another_server(app, monkeypatch, node, free):
    """Until an input of the node changes: then it goes on, to what the whole is."""
    progress, name = app.module("nodes.host.progress"), f"{node}_finished"
    check = progress.FinishNow.check

    def pressing(self):
        pressed.append(None)
        if len(pressed) == 2:
            self._pressed.set()
        check(self)

    with monkeypatch.context() as patched:
        pressed = []
        patched.setattr(progress.FinishNow, "check", pressing)
        finished = resumable.Queue(app, node).run(name, monkeypatch)
    assert 2 <= len(pressed) <= 3  # once more after what is validated and sampled at the end
    again = resumable.Queue(app, node)
    assert equal(again.run(name, monkeypatch), finished)
    kept_work = again.work
    went_on = again.run(name, monkeypatch, **{free: 7})
    assert again.work > kept_work and not equal(went_on, finished)
    assert equal(went_on, resumable.Queue(app, node).run(f"{name}_whole", monkeypatch, **{free: 7}))
