"""The paper's claims measured on the demo world with its shipped space; writes ``studies/results/weights.json``.

What an identity is, is known here: skin, hair, its colour, facial hair and accessory. The judge reads them in pictures;
its own error on held-out renders is printed beside. A share "kept" counts attributes that are read the same before and
after; "reached" that the asked one is read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from ..common import host, results
from ..world import captions, dataset, judge
from ..world.faces import ATTRIBUTES, IDENTITY, Face
from ..world.generate import Generator
from ..world.release import ASSETS, WORLD
from . import finding
from .painting import Painter
from .people import LABELS, SEED, Person, person
from .population import Plan, Trainer
from .release import ASSET

NOISE = 5_000_000
HELD_OUT = 900_000  # numbers of identities that were not trained
#: Edit -> the values of an identity attribute that it asks for, and the phrase that asks a prompt for them.
EDITS = {
    "dark skin": ("skin", ("brown", "black"), "brown skin"),
    "beard": ("facial_hair", ("light beard", "majestic beard"), "majestic beard"),
    "round glasses": ("accessory", ("round glasses",), "round glasses"),
    "red hair": ("hair_color", ("red",), "red hair"),
}
_COLUMNS = {name: list(dataset.LABELS).index(name) for name in IDENTITY}


@dataclass
class Study:
    """The shipped space on the shipped model, the judge, and how many people each claim is measured on."""

    space: object
    painter: Painter
    network: torch.nn.Module
    count: int

    def read(self, flats: torch.Tensor, prompts: list[str], seed: int, **late) -> tuple[np.ndarray, np.ndarray]:
        """What the judge reads of the identity (n, 5), and the pictures."""
        pictures = self.painter.paint(flats, prompts, seed, **late)
        return judge.read(self.network, pictures)[0][:, list(_COLUMNS.values())], pictures

    def members(self, count: int) -> list[Person]:
        """The first members of the space."""
        return [person(number, SEED) for number in range(min(count, len(self.space.members)))]

    def flats(self, coefficients: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.space.rebuild(row) for row in coefficients])


def prompts(group: list[Person], picture: int = 0, extra: str = "") -> list[str]:
    """A caption of what varies for each person, with a phrase added."""
    texts = []
    for one in group:
        said = captions.phrases(one.scenes[picture].face)
        parts = ["portrait", extra, said["clothing"], said["mouth"], captions.background_phrase(one.scenes[picture])]
        texts.append(", ".join(filter(None, parts)))
    return texts


def truth(faces: list[Face]) -> np.ndarray:
    """Class numbers of the identity attributes (n, 5)."""
    return np.array([[ATTRIBUTES[name].index(getattr(face, name)) for name in IDENTITY] for face in faces])


def measure_members(study: Study) -> dict[str, dict]:
    """Whether models draw their person: none, the member rebuilt from all axes, and from fewer."""
    group = study.members(study.count)
    known, told = truth([one.face for one in group]), prompts(group)
    rows = study.space.coefficients[: len(group)]
    numbers, limits = {}, [("base model", 0), ("16 axes", 16), ("all axes", study.space.components)]
    for name, count in limits:
        cut = torch.nn.functional.pad(rows[:, :count], (0, study.space.components - count))
        flats = torch.zeros(len(group), study.space.layout.size) if not count else study.flats(cut)
        seen, _ = study.read(flats, told, NOISE)
        for column, attribute in enumerate(IDENTITY):
            what = f"member's {attribute} read in its picture: {name}"
            numbers[f"members, {attribute}, {name}"] = results.share(seen[:, column] == known[:, column], what)
        per_person = (seen == known).mean(axis=1)
        numbers[f"members, identity, {name}"] = results.bootstrap(per_person, "share of five attributes", "share")
    return numbers


def measure_sampling(study: Study) -> dict[str, dict]:
    """Whether drawn models are somebody new and the same in every picture."""
    points, space = host.pack("nodes.weights.points"), study.space
    drawn = points.sample(space, 7, study.count, space.components, 1.0)
    group = study.members(study.count)
    kinds = {
        "drawn models": study.flats(torch.stack([point.coefficients for point in drawn])[: len(group)]),
        "members": study.flats(space.coefficients[: len(group)]),
        "base model": torch.zeros(len(group), space.layout.size),
    }
    numbers = {}
    for name, flats in kinds.items():
        first, second = (study.read(flats, prompts(group, picture), NOISE + 10_000 * picture)[0] for picture in (0, 1))
        numbers[f"consistent, {name}"] = results.bootstrap(
            (first == second).mean(axis=1), "identity attributes read the same in two pictures of one model with "
            "other noise and caption", "share")  # fmt: skip
    nearest = host.pack("nodes.weights.projection").nearest
    cosines = np.array([nearest(point, 1)[0][1] for point in drawn])
    numbers["nearest member of a drawn model"] = results.bootstrap(cosines, "cosine of coefficients", "cosine")
    rows = torch.nn.functional.normalize(space.coefficients, dim=1)
    others = (rows @ rows.T - 2 * torch.eye(len(rows))).max(dim=1).values.numpy()
    numbers["nearest other member of a member"] = results.bootstrap(others, "cosine of coefficients", "cosine")
    return numbers


def measure_edits(study: Study, space) -> dict[str, dict]:
    """Asked attribute reached and the others kept: an edit against the same words in the prompt."""
    edits, point_of = host.pack("nodes.weights.edits"), host.pack("nodes.weights.space").Point
    numbers = {}
    for name in _present(space):
        attribute, values, phrase = EDITS[name]
        holds = LABELS[name]
        group = [one for one in study.members(len(space.members)) if not holds(one.face)][: study.count]
        rows = [space.members.index(one.name) for one in group]
        start = [point_of(space, space.coefficients[row]) for row in rows]
        keep = ", ".join(other for other in _present(space) if other != name)
        moved = [edits.edit(point, f"{name}: 1", keep) for point in start]
        before, _ = study.read(study.flats(torch.stack([p.coefficients for p in start])), prompts(group), NOISE)
        ways = {
            "edit": (study.flats(torch.stack([p.coefficients for p in moved])), prompts(group)),
            "prompt": (study.flats(torch.stack([p.coefficients for p in start])), prompts(group, extra=phrase)),
        }
        column = IDENTITY.index(attribute)
        asked = [ATTRIBUTES[attribute].index(value) for value in values]
        rest = [number for number in range(len(IDENTITY)) if number != column]
        numbers[f"{name}, reached before"] = results.share(np.isin(before[:, column], asked), f"{name} read unasked")
        for way, (flats, texts) in ways.items():
            after, _ = study.read(flats, texts, NOISE)
            hits = np.isin(after[:, column], asked)
            numbers[f"{name}, reached by {way}"] = results.share(hits, f"{name} read after the {way}")
            kept = (after[:, rest] == before[:, rest]).mean(axis=1)
            numbers[f"{name}, kept by {way}"] = results.bootstrap(kept, "other attributes read as before", "share")
    return numbers


def _present(space) -> list[str]:
    """The edits that the space has a direction for: a small one may have no member with an attribute."""
    return [name for name in EDITS if name in space.directions]


def measure_delay(study: Study, space) -> dict[str, dict]:
    """What stays of the picture and how much of the edit acts when it starts at timestep T."""
    edits, point_of = host.pack("nodes.weights.edits"), host.pack("nodes.weights.space").Point
    group = [one for one in study.members(len(space.members)) if not LABELS["dark skin"](one.face)][: study.count]
    start = [point_of(space, space.coefficients[space.members.index(one.name)]) for one in group]
    keep = ", ".join(name for name in _present(space) if name != "dark skin")
    moved = [edits.edit(point, "dark skin: 1", keep) for point in start]
    base, later = (study.flats(torch.stack([p.coefficients for p in which])) for which in (start, moved))
    _, plain = study.read(base, prompts(group), NOISE)
    numbers, asked = {}, [ATTRIBUTES["skin"].index(value) for value in EDITS["dark skin"][1]]
    for threshold in (1000, 900, 800, 600, 400):
        seen, pictures = study.read(base, prompts(group), NOISE, later=later, from_timestep=float(threshold))
        numbers[f"delayed to T {threshold}, reached"] = results.share(np.isin(seen[:, 0], asked), "dark skin read")
        change = np.abs(pictures.astype(np.float32) - plain).mean(axis=(1, 2, 3)) / 255
        numbers[f"delayed to T {threshold}, picture changed"] = results.bootstrap(
            change, "mean absolute difference from the unedited picture", "of the range")  # fmt: skip
    return numbers


def measure_inversion(study: Study, count: int) -> dict[str, dict]:
    """A person from one picture: coefficients, against a LoRA on the one picture and on ten."""
    group = [person(HELD_OUT + number, SEED) for number in range(count)]
    known, numbers = truth([one.face for one in group]), {}
    asked = [replace_prompt(one) for one in group]
    for way in finding.WAYS:
        flats, seconds, trained = finding.find(study.painter, study.space, group, way)
        seen, _ = study.read(flats, asked, NOISE)
        what = f"share of five attributes read in another picture; {trained} numbers trained"
        numbers[f"inversion, identity, {way}"] = results.bootstrap((seen == known).mean(axis=1), what, "share")
        each = np.full(len(group), seconds / len(group))
        numbers[f"inversion, seconds, {way}"] = results.bootstrap(each, "a person, all in one batch", "s")
    seen, _ = study.read(torch.zeros(count, study.space.layout.size), asked, NOISE)
    numbers["inversion, identity, base model"] = results.bootstrap(
        (seen == known).mean(axis=1), "share of five attributes by chance", "share")  # fmt: skip
    return numbers


def replace_prompt(one: Person) -> str:
    """A caption of another picture of a person than the first, which is the one that was given."""
    return prompts([replace(one, scenes=one.scenes[1:])])[0]


def measure_judge(study: Study, count: int) -> dict[str, dict]:
    """The instrument's own error, on renders of the same people."""
    from ..world.scenes import render

    group = study.members(count)
    pictures = np.stack([render(one.scenes[0]) for one in group])
    seen = judge.read(study.network, pictures)[0][:, list(_COLUMNS.values())]
    hits = (seen == truth([one.face for one in group])).mean(axis=1)
    return {"judge on renders": results.bootstrap(hits, "share of five attributes read right", "share")}


def run(quick: bool = False) -> Path:
    """Measure everything; ``quick`` takes a third of the people."""
    generator = Generator.load(WORLD)
    space = host.pack("nodes.weights.space_files").read(ASSET)
    painter = Painter(generator, Trainer(generator, Plan()))
    study = Study(space, painter, host.pack("nodes.demo.judge").load(WORLD), 16 if quick else 48)
    fit = host.pack("nodes.weights.directions")
    directed = space.with_directions(fit.fit(space, fit.varying(space.labels)[0], 48, fit.LEAST_SQUARES))
    numbers = measure_judge(study, study.count)
    for measure in (measure_members, measure_sampling):
        numbers |= measure(study)
    numbers |= measure_edits(study, directed) | measure_delay(study, directed)
    numbers |= measure_inversion(study, 8 if quick else 24)
    command = "python run.py study weights measure" + (" --quick" if quick else "")
    return results.write("weights_quick" if quick else "weights", command, NOISE, ASSETS, numbers)
