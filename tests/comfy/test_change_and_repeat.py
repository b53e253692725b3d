"""Each input of every node that keeps work, changed once under the same name: refused by a
sentence, or made again.

The inputs are those of the schema, so that a new one is tried here. What is kept is the whole first
run; a run with the change and a name of its own says what is right.
"""

import copy
import shutil
from pathlib import Path

import members
import pytest
import resumable
import torch
import weight_nodes
from resumable import equal
from safetensors.torch import save_file

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
        {
            "space": ["space", 0],
            "seed": 0,
            "count": 1,
            "components": 9,
            "spread": 1.0,
            "source": "random",
        }
        | {"member_name": ""},
    ),
    "other_space": (
        "GBX_W2WFitDirections",
        {"space": ["space", 0], "labels": "", "method": "mean_difference"},
    ),
    "other_statistics": (
        "GBX_NeuronStatistics",
        {
            "model": ["world", 0],
            "clip": ["world", 1],
            "prompts": "a\nb",
            "prompts_file": "",
            "filename_prefix": "",
        }
        | {"layers": "output_blocks.5.1"},
    ),
    "other_mask": ("TestMask", {}),
    "other_vae": ("TestOtherVAE", {"vae": ["world", 2]}),
    "lora": ("TestLora", {"number": 20}),
}
#: By kind of socket what is linked there instead.
SOCKETS = {
    "MODEL": ["other_model", 0],
    "CLIP": ["other_clip", 0],
    "VAE": ["other_vae", 0],
    "LORA_MODEL": ["lora", 0],
    "CONDITIONING": ["other_positive", 0],
    "LATENT": ["other_latent", 0],
    "MASK": ["image", 1],
    "W2W_POINT": ["other_point", 0],
    "NEURON_STATISTICS": ["other_statistics", 0],
    "NEURON_MASK": ["other_mask", 0],
}
_PAIRS = {
    "before": ["image", 0],
    "after": ["other_image", 0],
    "masks": ["image", 1],
    "vae": ["world", 2],
}
#: Inputs whose change needs others, or a value that is no neighbor of the default.
VALUES = {
    ("GBX_TrainLoraImmiscible", "layers"): {"layers": "attn2"},
    ("GBX_TrainLoraImmiscible", "caption_dropout"): {
        "caption_dropout": 0.5,
        "empty_caption": ["other_positive", 0],
    },
    ("GBX_TrainLoraImmiscible", "clip"): {"clip": ["world", 1], "captions": ["text", 0]},
    ("GBX_TrainLoraImmiscible", "captions"): {"clip": ["world", 1], "captions": ["text", 0]},
    ("GBX_TrainLoraImmiscible", "existing_lora"): {"existing_lora": "existing.safetensors"},
    ("GBX_TrainLoraImmiscible", "vae"): {},
    ("GBX_TrainLoraImmiscible", "steps"): {"steps": 3},
    ("GBX_W2WInvert", "vae"): {},
    ("GBX_W2WInvert", "space"): {},
    ("GBX_W2WInvert", "steps"): {"steps": 4},
    ("GBX_NemoLocalize", "layers"): {},  # the statistics refuse layers that they do not cover
    ("GBX_NemoLocalize", "time_budget"): {"time_budget": 1000.0},  # that nothing depends on a clock
    ("GBX_OptimizeNeuronMask", "layers"): {"layers": "output_blocks.4.1"},
    ("GBX_OptimizeNeuronMask", "max_neurons"): {"max_neurons": 3},
    ("GBX_NeuronStatistics", "layers"): {"layers": "output_blocks.4.1"},
    ("GBX_NeuronStatistics", "previous_statistics"): {"previous_statistics": ["earlier", 0]},
    ("GBX_TrainSparseAutoencoder", "activation_id"): {"activation_id": "up-level0-repeat0-vit-out"},
    ("GBX_TrainSparseAutoencoder", "image_folder"): {
        **{"image_folder": "other images", "prompts": "portrait", "vae": ["world", 2]}
    },
    ("autoencoder of images", "prompts"): {"prompts": "portrait, red hair"},
    ("GBX_TrainSlider", "layers"): {"layers": "attn2"},
    ("GBX_TrainSlider", "vae"): {},
    **{("GBX_TrainSlider", name): _PAIRS for name in ("before", "after", "masks")},
    ("GBX_TrainSlider", "pair_objective"): {**_PAIRS, "pair_objective": "difference"},
    ("GBX_W2WTrainSpace", "prompt"): {"prompt": "portrait, red hair"},
    ("GBX_W2WTrainSpace", "components"): {"components": 1},
    ("GBX_W2WTrainSpace", "layers"): {"layers": "attn1.to_k"},
    ("GBX_W2WTrainSpace", "batch_size"): {"batch_size": 1},
}
_EARLIER = {**resumable.NODES["GBX_NeuronStatistics"][0], "prompts": "portrait, red hair\nportrait"}
BEFORE = {
    **OTHER,
    "earlier": ("GBX_NeuronStatistics", _EARLIER),
    "text": ("PrimitiveString", {"value": "portrait"}),
}
_IMAGES = {
    "image_folder": "resumable images",
    "prompts": "portrait",
    "vae": ["world", 2],
    "features": 8,
}
#: Nodes, some twice: other inputs keep other things.
CASES = {
    **{node: (node, {}) for node in resumable.NODES},
    "autoencoder of images": ("GBX_TrainSparseAutoencoder", _IMAGES),
    "space of weight updates": (
        "GBX_W2WBuildSpace",
        {"form": "weight_updates", "rank": 2, "energy": 0.9},
    ),
}


