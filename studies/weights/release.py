"""Make a space of the trained population, with labels: the paper's way, a LoRA of each person and
their axes.

It stays in the cache, since the pack ships the learned space (`learned.py`) of the same people.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from ..common import host
from ..world.release import WORLD
from .people import LABELS, Person
from .population import Plan

NAME = f"{WORLD}-collected-w2w"
FILE = host.ROOT / ".cache" / "weights" / f"{NAME}.safetensors"
#: The space that the pack ships.
ASSET = host.ROOT / "assets" / f"{WORLD}-w2w.safetensors"
#: Axes that are kept: 3.2 MB in float16.
COMPONENTS = 128


def build(group: list[Person], flats: torch.Tensor, layout, components: int, folder: Path):
    """The space of a population's factors (n, D), in the form of the paper, with the members'
    labels.
    """
    building, files = (
        host.pack("nodes.weights.space_builder"),
        host.pack("nodes.common.lora_reader"),
    )
    sources = []
    for person, flat in zip(group, flats, strict=True):
        lora = files.Lora(layout.unflatten(flat))
        sources.append(
            building.MemberSource(
                name=person.name,
                stamp=person.name,
                header=partial(files.header_of, lora),
                read=partial(_same, lora),
            )
        )
    settings = building.BuildSettings(components=components, form="as_trained", rank=layout.rank)
    space = building.build(sources, settings, folder / f"{NAME}.safetensors")
    rows = torch.tensor([person.labels() for person in group])
    return replace(space, labels={name: rows[:, column] for column, name in enumerate(LABELS)})


def write(space, plan: Plan, group: list[Person]) -> Path:
    """The file: basis and coefficients in float16, and how the members were trained."""
    visible_rows = {
        "name": NAME,
        "base": f"Glassbox demo model {WORLD}",
        "prompt": "portrait",
        "licence": "MIT",
        "training": (
            f"{len(group)} identities, {plan.steps} steps of {plan.rows} image(s), rank "
            f"{plan.rank}, learning rate {plan.learning_rate}"
        ),
        "faces": [face_name(person) for person in group],
    }
    files = host.pack("nodes.weights.space_file")
    released = replace(space, about={**space.about, **visible_rows}, squares=None)
    error = files.write(released, FILE, "float16", coefficients=torch.float16)
    print(
        f"{FILE.name}: {FILE.stat().st_size / 1e6:.2f} MB, {len(group)} members, storage error "
        f"{error}"
    )
    return FILE


def face_name(person: Person) -> str:
    """A member's identity in words."""
    face = person.face
    return " ".join(
        (face.skin, face.hair, face.hair_color, face.facial_hair, face.accessory)
    ).replace(" ", "-")


def _same(lora, _wanted=None):
    return lora
