"""What a running node sends to the canvas: only to the client that has queued it, and not too
often.
"""

from types import SimpleNamespace

import pytest


@pytest.fixture
def live(app):
    return app.module("nodes.host.progress")


@pytest.fixture
def sent(live, monkeypatch):
    """What a server with a canvas is requested to send."""
    sent = []
    server = SimpleNamespace(client_id="canvas", send_sync=lambda *message: sent.append(message))
    monkeypatch.setattr(live, "running_server", lambda: server)
    return sent


@pytest.fixture
def running(app):
    """A node that runs, made by the node 7 of the canvas."""
    from comfy_execution import progress, utils
    from comfy_execution.graph import DynamicPrompt

    prompt = DynamicPrompt({"7": {}})
    prompt.add_ephemeral_node("7.0.0.1", {}, "7", "7")
    progress.reset_progress_state("prompt", prompt)
    with utils.CurrentNodeContext("prompt", "7.0.0.1"):
        yield
    progress.reset_progress_state("", DynamicPrompt({}))


def test_it_tells_the_canvas_that_has_queued_it(live, sent, running):
    live.LiveCurve().show(lambda: {"steps": 3})
    assert sent == [
        ("glassbox.curve", {"node": "7", "prompt_id": "prompt", "curve": {"steps": 3}}, "canvas")
    ]


def test_a_few_times_a_second(live, sent, running, monkeypatch):
    now = 50.0
    monkeypatch.setattr(live.time, "monotonic", lambda: now)
    curve = live.LiveCurve()
    for number in range(100):
        now = 50.0 + number / 100
        curve.show(lambda number=number: number)
    assert [message[1]["curve"] for message in sent] == [0, 25, 50, 75]


def test_without_a_listener_nothing_is_made(live, monkeypatch, running):
    for server in (None, SimpleNamespace(client_id=None)):
        monkeypatch.setattr(live, "running_server", lambda server=server: server)
        live.LiveCurve().show(lambda: pytest.fail("A curve was made without a client."))


def test_outside_of_a_run_nothing_is_made(live, sent):
    live.LiveCurve().show(lambda: pytest.fail("A curve was made without a client."))
    assert sent == []
