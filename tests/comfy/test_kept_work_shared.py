"""Two nodes of one prompt that keep their work under one name, and prompts that wait in the queue
for it.

The second node gets the work of the first where its inputs are the same, and a sentence where they
differ.
"""

import newer
import pytest
import resumable
from resumable import BEFORE, NODES, Kept, equal

#: An input of each node, and another value, which is another piece of work.
OTHER = {
    "GBX_TrainLoraImmiscible": {"seed": 11},
    "GBX_W2WInvert": {"seed": 11},
    "GBX_OptimizeNeuronMask": {"seed": 11},
    "GBX_MemorizationScore": {"seed": 11},
    "GBX_NeuronStatistics": {"width": 128},
    "GBX_TrainSparseAutoencoder": {"seed": 11},
    "GBX_TrainSlider": {"seed": 11},
    "GBX_W2WTrainSpace": {"seed": 11},
}


@pytest.fixture(scope="module", autouse=True)
def files(app, tmp_path_factory):
    resumable.make_files(app, tmp_path_factory.mktemp("shared"))
    app.classes["TestKept"] = Kept


class Server:
    """An executor, and prompts of one node or of two under one name."""

    def __init__(self, node: str):
        self._node = node
        self._executor = newer.executor("CLASSIC")

    def run(self, name: str, *changes: dict):
        """Run a prompt with a node for each of ``changes``; what they gave, and the message of the
        error, or None.
        """
        inputs, file, output = NODES[self._node]
        prompt = {
            place: {"class_type": kind, "inputs": given} for place, (kind, given) in BEFORE.items()
        }
        for number, changed in enumerate(changes):
            prompt[f"1{number}"] = {
                "class_type": self._node,
                # A value that no node reads keeps ComfyUI from taking one for the other.
                "inputs": {**inputs, file: f"{self._node} {name}", **changed, "_copy": number},
            }
            prompt[f"kept{number}"] = {
                "class_type": "TestKept",
                "inputs": {"value": [f"1{number}", output], "_copy": number},
            }
        Kept.values.clear()
        self._executor.execute(
            prompt, "prompt", {}, [key for key in prompt if key.startswith("kept")]
        )
        messages = dict(self._executor.status_messages)
        return list(Kept.values), messages.get("execution_error", {}).get("exception_message")


@pytest.mark.slow
@pytest.mark.endurance
@pytest.mark.parametrize("node", OTHER)
def test_two_nodes_under_one_name(app, node):
    """Of the same inputs both give the same; of others one of them gives what it should alone."""
    server = Server(node)
    (alone,), error = server.run("alone", {})
    assert error is None
    (other,), error = server.run("other alone", OTHER[node])
    assert error is None and not equal(alone, other)
    both, error = server.run("together", {}, {})
    assert error is None
    assert len(both) == 2 and all(equal(value, alone) for value in both)
    given, error = server.run("unlike", {}, OTHER[node])
    assert "made with another" in error
    assert all(equal(value, alone) or equal(value, other) for value in given)


@pytest.mark.parametrize("node", OTHER)
def test_prompts_that_wait_for_one_name(app, node):
    """Queued before the first has run: the second of other inputs is refused, the third of the
    first's goes on with the first's work.
    """
    server = Server(node)
    (first,), error = server.run("queue", {})
    assert error is None
    given, error = server.run("queue", OTHER[node])
    assert not given and "made with another" in error
    (third,), error = Server(node).run("queue", {})
    assert error is None and equal(third, first)
