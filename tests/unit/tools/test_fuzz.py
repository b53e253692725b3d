"""The prompts of `run.py fuzz`, and what counts as a readable end."""

from __future__ import annotations

import itertools
import json

import pytest
from robustness import fuzz, prompts
from robustness import trainers as trainer_prompts

from tools.launcher.errors import LaunchError

_OURS = {"python_module": "custom_nodes.comfyui-glassbox"}
_INFO = {
    "GBX_Load": {
        **_OURS,
        "input": {"required": {"device": [["cpu", "gpu"], {}]}},
        "output": ["MODEL", "CLIP"],
    },
    "GBX_Edit": {
        **_OURS,
        "input": {
            "required": {
                "model": ["MODEL", {}],
                "steps": ["INT", {"min": 1, "max": 1000, "default": 20}],
            },
            "optional": {"positive": ["CONDITIONING", {}], "text": ["STRING", {"multiline": True}]},
        },
        "output": ["MODEL"],
    },
    "CLIPTextEncode": {
        "input": {"required": {"text": ["STRING", {}], "clip": ["CLIP"]}},
        "output": ["CONDITIONING"],
    },
    "EmptyLatentImage": {
        "input": {"required": {"width": ["INT", {"min": 16}]}},
        "output": ["LATENT"],
    },
    "KSampler": {
        "input": {
            "required": {
                "model": ["MODEL"],
                "positive": ["CONDITIONING"],
                "latent_image": ["LATENT"],
                "steps": ["INT", {"default": 20, "min": 1, "max": 10000}],
            }
        },
        "output": ["LATENT"],
    },
}


@pytest.fixture(scope="module")
def generator():
    return prompts.Generator(_INFO, seed=3)


def test_prompt_depends_on_seed_and_number_only(generator):
    other = prompts.Generator(_INFO, seed=3)
    texts = [json.dumps(generator.make(number)) for number in range(40)]
    assert texts == [json.dumps(other.make(number)) for number in reversed(range(40))][::-1]
    assert len(set(texts)) > 30
    assert json.dumps(prompts.Generator(_INFO, seed=4).make(1)) != texts[1]


def test_nodes_of_the_pack_take_turns_and_end_in_an_output(generator):
    for number in range(40):
        prompt = generator.make(number)
        classes = [entry["class_type"] for entry in prompt.values()]
        assert generator.nodes[number % 2] in classes
        assert classes[-1] == "PreviewAny"


def test_steps_stay_small_and_most_sockets_are_filled(generator):
    prompts = [generator.make(number) for number in range(100)]
    samplers = [
        one["inputs"]
        for prompt in prompts
        for one in prompt.values()
        if one["class_type"] == "KSampler"
    ]
    assert samplers and all(inputs["steps"] <= 2 for inputs in samplers)
    assert all(isinstance(inputs["model"], list) for inputs in samplers)


def test_some_inputs_are_wrong(generator):
    edits = [
        entry["inputs"]
        for number in range(400)
        for entry in generator.make(number).values()
        if entry["class_type"] == "GBX_Edit"
    ]
    steps = [inputs.get("steps") for inputs in edits]
    assert None in steps and 0 in steps and 1001 in steps and any(value != value for value in steps)
    assert any(not isinstance(inputs.get("model"), list) for inputs in edits)


def test_pack_that_is_not_loaded_is_one_sentence():
    with pytest.raises(LaunchError, match="has not loaded the pack"):
        prompts.Generator({"KSampler": _INFO["KSampler"]}, seed=1)


