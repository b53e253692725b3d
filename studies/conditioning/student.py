"""Seeds of a distilled model: a student of four steps without guidance, and Seed Variety on it.

`python run.py study conditioning student` distils the shipped model (guidance 3 and twelve Euler
steps in the teacher, guidance 1 and four in the student): at each of the four noise levels of
KSampler's "normal" schedule the student learns the clean latent whose Euler step ends where the
teacher's trajectory passes. Then: how much its seeds differ beside the teacher's, and every way of
`variety` that acts without guidance.
"""

from __future__ import annotations

import hashlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from ..common import host, results
from ..common.bare_network import BareNetwork
from ..common.training import Plan, device, train
from ..world import captions
from ..world.autoencoder import CHANNELS
from ..world.generate import Generator
from ..world.release import ASSETS
from ..world.scenes import Metadata, random_scene
from . import sampled_images, variety

STEPS, CFG = 4, 1.0
#: Euler steps of the teacher between two levels of the student, and its guidance.
SUBSTEPS, TEACHER_CFG = 3, 3.0
TRAJECTORIES, BATCH, SEED = 1024, 24, 8_000_000
PLAN = Plan(steps=1200, learning_rate=2e-4, warmup=50, ema_decay=0.99, seed=3)
QUICK_TRAJECTORIES, QUICK_PLAN = 16, Plan(steps=8, learning_rate=2e-4, warmup=2, seed=3)
#: Phrases of a caption are left out with a probability up to this.
LONGEST_DROP = 0.8
_FOLDER = host.ROOT / ".cache" / "conditioning"


def levels(sampling) -> torch.Tensor:
    """The noise levels (STEPS + 1,) of the student's run; the last is 0."""
    import comfy.samplers

    return comfy.samplers.calculate_sigmas(sampling, "normal", STEPS).float()


def between(sampling, sigmas: torch.Tensor) -> list[torch.Tensor]:
    """For each step of the student the noise levels (SUBSTEPS + 1,) of the teacher, evenly spaced
    in time.
    """
    steps = []
    for high, low in pairwise(sigmas):
        last = float(sampling.timestep(low)) if low > 0 else 0.0
        times = torch.linspace(float(sampling.timestep(high)), last, SUBSTEPS + 1)
        inner = [float(sampling.sigma(time)) for time in times[1:-1]]
        steps.append(torch.tensor([float(high), *inner, float(low)]))
    return steps


def clean_for_step(
    before: torch.Tensor, after: torch.Tensor, high: torch.Tensor, low: torch.Tensor
) -> torch.Tensor:
    """The clean latent whose Euler step from noise level ``high`` to ``low`` leads from ``before``
    to ``after``, each (n, ...); levels (n, 1, ...).
    """
    return before - high * (after - before) / (low - high)


def texts(count: int) -> list[str]:
    """Captions of random scenes, from nearly empty to whole."""
    rng = np.random.default_rng(SEED)
    drawn = [random_scene(rng, Metadata()) for _ in range(count)]
    return [captions.caption(scene, rng, rng.uniform(0, LONGEST_DROP)) for scene in drawn]


@torch.no_grad()
def trajectories(generator: Generator, contexts: torch.Tensor, batch: int = 64) -> torch.Tensor:
    """Where the guided teacher passes the student's noise levels: (n, STEPS + 1, C, 16, 16)."""
    teacher = BareNetwork(generator.model, autocast=True)
    sigmas = levels(teacher.sampling)
    empty = sampled_images.encoded(generator, [""])[0].to(device())
    found = []
    for first in range(0, len(contexts), batch):
        positive = contexts[first : first + batch].to(device())
        negative = empty.expand(len(positive), -1, -1)
        both = torch.cat([positive, negative])
        noise = [
            torch.randn(CHANNELS, 16, 16, generator=torch.Generator().manual_seed(SEED + number))
            for number in range(first, first + len(positive))
        ]
        x = torch.stack(noise).to(device()) * (1 + sigmas[0] ** 2).sqrt()
        passed = [x.cpu()]
        for inner in between(teacher.sampling, sigmas):
            for high, low in pairwise(inner):
                rows = high.expand(len(both)).to(device())
                given, without = teacher.clean(torch.cat([x, x]), rows, both).chunk(2)
                clean = without + TEACHER_CFG * (given - without)
                x = x + (low - high) * (x - clean) / high
            passed.append(x.cpu())
        found.append(torch.stack(passed, dim=1))
        print(f"\rtrajectories {first + len(positive)}/{len(contexts)}", end="", flush=True)
    print()
    return torch.cat(found)


