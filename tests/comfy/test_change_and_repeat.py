"""Each input of every node that keeps work, changed once under the same name: refused by a sentence, or made again.

The inputs are those of the schema, so that a new one is tried here. What is kept is the whole first run;
a run with the change and a name of its own says what is right.
"""

from pathlib import Path

import pytest
import resumable
import torch

#: Inputs that change nothing of what is kept: how often it is written or shown, and with how much memory.
FREE = {
    "GBX_TrainLoraImmiscible": {
        *("checkpoint_interval", "validation_interval", "sample_interval", "on_stop"),
        *("gradient_checkpointing", "checkpoint_depth"),
    },
    "GBX_W2WInvert": {"gradient_checkpointing", "preview_interval"},
    "GBX_MemorizationScore": {"filename_prefix"},
    "GBX_NeuronStatistics": {"filename_prefix"},
}
#: What stands before a node in place of what was there: another of each kind.
OTHER = {
    "other_model": ("RescaleCFG", {"model": ["world", 0], "multiplier": 0.5}),
    "other_clip": ("CLIPSetLastLayer", {"clip": ["world", 1], "stop_at_clip_layer": -2}),
    "other_positive": ("CLIPTextEncode", {"clip": ["world", 1], "text": "portrait, red hair"}),
    "other_image": ("GBX_DemoPicture", {"image_index": 3, "count": 2, "part": "hair"}),
    "other_latent": ("VAEEncode", {"pixels": ["other_image", 0], "vae": ["world", 2]}),
    "other_empty": ("EmptyLatentImage", {"width": 128, "height": 64, "batch_size": 1}),
    "other_point": (
        "GBX_W2WSample",
        {"space": ["space", 0], "seed": 0, "count": 1, "components": 9, "spread": 1.0, "source": "random"}
        | {"member_name": ""},
    ),
    "other_space": ("GBX_W2WFitDirections", {"space": ["space", 0], "labels": "", "method": "mean_difference"}),
    "other_statistics": (
        "GBX_NeuronStatistics",
        {"model": ["world", 0], "clip": ["world", 1], "prompts": "a\nb", "prompts_file": "", "filename_prefix": ""}
        | {"layers": "output_blocks.5.1"},
    ),
}
#: By kind of socket what is linked there instead.
SOCKETS = {
    "MODEL": ["other_model", 0],
    "CLIP": ["other_clip", 0],
    "CONDITIONING": ["other_positive", 0],
    "LATENT": ["other_latent", 0],
    "MASK": ["image", 1],
    "W2W_POINT": ["other_point", 0],
    "NEURON_STATISTICS": ["other_statistics", 0],
}
#: Inputs whose change needs others, or a value that is no neighbor of the default.
VALUES = {
    ("GBX_TrainLoraImmiscible", "layers"): {"layers": "attn2"},
    ("GBX_TrainLoraImmiscible", "caption_dropout"): {"caption_dropout": 0.5, "empty_caption": ["other_positive", 0]},
    ("GBX_TrainLoraImmiscible", "clip"): {"clip": ["world", 1], "captions": ["text", 0]},
    ("GBX_TrainLoraImmiscible", "captions"): {"clip": ["world", 1], "captions": ["text", 0]},
    ("GBX_TrainLoraImmiscible", "vae"): {},
    ("GBX_TrainLoraImmiscible", "steps"): {"steps": 3},
    ("GBX_W2WInvert", "vae"): {},
    ("GBX_W2WInvert", "space"): {},
    ("GBX_W2WInvert", "steps"): {"steps": 4},
    ("GBX_NemoLocalize", "layers"): {},  # the statistics refuse layers that they do not cover
    ("GBX_NeuronStatistics", "layers"): {"layers": "output_blocks.4.1"},
    ("GBX_NeuronStatistics", "previous_statistics"): {"previous_statistics": ["earlier", 0]},
}
_EARLIER = {**resumable.NODES["GBX_NeuronStatistics"][0], "prompts": "portrait, red hair\nportrait"}
BEFORE = {**OTHER, "earlier": ("GBX_NeuronStatistics", _EARLIER), "text": ("PrimitiveString", {"value": "portrait"})}
NODES = [node for node in resumable.NODES if node not in ("GBX_TrainSparseAutoencoder", "GBX_W2WBuildSpace")]


def another(node, field, given):
    """Inputs of a node in which one has another value than ``given``."""
    if node == "GBX_NeuronStatistics" and field.id in ("prompts", "prompts_file"):
        return {}  # a longer list goes on; a shorter one is refused, see the next test
    if field.id == "prompts_file":
        return {"prompts_file": "more.txt"}
    if (node, field.id) in VALUES:
        return VALUES[node, field.id]
    if field.get_io_type() in SOCKETS:
        return {field.id: SOCKETS[field.get_io_type()]}
    value = given.get(field.id, getattr(field, "default", None))
    options = [str(option) for option in getattr(field, "options", None) or ()]
    if options:
        return {field.id: next((one for one in options if one != str(value)), value)}
    if isinstance(value, bool):
        return {field.id: not value}
    if isinstance(value, int | float):
        step = getattr(field, "step", None) or 1
        larger = value + (8 if field.id in ("width", "height") else step)
        return {field.id: larger if larger <= field.max else value - step}
    return {field.id: f"{value}\nportrait, red hair" if "prompts" in field.id else value}


@pytest.fixture(scope="module", autouse=True)
def files(app, tmp_path_factory):
    import folder_paths

    Path(folder_paths.get_input_directory(), "more.txt").write_text("portrait, red hair\nportrait, sunglasses\n")
    resumable.make_loras(app, tmp_path_factory.mktemp("changed"))


def content(value):
    if hasattr(value, "coefficients"):
        return value.coefficients
    if hasattr(value, "layers"):
        return torch.cat([moments.mean for moments in value.layers.values()])
    if isinstance(value, dict):
        return dict(value)
    return value


def equal(one, other):
    one, other = content(one), content(other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.slow
@pytest.mark.parametrize("node", NODES)
def test_every_input_counts(app, monkeypatch, node):
    given, file, _ = resumable.NODES[node]
    queue, wrong = resumable.Queue(app, node), []
    plain = queue.run(f"{node}_changed", monkeypatch, BEFORE)
    for field in app.classes[node].GET_SCHEMA().inputs:
        changed = another(node, field, given)
        if field.id == file or all(given.get(name) == value for name, value in changed.items()):
            continue
        try:
            found = queue.run(f"{node}_changed", monkeypatch, BEFORE, **changed)
        except resumable.Failed as refusal:
            refused = "was made with another" in str(refusal) or "are wanted" in str(refusal)
            if field.id in FREE.get(node, ()) or not refused:
                wrong.append(f"{field.id}: {refusal}")
            continue
        free = field.id in FREE.get(node, ())
        right = plain if free else queue.run(f"{node}_{field.id}", monkeypatch, BEFORE, **changed)
        if not equal(found, right):
            wrong.append(f"{field.id}: neither refused nor made again ({changed})")
    assert not wrong, "\n".join(wrong)


def test_statistics_of_prompts_that_left_the_list_are_refused(app, monkeypatch):
    """Moments are sums, from which no prompt can be taken again."""
    queue = resumable.Queue(app, "GBX_NeuronStatistics")
    fewer = resumable.PROMPTS.splitlines()[:2]
    queue.run("shorter_list", monkeypatch, BEFORE, prompts="\n".join([*fewer, "portrait, a hat"]))
    with pytest.raises(resumable.Failed, match="1 prompts that are not in"):
        queue.run("shorter_list", monkeypatch, BEFORE, prompts="\n".join(fewer))