@pytest.mark.parametrize(
    ("node", "error", "message", "kind"),
    [
        (
            "GBX_Edit",
            "ValueError",
            "There is no direction beard: choose one of glasses, hair.",
            "sentence",
        ),
        (
            "GBX_Edit",
            "glassbox.InputError",
            "W2W Edit: steps is 0: it must be at least 1.",
            "sentence",
        ),
        ("GBX_Edit", "ValueError", "bad", "bare"),
        ("GBX_Edit", "ValueError", "two lines of text\nare a paragraph and no sentence", "bare"),
        ("GBX_Edit", "KeyError", "'a long key of many words'", "bare"),
        ("GBX_Edit", "json.decoder.JSONDecodeError", "Expecting value: line 1 column 1", "bare"),
        ("GBX_Edit", "OSError", "[Errno 36] File name too long: '/models/x'", "bare"),
        (
            "GBX_Edit",
            "RuntimeError",
            "Cannot use weights_only=True with files of the legacy format.",
            "bare",
        ),
        ("KSampler", "RuntimeError", "Given groups=1", "stock"),
    ],
)
def test_ends_are_classified(node, error, message, kind):
    data = {"exception_type": error, "node_type": node, "exception_message": message}
    entry = {
        "status": {
            "status_str": "error",
            "messages": [["execution_start", {}], ["execution_error", data]],
        }
    }
    assert fuzz.outcome(entry, {})[0] == kind


def test_result_is_done():
    assert fuzz.outcome({"status": {"status_str": "success", "messages": []}}, {}) == ("done", "")


def test_messages_that_differ_in_numbers_are_one(tmp_path, monkeypatch):
    monkeypatch.setattr(fuzz, "FOLDER", tmp_path)
    state = fuzz.load_state(5)
    for number in range(3):
        state.note(number, "sentence", f"steps is {number}: it must be at least 4, not '{number}'.")
    state.next = 3
    state.save()
    again = fuzz.load_state(5)
    assert again.next == 3 and again.counts["sentence"] == 3
    ((message, entry),) = again.messages.items()
    assert message == "sentence: steps is #: it must be at least #, not #." and entry["count"] == 3
    assert fuzz.load_state(6).next == 0


def test_leftovers_are_found(tmp_path):
    (tmp_path / "models").mkdir()
    for name in ("space.safetensors.0123abcd.part", "space.safetensors", ".space.lock"):
        (tmp_path / "models" / name).touch()
    assert fuzz.leftovers(tmp_path) == ["models/space.safetensors.0123abcd.part"]


def test_a_prompt_that_ended_in_a_defect_is_tried_again_and_counted_once():
    state = fuzz.State(5)
    for number, (kind, message) in enumerate(
        [("done", ""), ("bare", "GBX_Edit: KeyError: 3"), ("died", "it ended")]
    ):
        state.note(number, kind, message)
    assert list(itertools.islice(state.numbers(), 4)) == [1, 2, 3, 4]
    state.note(1, "done", "")
    state.note(2, "bare", "GBX_Edit: KeyError: 4")
    assert {kind: count for kind, count in state.counts.items() if count} == {"done": 2, "bare": 1}
    assert [entry["count"] for entry in state.messages.values()] == [1]
    assert list(itertools.islice(state.numbers(), 2)) == [2, 3]


@pytest.mark.parametrize(("changes", "trainers"), [(12, 8), (13, 8), (8, 8), (1, 5), (9, 6)])
def test_each_trainer_meets_each_node_once(changes, trainers):
    count = changes * trainers
    pairs = [trainer_prompts.turns(number, changes, trainers) for number in range(count)]
    assert len(set(pairs)) == count
    assert {trainer for _, trainer in pairs[:trainers]} == set(range(trainers))


def test_a_run_of_trainers_goes_on_and_repeats_defects(tmp_path):
    ends = trainer_prompts.Ends(4)
    for number, kind in enumerate(("done", "bare", "sentence", "died", "done")):
        ends.kinds[number] = kind
        ends.seconds[number] = 0.5
    ends.save(tmp_path / "ends.json")
    again = trainer_prompts.Ends.load(tmp_path / "ends.json", 4)
    assert again == ends
    assert again.waiting(7, fuzz.DEFECTS) == [1, 3, 5, 6]
    assert trainer_prompts.Ends.load(tmp_path / "ends.json", 5).waiting(2, fuzz.DEFECTS) == [0, 1]
    values = {name: entry["value"] for name, entry in again.numbers(4).items()}
    assert values["trainers: done"] == 1 and values["trainers: died"] == 1
    assert sum(values.values()) == 4
    assert {entry["n"] for entry in again.numbers(4).values()} == {4}
