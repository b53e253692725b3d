"""What a learned space depends on, one factor at a time: `python run.py study weights factors
[--minutes M] [--quick]`.

Around a base of 64 people, ten images each, 32 components of rank 4 on queries and values: people,
images, scenes of their own, components, rank, layers, projections frozen at random, a prior on
codes, steps; the base with three seeds; the paper's way, a LoRA for each person, at the base's
rank, layers, images and rows; the space that ships, of 512 people with about as many rows for each;
and a larger space, a hundred of its members judged, in common scenes and in everybody's own. Each
space is judged as in `learned_measure`: members in an unseen scene, and whether a sampled point is
one person in two images. Nothing is chosen here, so that all people are reported. Every space is a
row that is kept; ``--minutes`` starts no further one.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from ..common import host, results
from ..common.training import device
from ..world.generate import Generator
from ..world.release import ASSETS, WORLD
from .grouped import ATTENTION, FEED_FORWARD, QUERIES_AND_VALUES, attention_layout
from .guidance import WAYS
from .image_sampler import ImageSampler
from .learned import Session, adapted
from .learned_measure import GUIDED
from .people import SEED, Encoded, Person, cached, person
from .population import Plan, Trainer
from .release import ASSET
from .setup import NOISE, Study, factors, fractions, load, prompts, truth

LAYERS = {
    "queries and values": QUERIES_AND_VALUES,
    "attention": ATTENTION,
    "and feed-forward": ATTENTION + FEED_FORWARD,
}
SAMPLED, IMAGES_EACH, A_STEP = 24, 3, 16


@dataclass(frozen=True)
class Setting:
    """A space: what it is trained on, and how."""

    people: int = 64
    images: int = 10
    own_scenes: bool = False
    components: int = 32
    rank: int = 4
    layers: str = "queries and values"
    frozen: bool = False
    prior: float = 0.0
    steps: int = 240
    seed: int = 0
    measured: int = 40


BASE = Setting()
VARIED = {
    "people": (16, 32, 128, 256),
    "images": (1, 3),
    "own_scenes": (True,),
    "seed": (1, 2),
    "rank": (1, 2, 8),
    "components": (8, 16, 64),
    "layers": tuple(LAYERS)[1:],
    "frozen": (True,),
    "prior": (1e-4, 1e-3),
    "steps": (60, 120, 480),
}
SETTINGS = {"base": BASE} | {
    f"{name} {value}".replace(" True", ""): replace(BASE, **{name: value})
    for name, values in VARIED.items()
    for value in values
}
_UNITS = {
    "identity": "attributes of members recognized in an unseen scene",
    "consistent": "attributes recognized equally in two images of one sampled point",
    "chance agreement": "the same of two sampled points",
}
LARGER = replace(BASE, people=128, components=64, steps=600, measured=100)
SETTINGS |= {"128 people": LARGER, "128 people, own scenes": replace(LARGER, own_scenes=True)}
#: The paper's way.
COLLECTED = {"a LoRA each": BASE, "a LoRA each, rank 1": replace(BASE, rank=1)}
SHIPPED = "512 people, as shipped"


def run(
    quick: bool = False,
    minutes: float = float("inf"),
    folder: Path = host.ROOT / ".cache" / "weights",
) -> Path:
    """Train and judge what is not kept yet; writes what there is."""
    generator = Generator.load(WORLD)
    arms = {"base": BASE, **COLLECTED, SHIPPED: BASE, **SETTINGS}
    if quick:
        arms = {name: replace(arms[name], steps=20, people=32) for name in ("base", "a LoRA each")}
    name, started, left = "weights_factors" + "_quick" * quick, time.monotonic(), list[str]()
    kept = results.Rows(name, {"base": asdict(BASE), "sampled": SAMPLED, "arms": len(arms)})
    numbers: dict[str, dict] = {}
    found: dict[str, np.ndarray] = {}
    for arm, setting in arms.items():
        if arm not in kept and time.monotonic() - started > 60 * minutes:
            left.append(arm)
            continue
        make = _collected if arm in COLLECTED else _shipped if arm == SHIPPED else _learned
        row = kept.row(arm, lambda make=make, setting=setting: make(generator, setting, folder))
        print(arm, {key: round(float(np.mean(value)), 3) for key, value in row.items()}, flush=True)
        for key in ("identity", "consistent", "chance agreement"):
            numbers[f"{arm}: {key}"] = results.bootstrap(
                np.array(row[key]), _UNITS[key], "fraction"
            )
        found[arm] = np.array(row["identity"])
    for arm in [arm for arm in ("base", SHIPPED) if found.keys() >= {arm, "a LoRA each"}]:
        gain = found[arm] - found["a LoRA each"]
        numbers[f"{arm} less a LoRA each: identity"] = results.bootstrap(
            gain, "paired on the same members", "fraction"
        )
    if left:
        print(f"Left for another run: {', '.join(left)}.")
    return results.write(name, "python run.py study weights factors", 0, (ASSETS, ASSET), numbers)


def _group(setting: Setting) -> list[Person]:
    return [person(number, SEED, setting.own_scenes) for number in range(setting.people)]


def _images(generator, setting: Setting, group: list[Person], folder: Path) -> Encoded:
    """The first images of each; whatever has the same people and scenes shares a file."""
    found = cached(
        group, generator, folder / "factors" / f"{len(group)}{'_own' * setting.own_scenes}.pt"
    )
    return Encoded(*(part[:, : setting.images] for part in (found.latents, found.contexts)))


def _learned(generator, setting: Setting, folder: Path) -> dict:
    """Train a space, and judge its members and sampled points."""
    method, training = (
        host.pack("nodes.weights.learned_space"),
        host.pack("nodes.weights.space_training"),
    )
    trainer, group = (
        Trainer(generator, Plan(rank=setting.rank, alpha=setting.rank)),
        _group(setting),
    )
    data, started = _images(generator, setting, group, folder), time.perf_counter()
    layout = attention_layout(
        trainer.network, setting.rank, float(setting.rank), layers=LAYERS[setting.layers]
    )
    updates = method.LearnedUpdates(
        layout, len(group), min(setting.components, len(group)), setting.seed, device()
    )
    updates.projections.requires_grad_(not setting.frozen)
    count = data.latents.shape[1]
    images = [range(first, first + count) for first in range(0, len(group) * count, count)]
    rows = range(len(group) * count)
    how = {
        "members": A_STEP,
        "images": min(IMAGES_EACH, count),
        "prior": setting.prior,
        "seed": setting.seed,
    }
    given = training.SpaceTrainingSettings(steps=setting.steps, **how)
    work = training.SpaceTraining(
        updates, training.MemberImages(images=images, kinds=[0] * len(rows), conditions=rows), given
    )
    with adapted(trainer.network, updates):
        work.run(Session(trainer, generator, data), lambda done: None)
    seconds = time.perf_counter() - started
    draws = torch.Generator().manual_seed(setting.seed)
    sampled = torch.stack([updates.flat(updates.sampled_code(draws)) for _ in range(SAMPLED)])
    members = torch.stack(
        [updates.flat(code) for code in updates.codes.detach()[: setting.measured]]
    )
    return _judged(_study(generator, trainer), layout, group, members, sampled) | {
        "seconds": seconds
    }


def _collected(generator, setting: Setting, folder: Path) -> dict:
    """A LoRA for each person on as many rows as the base's, in cohorts of 32, and points of the law
    of their sum.
    """
    plan = Plan(cohort=32, rows=IMAGES_EACH, rank=setting.rank, alpha=float(setting.rank))
    trainer, group = Trainer(generator, plan), _group(setting)
    data, started, found = _images(generator, setting, group, folder), time.perf_counter(), []
    steps = setting.steps * A_STEP // setting.people
    for first in range(0, setting.people, plan.cohort):
        part = Encoded(
            *(each[first : first + plan.cohort] for each in (data.latents, data.contexts))
        )
        path = folder / "factors" / f"cohort_{setting.people}_{steps}_{first}.pt"
        found.append(trainer.cohort(part, path, steps))
        path.unlink(missing_ok=True)
    flats, seconds = torch.cat(found), time.perf_counter() - started
    draws, mean = torch.Generator().manual_seed(setting.seed), flats.mean(0)
    noise = torch.randn(SAMPLED, len(flats), generator=draws)
    sampled = mean + noise @ (flats - mean) / (len(flats) - 1) ** 0.5
    study = _study(generator, trainer)
    return _judged(study, trainer.layout, group, flats[: setting.measured], sampled) | {
        "seconds": seconds
    }


def _shipped(generator, setting: Setting, folder: Path) -> dict:
    """Judge the first members of the space that ships, the people of all others, and sampled
    points.
    """
    study, group = load(setting.measured), _group(setting)[: setting.measured]
    space, sample = study.space, host.pack("nodes.weights.points").sample
    sampled = factors(sample(space, setting.seed, SAMPLED, space.components, 1.0))
    return _judged(study, space.layout, group, factors(study.points(group)), sampled)


def _study(generator, trainer) -> Study:
    return Study(
        None, ImageSampler(generator, trainer), host.pack("nodes.demo.judge").load(WORLD), 0
    )


def _judged(study: Study, layout, group, members: torch.Tensor, sampled: torch.Tensor) -> dict:
    """For each member the attributes recognized, for each sampled point whether its two images
    agree, and by chance.
    """
    shown, how = group[: len(members)], {"layout": layout, **WAYS[GUIDED]}
    identity = fractions(study.read(members, prompts(shown), NOISE, **how)[0], truth(shown))
    # Scenes of sampled points: those of people, again where they are more than people.
    others = [group[number % len(group)] for number in range(len(sampled))]
    first, second = (
        study.read(sampled, prompts(others, image), NOISE + 10_000 * (1 + image), **how)[0]
        for image in (0, 1)
    )
    chance = fractions(first, np.roll(second, 1, axis=0))
    agree = fractions(first, second)
    return {
        "identity": identity.tolist(),
        "consistent": agree.tolist(),
        "chance agreement": chance.tolist(),
    }
