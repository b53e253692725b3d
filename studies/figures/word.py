"""A word changed in an existing image: Edit by Words beside the changed prompt, a higher denoise
and a higher CFG.
"""

from __future__ import annotations

from ..activations import words
from ..common import host
from .sheet import Bars, draw

#: Column -> the method of the study. A row for each of its attributes, with the first face that can
#: show it.
COLUMNS = {
    "the image": None,
    "Edit by Words": "edit 2 in the prompt",
    "changed prompt": "prompt",
    "prompt, CFG 6": "prompt at CFG 6",
    "prompt, denoise .8": "prompt at denoise .8",
}
BARS = tuple(
    Bars(
        title,
        "activations_words",
        {name: f"existing, all: {of}: {what}" for name, of in COLUMNS.items() if of},
    )
    for title, what in (
        ("requested\nchange\n(24 faces)", "reached"),
        ("all else\nkept", "others kept"),
    )
)


def make():
    """The figure."""
    host.prepare()
    assets = host.pack("nodes.demo.assets")
    world = assets.worlds()[0]
    edited, rows = words.Edited(world), {}
    images = list(enumerate(assets.load_images(world, 0, words.FACES, "face")[0].split(1)))
    for attribute, value, _ in words.TARGETS:
        number, image = next(
            one for one in images if words.words(edited.names(one[1])[0], attribute, value)
        )
        images = [one for one in images if one[0] != number]
        traits = edited.names(image)[0]
        away, toward = words.words(traits, attribute, value)
        plain, latent, found = words.caption(traits), edited.latents(image), []
        for denoise, cfg, strength, _ in (words.EXISTING[of] for of in COLUMNS.values() if of):
            if strength is None:
                model, positive = edited.model, edited.encode(plain.replace(away, toward))
            else:
                model, positive = (
                    edited.edit(f"{away} -> {toward}: {strength}", plain, 0.0),
                    edited.encode(plain),
                )
            found.append(
                edited.images(model, positive, latent, [words.SEED + number], cfg, denoise)
            )
        rows[f"{away}\nto {toward}"] = [
            (one[0] * 255).round().byte().numpy() for one in (image, *found)
        ]
    return draw(list(COLUMNS), rows, BARS)
