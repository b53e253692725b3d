"""ComfyUI's own templates, converted without a browser: every value fits the input that it goes to.

The package of templates is newer than the oldest ComfyUI, which knows few of their nodes; a newer
one, in COMFYUI_DIR, converts most of them.
"""

import copy
import json
from importlib import resources

import pytest

from tools.launcher import widgets, workflow

_CANVAS_ONLY = {"PrimitiveNode", "Reroute", "Note", "MarkdownNote"}
_TYPES = {"INT": (int, float), "FLOAT": (int, float), "BOOLEAN": bool, "STRING": str}
#: What only an open canvas can do, and what the templates' own ComfyUI has and this one has not.
_REFUSALS = ("needs a browser", "random choice in braces", "on this ComfyUI", "leads nowhere")
#: Inputs that have more choices in the templates' own ComfyUI than in 0.3.75 or 0.33.0.
_NEWER = {
    "CreateVideo.bit_depth",
    "ModelAttentionBackend.attention",
    "CLIPLoader.type",
    "DualCLIPLoader.type",
    "FluxKontextMultiReferenceLatentMethod.reference_latents_method",
}
#: Where comfy-cli differs: it keeps links from nodes that do not exist, and gives a number to a
#: socket.
_LOOKED_AT = {
    "3d_hunyuan3d_multiview_to_model.json",
    "3d_hunyuan3d_multiview_to_model_turbo.json",
    "video_wan_vace_14B_ref2v.json",
    "utility_interpolation_image_upscale.json",  # what a comparison showed last
}
_FEWEST = 5  # on ComfyUI 0.3.75; 226 on 0.33.0


def _templates():
    folder = resources.files("comfyui_workflow_templates_json") / "templates"
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        saved = json.loads(file.read_text("utf-8")) if file.name.endswith(".json") else None
        if isinstance(saved, dict) and isinstance(saved.get("nodes"), list):
            yield file.name, saved


def _levels(saved):
    return [saved, *((saved.get("definitions") or {}).get("subgraphs") or ())]


def _known(saved, object_info):
    """Whether this ComfyUI has all nodes of a saved canvas."""
    subgraphs = {level["id"] for level in _levels(saved)[1:]}
    types = {node["type"] for level in _levels(saved) for node in level["nodes"]}
    return types - subgraphs - _CANVAS_ONLY <= object_info.keys()


def _local(saved, object_info):
    """Whether all nodes run here: partner nodes change with their services, and their templates
    with them.
    """
    types = [node["type"] for level in _levels(saved) for node in level["nodes"]]
    return not any(object_info[type_].get("api_node") for type_ in types if type_ in object_info)


def _converted(saved, object_info):
    """The prompt, or None where a sentence says why there is none."""
    try:
        return workflow.to_prompt(copy.deepcopy(saved), object_info)
    except workflow.WorkflowError as error:
        assert any(reason in str(error) for reason in _REFUSALS), error
        return None


def _misfits(entry, info):
    """Values of a node that ComfyUI would refuse, or take for another input."""
    filled = entry["inputs"]
    for combo, key in widgets.dynamic_combos(info, filled):
        if key not in combo.keys:
            yield f"{combo.name} = {key}"
    for widget in widgets.widgets(info, filled):
        if widget.in_prompt and widget.name not in filled:
            yield f"{widget.name} is missing"
    kinds = {input_.name: input_ for input_ in widgets.inputs(info)}
    for combo, key in widgets.dynamic_combos(info, filled):
        kinds |= {input_.name: input_ for input_ in combo.chosen_inputs(key)}
    for name, value in filled.items():
        input_ = kinds.get(name)
        if (
            input_ is None
            or not input_.is_widget
            or isinstance(value, list | dict)
            or value is None
        ):
            continue
        if not isinstance(value, _TYPES.get(input_.kind, object)):
            yield f"{name} = {value!r} for {input_.kind}"
        choices = input_.options.get("options") if input_.kind == "COMBO" else None
        files = any("." in str(choice) for choice in (*(choices or ()), value))  # another person's
        if choices and not files and value not in choices:
            yield f"{name} = {value!r}, not one of {choices[:3]}"


def _plain(prompt, object_info):
    """A prompt without titles, optional inputs at their defaults, and inputs that this ComfyUI
    lacks.
    """
    return {
        id_: (
            entry["class_type"],
            dict(_changed(entry["inputs"], object_info[entry["class_type"]])),
        )
        for id_, entry in prompt.items()
    }


def _changed(filled, info):
    shown = list(widgets.inputs(info))
    for combo, key in widgets.dynamic_combos(info, filled):
        shown += combo.chosen_inputs(key)
    for name, value in filled.items():
        input_ = next((input_ for input_ in shown if input_.name == name), None)
        grown = any(name.startswith(f"{input_.name}.") for input_ in shown)
        if input_ is None and not grown:
            continue
        is_default = input_ is not None and not input_.required and value == _default(input_)
        if not is_default:
            yield name, value


def _default(input_):
    is_valued = input_.is_widget or input_.options.get("forceInput")
    return widgets.default_value(input_) if is_valued else None


def test_values_of_official_templates_fit_their_inputs(object_info):
    misfits = {}
    converted = 0
    for name, saved in _templates():
        is_ours = _known(saved, object_info) and _local(saved, object_info)
        prompt = _converted(saved, object_info) if is_ours else None
        if prompt is None:
            continue
        converted += 1
        for entry in prompt.values():
            for misfit in _misfits(entry, object_info[entry["class_type"]]):
                place = f"{entry['class_type']}.{misfit}"
                if place.partition(" ")[0] not in _NEWER:
                    misfits.setdefault(name, []).append(place)
    assert converted >= _FEWEST
    assert misfits == {}


def test_official_templates_become_the_prompts_that_comfy_cli_makes(object_info):
    """An optional input at its default is the same as one that is left out."""
    module = pytest.importorskip("comfy_cli.workflow_to_api", reason="comfy-cli is not installed")
    differing = {}
    for name, saved in _templates():
        is_ours = _known(saved, object_info) and _local(saved, object_info)
        prompt = _converted(saved, object_info) if is_ours else None
        if prompt is None:
            continue
        other = module.convert_ui_to_api(copy.deepcopy(saved), object_info)
        if _plain(prompt, object_info) != _plain(other, object_info):
            differing[name] = None
    assert set(differing) <= _LOOKED_AT