def distil(generator: Generator, count: int, plan: Plan):
    """The student as a MODEL; goes on from its checkpoint where there is one."""
    taught = [count, STEPS, SUBSTEPS, TEACHER_CFG, SEED, LONGEST_DROP, results.assets_hash(ASSETS)]
    student = host.pack("nodes.demo.denoiser").load(sampled_images.WORLD)
    network = BareNetwork(student, autocast=True)
    network.network.requires_grad_(True)
    with torch.inference_mode():
        encoded = torch.cat(sampled_images.encoded(generator, texts(count)))
    contexts = encoded.clone()
    passed = _kept(_file("trajectories", taught), lambda: trajectories(generator, contexts))
    sigmas = levels(network.sampling)

    def loss(draws: torch.Generator, _progress: float) -> torch.Tensor:
        rows = torch.randint(len(passed), (BATCH,), generator=draws)
        steps = torch.randint(STEPS, (BATCH,), generator=draws)
        before, after = (passed[rows, steps + place].to(device()) for place in (0, 1))
        high, low = (sigmas[steps + place].view(-1, 1, 1, 1).to(device()) for place in (0, 1))
        clean = network.clean(before, high.flatten(), contexts[rows].to(device()))
        # Where there is little noise the clean latent is nearly given, and counts for less.
        scale = high.square() / (high.square() + 1)
        error = (clean - clean_for_step(before, after, high, low)).square()
        return (scale * error).mean()

    train(network.network, loss, plan, _file("student", [*taught, BATCH, plan]))
    network.network.requires_grad_(False)
    return student


def _file(name: str, settings: list) -> Path:
    """Where work of these settings is kept: other settings never read it."""
    digest = hashlib.sha256(repr(settings).encode()).hexdigest()[:12]
    return _FOLDER / f"{name}_{digest}.pt"


def _kept(path: Path, make) -> torch.Tensor:
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(make(), path)
    return torch.load(path, weights_only=True)


def measure(quick: bool) -> dict[str, dict]:
    """The student's variety and captions beside its teacher's, and every contender on it."""
    generator, network = sampled_images.load()
    count, plan = (QUICK_TRAJECTORIES, QUICK_PLAN) if quick else (TRAJECTORIES, PLAN)
    student = distil(generator, count, plan)
    student_generator = Generator(student, generator.clip, generator.vae)
    stem = "conditioning_student" + "_quick" * quick
    numbers = variety.measured(
        generator,
        network,
        {"stock": variety.Contender(model=generator.model)},
        variety.Settings(steps=variety.STEPS, cfg=variety.CFG, quick=quick),
        results.Rows(f"{stem}_teacher", {"steps": variety.STEPS}),
    )
    numbers = {f"teacher, {name}": value for name, value in numbers.items()}
    empty = sampled_images.encoded(generator, [""])[0]
    chosen = {
        name: contender
        for name, contender in variety.contenders(student, empty).items()
        if not name.startswith("guidance")  # there is none
    }
    if quick:
        chosen = {name: chosen[name] for name in ("stock", "annealed, tau1 0.4")}
    numbers |= variety.measured(
        student_generator,
        network,
        chosen,
        variety.Settings(steps=STEPS, cfg=CFG, quick=quick),
        results.Rows(f"{stem}_student", {"pairs": count, "plan": repr(plan)}),
    )
    return numbers
