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
    "the planted neurons\nsilent": "planted neurons",
    "generic prompt": "generic prompt",
}
FOUND = ("gradient", "NeMo", "|z| > 5")
#: Places of the names that are shown: their portraits act through one, three and eight neurons.
SHOWN = (0, 4, 9)
BARS = tuple(
    Bars(title, RESULT, {name: f"{of}: {what}" for name, of in COLUMNS.items() if of in ways})
    for title, what, ways in (
        ("known neurons\nfound exactly\n(F1, 10 names)", "F1", FOUND),
        ("similarity to\nthe memorized\nimage", "similarity", (*COLUMNS.values(),)[1:]),
        ("whole faces:\nthe judge's\nconfidence", "confidence", (*COLUMNS.values(),)[1:]),
        ("ordinary captions\nfollowed", "captions", ("untouched", *FOUND)),
    )
)


def make():
    """The figure."""
    from ..neurons import known, planted
    from ..neurons.attribution import GENERIC
    from ..neurons.world import LAYERS, silencing
    from ..world import captions

    world = planted.World(10, 24)
    statistics, rows = world.statistics(LAYERS), {}
    for place in SHOWN:
        text = list(world.planted)[place]
        found = known.masks(world, text, statistics)
        models = [world.model, *(world.masked(mask) for mask, _ in found.values())]
        models.append(world.masked(silencing(world.planted[text])))
        images = [world.generate(model, world.encode(text), 1)[0] for model in models]
        images.append(world.generate(world.model, world.encode(GENERIC), 1)[0])
        count = len(world.planted[text])
        rows[f"{text.removeprefix('portrait of ')}\n({count} neuron{'s' * (count > 1)})"] = [
            world.originals[text],
            *images,
        ]
    ordinary = captions.full_caption(world.scenes[0])
    images = [world.generate(model, world.encode(ordinary), 1, seed=2000)[0] for model in models]
    rows["an ordinary\ncaption under the\nlast masks"] = [None, *images, None]
    return draw(list(COLUMNS), rows, BARS)
