"""A person from one image, in another scene, and edited; beside a LoRA of that image, and
prompts.
"""

from __future__ import annotations

import json

from ..common import results
from .sheet import Bars, draw

RESULT, GUIDED = "weights_invert", "positive side to 60 %"
#: Column -> whose identity is measured.
COLUMNS = {
    "one image": "",
    "W2W Invert,\nanother scene": f"the node's defaults, {GUIDED}",
    "and W2W Edit:\nbeard": "",
    "and W2W Edit:\nround glasses": "",
    "LoRA of the image": f"LoRA, one image, {GUIDED}",
    "prompt that names\neach attribute": f"the base model, each attribute named, {GUIDED}",
    "prompt of\nthe scene": f"the base model, {GUIDED}",
}
PEOPLE, EDITS = 3, ("beard", "round glasses")
BARS = tuple(
    Bars(title, RESULT, {name: f"{of}: {what}" for name, of in COLUMNS.items() if of})
    for title, what in (
        ("the person's\nattributes\n(40 people)", "identity"),
        ("the scene's\ncaption", "scene"),
    )
)


def make():
    """The figure: the first people of the study."""
    from ..weights import guidance, inversion, node_inversion, people, setup
    from ..world.scenes import render

    study, group = setup.load(PEOPLE), inversion.held_out(PEOPLE)
    settings = node_inversion.SETTINGS["the node's defaults"]
    images = [render(one.scenes[0]) for one in group]
    points = [
        node_inversion.invert(study, [image], people.caption(one.scenes[0]), settings)
        for image, one in zip(images, group, strict=True)
    ]
    numbers = json.loads((results.RESULTS / f"{RESULT}.json").read_text("utf-8"))["numbers"]
    chosen = numbers[f"{inversion.LORA_ONE}: steps"]
    rate = float(chosen["what"].rsplit(" ", 1)[1])
    data = people.encode(group, study.sampler.generator)
    lora, _ = inversion.find(
        study.sampler, study.space, data, inversion.LORA_ONE, chosen["value"], rate
    )
    scenes, base = setup.prompts(group), study.base(PEOPLE)
    ways = [
        (setup.factors(points), scenes),
        *((study.edited(points, f"{edit}: 1"), scenes) for edit in EDITS),
        (lora, scenes),
        (base, node_inversion.named(group)),
        (base, scenes),
    ]
    found = [study.read(flats, texts, **guidance.WAYS[GUIDED])[1] for flats, texts in ways]
    rows = {
        f"person {row + 1}": [images[row], *(one[row] for one in found)] for row in range(PEOPLE)
    }
    return draw(list(COLUMNS), rows, BARS)
