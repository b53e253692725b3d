"""Known neurons found by a gradient, beside the paper's search and a threshold on |z|: what is left
of the portrait.
"""

from __future__ import annotations

from .sheet import Bars, draw

RESULT = "neurons_known"
#: Column -> the way of the study.
COLUMNS = {
    "memorized image": "",
    "untouched": "untouched",
    "gradient,\nfound neurons silent": "gradient",
    "NeMo's search": "NeMo",
    "|z| > 5": "|z| > 5",
}
#: Places of the names that are shown: their portraits act through one, three and eight neurons.
SHOWN = (0, 4, 9)
BARS = tuple(
    Bars(
        title,
        RESULT,
        {
            name: f"{of}: {what}"
            for name, of in COLUMNS.items()
            if of and (of != "untouched" or both)
        },
    )
    for title, what, both in (
        ("known neurons\nfound exactly\n(F1, 10 names)", "F1", False),
        ("similarity to\nthe memorized\nimage", "similarity", True),
        ("ordinary captions\nfollowed", "captions", True),
    )
)


def make():
    """The figure."""
    from ..neurons import known, planted
    from ..neurons.world import LAYERS
    from ..world import captions

    world = planted.World(10, 24)
    statistics, rows = world.statistics(LAYERS), {}
    for place in SHOWN:
        text = list(world.planted)[place]
        models = [
            world.model,
            *(world.masked(mask) for mask, _ in known.masks(world, text, statistics).values()),
        ]
        images = [world.generate(model, world.encode(text), 1)[0] for model in models]
        count = len(world.planted[text])
        rows[f"{text.removeprefix('portrait of ')}\n({count} neuron{'s' * (count > 1)})"] = [
            world.originals[text],
            *images,
        ]
    ordinary = captions.full_caption(world.scenes[0])
    images = [world.generate(model, world.encode(ordinary), 1, seed=2000)[0] for model in models]
    rows["an ordinary\ncaption under the\nlast masks"] = [None, *images]
    return draw(list(COLUMNS), rows, BARS)
