"""A server in a process of its own: Stop and Finish now by HTTP while a training runs, and the same
prompt again.
"""

import json
import urllib.error
import urllib.parse
import urllib.request

import pytest
from resumable import BEFORE, NODES

from tools.launcher.api import PromptError

_NODE = "GBX_TrainLoraImmiscible"


def prompt(client, name, steps):
    """Train LoRA under a name; its losses are shown as text."""
    nodes = {id_: BEFORE[id_] for id_ in ("world", "positive", "image", "latent")}
    required = client.object_info()[_NODE]["input"]["required"]
    given = {name: spec[1]["default"] for name, spec in required.items() if "default" in spec[1]}
    given |= {
        name: spec[1]["options"][0]
        for name, spec in required.items()
        if "options" in spec[1] and name not in given
    }
    given |= {
        **NODES[_NODE][0],
        "checkpoint_name": f"server/{name}",
        "checkpoint_interval": 1000,
        "steps": steps,
    }
    nodes |= {"7": (_NODE, given), "losses": ("PreviewAny", {"source": ["7", 2]})}
    return {id_: {"class_type": kind, "inputs": inputs} for id_, (kind, inputs) in nodes.items()}


def losses(entry):
    return json.loads(entry["outputs"]["losses"]["text"][0])


def cached(entry):
    return next(
        data["nodes"] for kind, data in entry["status"]["messages"] if kind == "execution_cached"
    )


def followed(client, given, at_step, act):
    """The history entry of a prompt, and its training's first step; ``act`` is called once when it
    is at a step.
    """
    id_, steps = client.queue(given), []

    def on_progress(progress):
        if progress.node == "7" and progress.value >= 1:
            steps.append(progress.value)
            if progress.value >= at_step and act is not None and not acted:
                acted.append(act(id_))

    acted = []
    return client.wait(id_, on_progress), steps[0] if steps else 0


def finish(client, prompt_id, client_id):
    """Status and answer of the route."""
    query = urllib.parse.urlencode({"prompt_id": prompt_id, "node": "7", "client_id": client_id})
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"{client.url}/glassbox/finish?{query}", b"")
        ) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refusal:
        return refusal.code, json.load(refusal)


def test_a_training_interrupted_by_http_goes_on(client):
    whole, _ = followed(client, prompt(client, "whole", 40), 0, None)
    with pytest.raises(PromptError, match="interrupted"):
        followed(client, prompt(client, "stopped", 40), 3, lambda id_: client.interrupt())
    again, first = followed(client, prompt(client, "stopped", 40), 0, None)
    assert "7" not in cached(again) and first >= 3, "it began from the start"
    assert losses(again) == losses(whole) and len(losses(again)["loss"]) == 40


def test_finish_now_is_for_the_client_that_queued_it(client):
    answers = []

    def press(id_):
        answers.append(finish(client, id_, "somebody else"))
        answers.append(finish(client, "another prompt", client._listeners[id_]))
        answers.append(finish(client, id_, client._listeners[id_]))

    entry, _ = followed(client, prompt(client, "finished", 100_000), 3, press)
    assert [status for status, _ in answers] == [400, 400, 200]
    assert "another client" in answers[0][1]["error"] and "not at work" in answers[1][1]["error"]
    done, planned = losses(entry)["finished_at"]
    assert 3 <= done == len(losses(entry)["loss"]) < planned == 100_000
    assert "7" in cached(followed(client, prompt(client, "finished", 100_000), 0, None)[0])
    assert finish(client, "a prompt", "somebody")[0] == 400
