"""The learned space of the demo world: `python run.py study weights learned` trains it, in pieces
that resume.

The training is that of W2W Train Space (nodes/weights/space_training.py) on the population's
people, scenes and captions; only the session that evaluates the network is the study's own, on
queries and values, in bfloat16 where the device multiplies it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from PIL import Image

from ..common import host
from ..common.training import device
from ..world.release import WORLD
from ..world.scenes import render
from .grouped import attention_layout, targets
from .people import LABELS, Encoded, Person, cached, caption, person
from .population import Plan, Trainer
from .release import ASSET, face_name

RANK, COMPONENTS, STEPS, IMAGES_EACH = 4, 96, 900, 3
#: The folders of demo_weights_train_space, and the numbers of their identities.
DEMO_FOLDER, DEMO_PEOPLE = ASSET.parent / "avatars-v2-people", 700_000


class Session:
    """What `SpaceTraining` needs of a model, on the demo world's network without ComfyUI's
    samplers.

    ``latents``: each (1, C, H, W) in the model's scale; ``contexts``: the conditions.
    """

    def __init__(self, trainer: Trainer, generator, data: Encoded):
        self.sampling, self.device, self._trainer = (
            generator.model.model.model_sampling,
            device(),
            trainer,
        )
        self.latents = [one[None].float() for one in data.latents.flatten(0, 1)]
        self._contexts = data.contexts

    def sigma(self, percent: float) -> float:
        return min(float(self.sampling.percent_to_sigma(percent)), float(self.sampling.sigma_max))

    def noised(self, latent, noise, sigmas):
        return self.sampling.noise_scaling(sigmas, noise, latent, False)

    def clean(self, latent):
        return latent

    def rows_at_once(self, count: int, shape, *, gradients: bool = True) -> int:
        return count  # rows of 24 x 16 x 16 fit any machine

    def denoised(self, noised, sigmas, rows, images=None):
        contexts = self._contexts.flatten(0, 1)[rows].float().to(self.device)
        scaled = self.sampling.calculate_input(sigmas, noised)
        answer = self._trainer.predict(scaled, self.sampling.timestep(sigmas).float(), contexts)
        return self.sampling.calculate_denoised(sigmas, answer, noised)


class _Layer(torch.nn.Module):
    def __init__(self, base: torch.nn.Module, updates, slot):
        super().__init__()
        self.base, self._updates, self._slot = base, updates, slot

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self._updates.change(self._slot, x)


@contextmanager
def adapted(network: torch.nn.Module, updates, prefix: str = "diffusion_model.") -> Iterator[None]:
    """The network with its layers changed by `LearnedUpdates` while the block runs."""
    wrapped = list(targets(network, {slot.layer: slot for slot in updates.layout.slots}, prefix))
    for owner, name, base, slot in wrapped:
        setattr(owner, name, _Layer(base, updates, slot))
    try:
        yield
    finally:
        for owner, name, base, _ in wrapped:
            setattr(owner, name, base)


def train(
    generator,
    group: list[Person],
    folder: Path,
    rank: int = RANK,
    components: int = COMPONENTS,
    steps: int = STEPS,
    images_each: int = IMAGES_EACH,
    start: Path | None = None,
):
    """Train people together, or go on from the checkpoint in ``folder``; the updates, and the
    seconds of this run.

    ``start``: the file of a learned space of the same people, rank and components, whose updates
    are trained further.
    """
    method, training = (
        host.pack("nodes.weights.learned_space"),
        host.pack("nodes.weights.space_training"),
    )
    trainer = Trainer(generator, Plan())
    data = cached(group, generator, folder / f"images_{len(group)}.pt")
    count = data.latents.shape[1]
    layout = attention_layout(trainer.network, rank, float(rank))
    updates = method.LearnedUpdates(layout, len(group), components, 0, device())
    if start is not None:
        start_from(updates, host.pack("nodes.weights.space_file").read(start))
    images = [range(first, first + count) for first in range(0, len(group) * count, count)]
    rows = list(range(len(group) * count))
    given = training.MemberImages(images=images, kinds=[0] * len(rows), conditions=rows)
    run = training.SpaceTraining(
        updates, given, training.SpaceTrainingSettings(steps=steps, images=images_each)
    )
    path, started = folder / f"learned_{len(group)}_{components}_{steps}.pt", time.perf_counter()
    if path.exists():
        _restore(run, path)
    first = run.steps_done

    def on_step(done: int) -> None:
        if done % 10 == 0 or done == steps:
            _save(run, path)
            pace = (time.perf_counter() - started) / (done - first)
            print(
                f"step {done}: loss {sum(run.losses[-10:]) / 10:.4f}, {pace:.2f} s a step",
                flush=True,
            )

    with adapted(trainer.network, updates):
        run.run(Session(trainer, generator, data), on_step)
    return updates, time.perf_counter() - started


@torch.no_grad()
def start_from(updates, space) -> None:
    """Give updates the members of a learned space: directions are its basis vectors, each scaled so
    that codes are spread as at the start of a training.

    Raises ValueError for a space of another number of members, components or layers.
    """
    method = host.pack("nodes.weights.learned_space")
    point = host.pack("nodes.weights.space").Point
    sizes = (updates.layout.size, *updates.codes.shape)
    if sizes != (space.layout.size, len(space.members), space.components):
        raise ValueError(f"{space.about['name']} is no space of this population: retrain it.")
    slots = space.layout.slots
    downs = torch.cat([torch.arange(slot.offset, slot.up_offset) for slot in slots])
    ups = torch.cat([torch.arange(slot.up_offset, slot.end) for slot in slots])
    units = torch.eye(space.components)
    flats = torch.stack([point(space, unit).flat for unit in units])
    basis = (flats - space.mean)[:, ups].double()
    # The mean update lies in the span of the directions, as all members do.
    mean = torch.linalg.lstsq(basis.T, space.mean[ups].double()[:, None]).solution[:, 0]
    spread = space.coefficients.double().std(dim=0) / method.CODE_SPREAD
    codes = (space.coefficients.double() + mean) / spread
    for name, value in (
        ("projections", space.mean[downs]),
        ("directions", basis * spread[:, None]),
        ("codes", codes),
    ):
        updates.parameters[name].copy_(value.float())


def write(updates, group: list[Person], path: Path = ASSET) -> Path:
    """The space of trained updates with labels and faces, its basis in int8: what the pack
    ships.
    """
    space = updates.space(
        tuple(one.name for one in group), path.stem, f"Glassbox demo model {WORLD}"
    )
    rows = torch.tensor([person.labels() for person in group])
    about = {
        "prompt": "portrait",
        "licence": "MIT",
        "training": f"learned from {len(group)} identities, rank {updates.layout.rank}",
        "faces": [face_name(person) for person in group],
    }
    labels = {name: rows[:, column] for column, name in enumerate(LABELS)}
    space = replace(space, labels=labels, about={**space.about, **about}, squares=None)
    error = host.pack("nodes.weights.space_file").write(
        space, path, "int8", coefficients=torch.float16
    )
    print(
        f"{path.name}: {path.stat().st_size / 1e6:.2f} MB, {len(group)} members, storage error "
        f"{error}"
    )
    return path


def write_folders(folder: Path, count: int = 16, images_each: int = 5) -> None:
    """Folders of images with captions, of people who are in no population: the demo of W2W Train
    Space.
    """
    for number in range(count):
        one = person(DEMO_PEOPLE + number, own_scenes=True)
        own = folder / f"person_{number:02}"
        own.mkdir(parents=True, exist_ok=True)
        for place, scene in enumerate(one.scenes[:images_each]):
            Image.fromarray(render(scene)).save(
                own / f"{place}.webp", lossless=True, quality=100, method=6
            )
            (own / f"{place}.txt").write_text(caption(scene) + "\n", "utf-8")


def _save(run, path: Path) -> None:
    temporary = path.with_suffix(".tmp")
    values = {name: value.detach() for name, value in run.updates.parameters.items()}
    torch.save(
        {"values": values, "optimizer": run.optimizer.state_dict(), "losses": run.losses}, temporary
    )
    temporary.replace(path)


def _restore(run, path: Path) -> None:
    state = torch.load(path, map_location=device(), weights_only=True)
    for name, value in run.updates.parameters.items():
        value.data.copy_(state["values"][name])
    run.optimizer.load_state_dict(state["optimizer"])
    run.losses[:] = state["losses"]
