"""The subgraph blueprints: what ComfyUI lists, and what each makes with the demo model."""

import json
import urllib.request

import newer
import pytest
import repository

from tools.launcher import workflow
from tools.launcher.api import output_files
from tools.workflows import canvas
from tools.workflows.blueprints import BLUEPRINTS
from tools.workflows.sampling import generate

_FILES = sorted((repository.ROOT / "subgraphs").glob("*.json"))
_CAPTION = "portrait, light skin, long red hair, sunglasses, blue hoodie"
#: Small values in place of those shown, so that each runs in seconds.
_SMALL = {
    "steps": 2,
    "sampling_steps": 1,
    "prompt": _CAPTION,
    "words": "hair, sunglasses",
    "word_edits": "sunglasses -> round glasses: 2",
    "original_width": 64,
    "original_height": 64,
    "prompts": "portrait of zorvex quill",
    "ordinary_prompts": _CAPTION + "\nportrait, bald\nportrait, smiling",
    "width": 128,
    "height": 128,
    "time_budget": 0.1,
}


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_the_file_is_what_its_description_makes(path, object_info):
    if newer.than_tested():
        pytest.skip(
            "the files are made with the ComfyUI that the pack fetches: nodes of others have more "
            "inputs"
        )
    made = canvas.make(path.stem, BLUEPRINTS[path.stem].describe, object_info)
    assert path.read_text("utf-8") == canvas.to_text(made), "run python -P tools/workflows/make.py"


def test_comfyui_lists_them(server):
    with urllib.request.urlopen(f"{server.url}/global_subgraphs", timeout=60) as answer:
        listed = json.load(answer)
    ours = {
        one["name"]
        for one in listed.values()
        if one["info"]["node_pack"].endswith(repository.LINKED_AS)
    }
    assert ours == set(BLUEPRINTS) == {path.stem for path in _FILES}


@pytest.mark.parametrize("name", BLUEPRINTS)
def test_it_makes_images_with_the_demo_model(name, client, object_info):
    blueprint = BLUEPRINTS[name]

    def describe(w):
        w.group("All")
        model, clip, vae = w.add("GBX_LoadDemoModel")
        positive = w.add("CLIPTextEncode", clip=clip, text=_CAPTION)
        negative = w.add("CLIPTextEncode", clip=clip, text="")
        latent = w.add("EmptyLatentImage", width=128, height=128, batch_size=1)
        guide, _, _ = w.add("GBX_DemoPicture")
        ends = {
            "model": model,
            "clip": clip,
            "vae": vae,
            "conditioning": positive,
            "positive": positive,
            "negative": negative,
            "latent_image": latent,
            "guide": guide,
            "image": guide,
        }
        given = {socket: ends[socket] for socket in blueprint.sockets}
        values = {widget: _SMALL.get(widget, value) for widget, value in blueprint.values.items()}
        made = w.subgraph(name, blueprint.inside, **given, **values)
        for output in made if isinstance(made, tuple) else (made,):
            if output.type == "MODEL":
                output = generate(
                    w, output, positive, negative, latent, vae, seed=1, steps=2, cfg=3.0
                )
            if output.type == "IMAGE":
                w.add("PreviewImage", images=output)

    saved = canvas.make(name, describe, object_info)
    entry = client.wait(client.queue(workflow.to_prompt(saved, object_info), saved))
    images = [client.download(file) for file in output_files(entry)]
    assert images and all(images)