class OtherVAE:
    """A node of ComfyUI whose VAE has one weight more than before."""

    RETURN_TYPES, FUNCTION, CATEGORY = ("VAE",), "change", "test"

    @classmethod
    def INPUT_TYPES(cls):  # noqa: N802
        return {"required": {"vae": ("VAE", {})}}

    def change(self, vae):
        other = copy.copy(vae)
        other.patcher = vae.patcher.clone()
        other.first_stage_model = copy.deepcopy(vae.first_stage_model)
        other.patcher.model = other.first_stage_model
        with torch.no_grad():
            next(other.first_stage_model.parameters()).mul_(1.1)
        return (other,)


class Lora:
    """A node of ComfyUI that gives one more LoRA of those in the folder."""

    RETURN_TYPES, FUNCTION, CATEGORY = ("LORA_MODEL",), "make", "test"

    @classmethod
    def INPUT_TYPES(cls):  # noqa: N802
        return {"required": {"number": ("INT", {})}}

    def make(self, number):
        return (members.kohya(members.factors(number, 2)),)


def another(case, node, field, given):
    """Inputs of a node in which one has another value than ``given``."""
    if node == "GBX_NeuronStatistics" and field.id in ("prompts", "prompts_file"):
        return {}  # a longer list goes on; a shorter one is refused, see the next test
    if field.id == "prompts_file":
        return {"prompts_file": "more.txt"}
    for of in (case, node):
        if (of, field.id) in VALUES:
            return VALUES[of, field.id]
    if "folder" in field.id:
        return {field.id: given[field.id].replace("resumable", "other")}
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


class Mask:
    """A node of ComfyUI that gives a mask of one neuron."""

    RETURN_TYPES, FUNCTION, CATEGORY = ("NEURON_MASK",), "make", "test"

    @classmethod
    def INPUT_TYPES(cls):  # noqa: N802
        return {"required": {}}

    def make(self):
        from glassbox.nodes.neurons.mask import NeuronMask

        return (NeuronMask({"output_blocks.5.1.transformer_blocks.0.attn2.to_v": {3: 0.0}}),)


@pytest.fixture(scope="module", autouse=True)
def files(app, tmp_path_factory):
    import folder_paths

    Path(folder_paths.get_input_directory(), "more.txt").write_text(
        "portrait, red hair\nportrait, sunglasses\n"
    )
    resumable.make_files(app, tmp_path_factory.mktemp("changed"))
    app.classes |= {"TestOtherVAE": OtherVAE, "TestLora": Lora, "TestMask": Mask}
    loras = Path(folder_paths.get_folder_paths("loras")[0])
    save_file(
        members.kohya(members.factors(3, 2, weight_nodes.LAYERS)), loras / "existing.safetensors"
    )
    shutil.copytree(
        loras / "resumable", loras / "other", ignore=lambda folder, names: sorted(names)[:2]
    )
    for kind in ("people", "images"):
        folder = Path(folder_paths.get_input_directory())
        shutil.copytree(folder / f"resumable {kind}", folder / f"other {kind}")
    (folder / "other people" / "person_01" / "0.txt").write_text("portrait, red hair")
    (folder / "other images" / "0.png").unlink()
    (folder / "resumable images" / "0.png").rename(folder / "other images" / "0.png")
    shutil.copy(folder / "other images" / "1.png", folder / "resumable images" / "0.png")


@pytest.mark.slow
@pytest.mark.endurance
@pytest.mark.parametrize("case", CASES)
def test_every_input_counts(app, monkeypatch, case):
    node, more = CASES[case]
    given, file = {**resumable.NODES[node][0], **more}, resumable.NODES[node][1]
    queue, wrong, tried = resumable.Queue(app, node), [], 0
    plain = queue.run(f"{case} changed", monkeypatch, BEFORE, **more)
    half = queue.work // 2
    for field in app.classes[node].GET_SCHEMA().inputs:
        changed = another(case, node, field, given)
        if field.id == file or all(given.get(name) == value for name, value in changed.items()):
            continue
        name, tried = f"{case} changed", tried + 1
        if node == "GBX_W2WBuildSpace":  # what it keeps is of a stopped build
            queue.run(
                name := f"{case} {field.id} stopped", monkeypatch, BEFORE, stop_at=half, **more
            )
        try:
            found = queue.run(name, monkeypatch, BEFORE, **{**more, **changed})
        except resumable.Failed as refusal:
            refused = any(
                part in str(refusal)
                for part in ("made with another", "are wanted", "made for another base")
            )
            if field.id in resumable.FREE.get(node, ()) or not refused:
                wrong.append(f"{field.id}: {refusal}")
            continue
        free = field.id in resumable.FREE.get(node, ())
        right = (
            plain
            if free
            else queue.run(f"{case} {field.id}", monkeypatch, BEFORE, **{**more, **changed})
        )
        if not equal(found, right):
            wrong.append(f"{field.id}: neither refused nor made again ({changed})")
    assert not wrong, "\n".join(wrong)
    assert tried > len(given) - 3


def test_statistics_of_prompts_that_left_the_list_are_refused(app, monkeypatch):
    """Moments are sums, from which no prompt can be taken again."""
    queue = resumable.Queue(app, "GBX_NeuronStatistics")
    fewer = resumable.PROMPTS.splitlines()[:2]
    queue.run("shorter_list", monkeypatch, BEFORE, prompts="\n".join([*fewer, "portrait, a hat"]))
    with pytest.raises(resumable.Failed, match="1 prompts that are not in"):
        queue.run("shorter_list", monkeypatch, BEFORE, prompts="\n".join(fewer))
