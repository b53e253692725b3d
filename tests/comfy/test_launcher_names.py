"""The launcher names nodes, inputs and option values as they are in the running ComfyUI."""

import pytest

from tools.launcher import check, screenshots, widgets


def _problems(class_type: str, values: dict, object_info: dict) -> list[str]:
    """What a node class does not know of some inputs."""
    known = {one.name: one for one in widgets.inputs(object_info[class_type])}
    problems = [f"{class_type} has no input {name}" for name in values if name not in known]
    for name in set(values) & set(known):
        options = known[name].options.get("options")
        if (
            known[name].kind == "COMBO"
            and options
            and values[name] not in options
            and not name.startswith("ckpt")
        ):
            problems.append(f"{class_type}.{name} has no option {values[name]}")
    return problems


@pytest.mark.parametrize("family", check.FAMILIES)
def test_prompts_of_the_check(family, object_info):
    prompt = check.FAMILIES[family]("model.safetensors")
    for entry in prompt.values():
        assert _problems(entry["class_type"], entry["inputs"], object_info) == []
        required = {
            one.name for one in widgets.inputs(object_info[entry["class_type"]]) if one.required
        }
        full = check.completed({"1": entry}, object_info)["1"]["inputs"]
        assert required <= set(full), entry["class_type"]
        for value in full.values():
            if isinstance(value, list):
                assert 0 <= value[1] < len(object_info[prompt[value[0]]["class_type"]]["output"])


@pytest.mark.parametrize("close_up", screenshots.CLOSE_UPS, ids=lambda one: one.name)
def test_values_of_close_ups(close_up, object_info):
    assert _problems(close_up.node, close_up.values, object_info) == []


def test_another_name_would_be_found(object_info):
    assert _problems("KSampler", {"sampler": "euler", "sampler_name": "bogus"}, object_info) == [
        "KSampler has no input sampler",
        "KSampler.sampler_name has no option bogus",
    ]
