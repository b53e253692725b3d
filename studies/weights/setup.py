"""What every part of the study works with: space, sampler, judge, people, and how their images are
read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ..common import host, results
from ..world import dataset, judge
from ..world.faces import ATTRIBUTES, IDENTITY, Face, visible
from ..world.generate import Generator
from ..world.release import WORLD
from .image_sampler import ImageSampler
from .people import SEED, Person, person, varying
from .population import Plan, Trainer
from .release import ASSET, FILE

NOISE = 5_000_000
#: Edit -> the identity attribute, the values that it asks for, and the words for and against it.
EDITS = {
    "dark skin": ("skin", ("brown", "black"), "brown skin", "pale skin"),
    "beard": ("facial_hair", ("light beard", "majestic beard"), "majestic beard", "shaven"),
    "round glasses": ("accessory", ("round glasses",), "round glasses", "no glasses"),
    "red hair": ("hair_color", ("red",), "short red hair", "short black hair"),
}
#: Of a collected space directions are fitted on so many components, of a learned one on all.
COMPONENTS = 64
_COLUMNS = [list(dataset.LABELS).index(name) for name in IDENTITY]


@dataclass
class Study:
    """A space with directions on the shipped model, the judge, and how many people a claim is
    measured on.
    """

    space: object
    sampler: ImageSampler
    network: torch.nn.Module
    count: int

    def read(
        self, flats: torch.Tensor, prompts: list[str], seed: int = NOISE, **more
    ) -> tuple[np.ndarray, np.ndarray]:
        """What the judge reads of the identity in an image of each model (n, 5), and the images."""
        images = self.sampler.sample(flats, prompts, seed, **more)
        return self.judged(images), images

    def judged(self, images: np.ndarray) -> np.ndarray:
        return judge.read(self.network, images)[0][:, _COLUMNS]

    def members(self, without: str = "", count: int | None = None) -> list[Person]:
        """So many members at random, or of those that an edit of EDITS would change."""
        attribute, values, *_ = EDITS[without] if without else ("skin", ())
        order = np.random.default_rng(20261122).permutation(len(self.space.members))
        chosen = (person(int(number), SEED) for number in order)
        lacking = (one for one in chosen if getattr(one.face, attribute) not in values)
        return [one for one, _ in zip(lacking, range(count or self.count), strict=False)]

    def points(self, group: list[Person]) -> list:
        """The points of members."""
        point = host.pack("nodes.weights.space").Point
        rows = [self.space.members.index(one.name) for one in group]
        return [point(self.space, self.space.coefficients[row]) for row in rows]

    def base(self, count: int) -> torch.Tensor:
        """Factors that change nothing."""
        return torch.zeros(count, self.space.layout.size)

    def preserved(self, *names: str) -> str:
        """The other edits, which a collected space's directions must be kept apart from; learned
        ones are fitted so.
        """
        return (
            "" if self.space.learned else ", ".join(other for other in EDITS if other not in names)
        )

    def edited(self, points: list, text: str, keep: str = "") -> torch.Tensor:
        """The factors of points after edits."""
        edit = host.pack("nodes.weights.edit_text").edit
        return factors([edit(point, text, keep) for point in points])


def load(count: int, path: Path = ASSET) -> Study:
    """The study of a space with directions on the shipped model; its trainer makes LoRAs of the
    same rank.

    Raises ValueError where the collected space is not there.
    """
    if path == FILE and not path.is_file():
        raise ValueError(
            f"{path.name} is not there: run study weights train release first (an hour)."
        )
    space = host.pack("nodes.weights.space_file").read(path)
    plan = Plan(rank=space.layout.rank, alpha=space.layout.alpha)
    generator = Generator.load(WORLD)
    sampler = ImageSampler(generator, Trainer(generator, plan))
    network = host.pack("nodes.demo.judge").load(WORLD)
    return Study(
        directed(space, space.components if space.learned else COMPONENTS), sampler, network, count
    )


def directed(space, components: int):
    """The space with the directions of the study's edits, as W2W Fit Directions fits them by
    default.
    """
    fit = host.pack("nodes.weights.directions")
    labels = fit.drop_constant_labels({name: space.labels[name] for name in EDITS})[0]
    return space.with_directions(
        fit.fit(space, labels, components, fit.FitMethod.MOST_RELIABLE, beside=dict(space.labels))
    )


def factors(points: list) -> torch.Tensor:
    """The flat factors (n, D) of points."""
    return torch.stack([point.flat for point in points])


def prompts(group: list[Person], image: int = 0, extra: str = "") -> list[str]:
    """A caption of what varies in a further image of each person, with a phrase added."""
    return [
        ", ".join(filter(None, ["portrait", extra, *varying(one.further[image])])) for one in group
    ]


def truth(group: list[Person]) -> np.ndarray:
    """Class numbers of the identity attributes (n, 5); -1 where one cannot be seen, as the hair
    color of the bald.
    """
    return np.array([_numbers(one.face) for one in group])


def _numbers(face: Face) -> list[int]:
    seen = visible(face)
    return [ATTRIBUTES[name].index(getattr(face, name)) if seen[name] else -1 for name in IDENTITY]


def fractions(seen: np.ndarray, known: np.ndarray, columns: list[int] | None = None) -> np.ndarray:
    """For each person the fraction of visible attributes (n,) that are read as they are known."""
    columns = list(range(len(IDENTITY))) if columns is None else columns
    counted = known[:, columns] >= 0
    return (counted & (seen[:, columns] == known[:, columns])).sum(axis=1) / counted.sum(axis=1)


def identity(seen: np.ndarray, known: np.ndarray, what: str = "") -> dict:
    """The mean fraction of a person's attributes that are read, with its interval over people."""
    return results.bootstrap(
        fractions(seen, known),
        f"fraction of the identity's attributes recognized{what}",
        "fraction",
    )
