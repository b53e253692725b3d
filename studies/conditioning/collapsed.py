"""Seed Variety on a distilled model whose seeds have collapsed, as those of real ones do.

`python run.py study conditioning collapsed` trains a second student of four Euler steps without
guidance, by distribution matching distillation (DMD; Yin et al., CVPR 2024, arXiv 2311.18828) in
its form for several steps (DMD2, arXiv 2405.14867): the student is run from noise, and the clean
latent of one of its steps moves along the difference of two scores, those of the guided teacher
and of a network that follows the student's own outputs (equation 7, weighted by equation 8).
Neither the regression loss, which keeps a student's seeds apart, nor DMD2's discriminator is
there. Both networks begin as the teacher.

A follower of this size keeps up with the student: with guidance 5 and 7.5 alike the distance
between seeds fell to three fifths of the teacher's within 100 steps and stayed there. From
`LAG_FROM` of the training on it therefore counts in part alone, as one that lags behind does, and
the seeds collapse. `LAG` was chosen for that, on other prompts than are measured.

Then every way of `variety` that acts without guidance, constant noise in the first step alone, and
the teacher in the first step (Gandikota and Bau, arXiv 2503.10637). Since they lose captions in
different measure, each is also read where it loses the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise

import numpy as np
import torch

from ..common import host, results
from ..common.bare_network import BareNetwork
from ..common.training import Plan, device, train
from ..world.autoencoder import CHANNELS
from ..world.generate import Generator
from ..world.release import ASSETS
from ..world.scenes import Metadata, random_scene
from . import sampled_images, variety
from . import student as regression

STEPS, CFG = regression.STEPS, regression.CFG
#: Guidance of the teacher's score: above the 3 that it samples with, as real models bake in.
REAL_CFG = 7.5
#: `gradient`'s lag, and the fraction of the training from which it acts.
LAG, LAG_FROM = 0.35, 7 / 12
CAPTIONS, BATCH = 1024, 16
#: Timesteps, of 1000, between which outputs are noised: the paper's 2 to 98 %.
LOWEST, HIGHEST = 20, 980
PLAN = Plan(steps=600, learning_rate=2e-4, warmup=20, ema_decay=0.98, seed=5)
QUICK_CAPTIONS, QUICK_PLAN = 16, Plan(steps=3, learning_rate=1e-4, warmup=2, seed=5)
#: Fractions of captions lost at which ways are compared.
LOSSES = (0.05, 0.1)
#: The method that Seed Variety's node comes with, and what the quick part measures.
OWN = "annealed, tau1"
QUICK = ("stock", "annealed, tau1 0.4", "late prompt, from 0.8", "teacher's first step, guidance 3")
#: Steps between two looks at the seeds, the measures read there, and the seeds' numbers.
EVERY, WATCHED, SEED = 50, ("features", "captions"), 9_000_000
STUDENT = "student."
_GAIN = "gain in 1 - cosine of the judge's features between seeds"

Predict = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def gradient(
    clean: torch.Tensor, real: torch.Tensor, fake: torch.Tensor, lag: float = 0.0
) -> torch.Tensor:
    """The gradient of the divergence by an output ``clean``, equations 7 and 8, each (n, C, H, W).

    ``real`` and ``fake``: what the two networks take the noised output's clean latent to be. For
    x = clean + sigma * noise a score is (prediction - x) / sigma^2. Equation 8's sigma^2 then
    leaves the difference of the predictions, over the mean distance of the output from ``real``.

    ``lag``: the fraction of ``fake`` in whose place the output itself stands. With 1 this is score
    distillation (DreamFusion, arXiv 2209.14988, equation 3), which has no entropy to keep.
    """
    distance = (clean - real).abs().mean(dim=(1, 2, 3), keepdim=True)
    return (torch.lerp(fake, clean, lag) - real) / distance.clamp(min=1e-6)


def surrogate(clean: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    """A loss whose gradient by ``clean`` (n, C, H, W) is ``slope`` over the number of values."""
    return 0.5 * (clean - (clean - slope).detach()).square().mean()


def passed(
    predict: Predict, noise: torch.Tensor, sigmas: torch.Tensor, texts: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The latents (n, C, H, W) before each Euler step and their level (n,).

    ``noise`` has unit variance; ``sigmas`` (steps + 1,) are the levels of the run.
    """
    x = noise * (1 + sigmas[0] ** 2).sqrt()
    for high, low in pairwise(sigmas):
        levels = high.expand(len(x))
        yield x, levels
        x = x + (low - high) * (x - predict(x, levels, texts)) / high


def taught(count: int, plan: Plan) -> list:
    """Everything that a student depends on; it is kept under these settings alone."""
    fixed = [
        STEPS,
        REAL_CFG,
        LAG,
        LAG_FROM,
        BATCH,
        LOWEST,
        HIGHEST,
        regression.SEED,
        regression.LONGEST_DROP,
    ]
    return [count, *fixed, plan, results.assets_hash(ASSETS)]


def collapse(
    generator: Generator,
    count: int,
    plan: Plan,
    watch: Callable[[dict[str, torch.Tensor], int], None] | None = None,
):
    """The student as a MODEL, from ``count`` captions; goes on from its checkpoint where there is
    one. ``watch(weights, step)`` is called every `EVERY` steps.
    """
    model, follower = (host.pack("nodes.demo.denoiser").load(sampled_images.WORLD) for _ in "ab")
    student, fake = (BareNetwork(each, autocast=True) for each in (model, follower))
    teacher = BareNetwork(generator.model, autocast=True)
    both = torch.nn.ModuleDict({"student": student.network, "fake": fake.network})
    both.requires_grad_(True)
    with torch.inference_mode():
        encoded = torch.cat(sampled_images.encoded(generator, regression.texts(count)))
        nothing = sampled_images.encoded(generator, [""])[0]
    contexts, empty = encoded.clone(), nothing.clone().to(device())
    sigmas = regression.levels(student.sampling).to(device())

    def loss(draws: torch.Generator, progress: float) -> torch.Tensor:
        rows = torch.randint(len(contexts), (BATCH,), generator=draws)
        texts = contexts[rows].to(device())
        noise, again = (
            torch.randn(BATCH, CHANNELS, 16, 16, generator=draws).to(device()) for _ in "ab"
        )
        step = int(torch.randint(STEPS, (1,), generator=draws))
        with torch.no_grad():
            before, high = next(islice(passed(student.clean, noise, sigmas, texts), step, None))
        # Autocast keeps weights that it cast without gradients, and would take them below.
        torch.clear_autocast_cache()
        clean = student.clean(before, high, texts)
        times = torch.randint(LOWEST, HIGHEST, (BATCH,), generator=draws)
        levels = torch.stack([student.sampling.sigma(time) for time in times]).to(device())
        spread = levels.view(-1, 1, 1, 1)
        noised = clean.detach() + spread * again
        with torch.no_grad():
            given, without = (
                teacher.clean(noised, levels, each) for each in (texts, empty.expand(BATCH, -1, -1))
            )
        real = without + REAL_CFG * (given - without)
        followed = fake.clean(noised, levels, texts)
        # The error of v, in which the network predicts and was trained.
        follow = ((1 + spread**-2) * (followed - clean.detach()).square()).mean()
        lag = LAG if progress >= LAG_FROM else 0.0
        return surrogate(clean, gradient(clean, real, followed, lag).detach()) + follow

    checkpoint = regression._file("collapsed", taught(count, plan))
    train(both, loss, plan, checkpoint, every=EVERY, watch=watch)
    both.requires_grad_(False)
    return model


@dataclass(frozen=True, kw_only=True)
class Settings(variety.Settings):
    """`variety`'s with more prompts: four steps without guidance cost a fifth."""

    @property
    def prompts(self) -> int:
        return 2 if self.quick else 24


def watched(
    generator: Generator, network: torch.nn.Module, kept: results.Rows, quick: bool
) -> Callable[[dict[str, torch.Tensor], int], None]:
    """A watch of `collapse` that keeps how much seeds differ, and captions, in rows by step; on
    prompts that are not measured later.
    """
    probe = host.pack("nodes.demo.denoiser").load(sampled_images.WORLD)
    settings = Settings(steps=STEPS, cfg=CFG, quick=quick)
    rng = np.random.default_rng(variety.SEED + 1)
    scenes = [random_scene(rng, Metadata()) for _ in range(2 if quick else 6)]

    def read() -> dict[str, list[float]]:
        found = [
            variety._read(
                generator,
                network,
                variety.Contender(model=probe),
                scene=scene,
                seeds=range(SEED + 1000 * number, SEED + 1000 * number + settings.seeds),
                settings=settings,
            )
            for number, scene in enumerate(scenes)
        ]
        return {key: [row[key] for row in found] for key in WATCHED}

    def watch(weights: dict[str, torch.Tensor], step: int) -> None:
        own = {name: value for name, value in weights.items() if name.startswith(STUDENT)}
        probe.model.diffusion_model.load_state_dict(
            {name.removeprefix(STUDENT): value for name, value in own.items()}
        )
        row = kept.row(str(step), read)
        print(step, {key: round(float(np.mean(row[key])), 3) for key in WATCHED}, flush=True)

    return watch


def teacher_first(model, teacher, empty: torch.Tensor, guidance: float):
    """A clone of ``model`` whose first step is the teacher's; ``empty``: the encoded empty prompt
    (1, 77, 128).
    """
    end = float(regression.levels(model.get_model_object("model_sampling"))[1])

    def evaluate(own: Callable, arguments: dict) -> torch.Tensor:
        x, sigmas, given = (arguments[key] for key in ("input", "timestep", "c"))
        if float(sigmas[0]) < 1.01 * end:
            return own(x, sigmas, **given)
        answer = teacher.model.apply_model(x, sigmas, **given)
        if guidance == 1:
            return answer
        nothing = given | {"c_crossattn": empty.to(x).expand(len(x), -1, -1)}
        without = teacher.model.apply_model(x, sigmas, **nothing)
        return without + guidance * (answer - without)

    clone = model.clone()
    clone.set_model_unet_function_wrapper(evaluate)
    return clone


def contenders(model, teacher, empty: torch.Tensor) -> dict[str, variety.Contender]:
    """By name, the settings of a way from weak to strong."""
    found = {
        name: contender
        for name, contender in variety.contenders(model, empty).items()
        if not name.startswith("guidance")  # there is none
    }
    # Of four steps the first alone lies above t = 0.8.
    for scale in (0.5, 1.0, 2.0, 3.0):
        found[f"constant until 0.8, {scale:g}"] = variety._varied(model, "constant", scale, 0.8)
    for guidance in (1.0, 3.0):
        found[f"teacher's first step, guidance {guidance:g}"] = variety.Contender(
            model=teacher_first(model, teacher, empty, guidance)
        )
    return found


def way(name: str) -> str:
    """The way of a contender's name, without its setting."""
    return name.rpartition(" ")[0].rstrip(",")


def gain_at(lost: np.ndarray, gained: np.ndarray, most: float) -> float:
    """The largest gain of a way where it loses at most ``most``.

    ``lost`` and ``gained`` (settings,), from weak to strong; no change, which loses and gains
    nothing, comes before them. Between two settings both change in proportion.
    """
    points = [(0.0, 0.0), *zip(lost, gained, strict=True)]
    found = [gain for loss, gain in points if loss <= most]
    for (loss, gain), (next_loss, next_gain) in pairwise(points):
        if (loss - most) * (next_loss - most) < 0:
            fraction = (most - loss) / (next_loss - loss)
            found.append(gain + fraction * (next_gain - gain))
    return float(max(found))


def at_equal_losses(measured: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, dict]:
    """Every way's gain in distance at `LOSSES`, and Seed Variety's less it; ``measured`` has a
    contender's measures by name, each (prompts,).
    """
    stock, paths = measured["stock"], {}
    for name, values in measured.items():
        if name != "stock":
            lost = stock["captions"] - values["captions"]
            gained = values["features"] - stock["features"]
            paths.setdefault(way(name), []).append(np.stack([lost, gained], axis=1))
    # (prompts, settings, 2) for each way
    stacked = {name: np.stack(path, axis=1) for name, path in paths.items()}

    def gain(rows: np.ndarray, most: float) -> float:
        return gain_at(*rows.mean(0).T, most)

    numbers, own = {}, stacked[OWN]
    for most in LOSSES:
        for name, path in stacked.items():
            numbers[f"{name}: gain at {most:g} of captions lost"] = results.bootstrap(
                path,
                f"{_GAIN} where at most {most:g} of captions are lost, between settings in "
                "proportion",
                "distance",
                statistic=partial(gain, most=most),
            )
            if name == OWN:
                continue

            def difference(rows: np.ndarray, most: float = most) -> float:
                ours, theirs = np.split(rows, [own.shape[1]], axis=1)
                return gain(ours, most) - gain(theirs, most)

            numbers[f"{OWN} less {name}: gain at {most:g} of captions lost"] = results.bootstrap(
                np.concatenate([own, path], axis=1),
                f"{_GAIN} at equal losses, of Seed Variety less this way, paired by prompt",
                "distance",
                statistic=difference,
            )
    return numbers


def measure(quick: bool) -> dict[str, dict]:
    """The student's seeds and captions along its training and beside its teacher's, and every
    contender on it.
    """
    generator, network = sampled_images.load()
    count, plan = (QUICK_CAPTIONS, QUICK_PLAN) if quick else (CAPTIONS, PLAN)
    stem = "conditioning_collapsed" + "_quick" * quick
    trained = {"student": repr(taught(count, plan))}
    # Stays on the disk as the checkpoint does: a student that is kept is not watched again.
    along = results.Rows(f"{stem}_along", trained)
    student = collapse(generator, count, plan, watched(generator, network, along, quick))
    numbers = {}
    for step in filter(lambda step: str(step) in along, range(plan.steps + 1)):
        for key, values in along.row(str(step), dict).items():
            what, unit = variety.MEASURES[key]
            numbers[f"after {step} steps: {key}"] = results.bootstrap(values, what, unit)
    of_teacher = variety.measured(
        generator,
        network,
        {"stock": variety.Contender(model=generator.model)},
        Settings(steps=variety.STEPS, cfg=variety.CFG, quick=quick),
        results.Rows(f"{stem}_teacher", {"steps": variety.STEPS}),
    )
    numbers |= {f"teacher, {name}": value for name, value in of_teacher.items()}
    empty = sampled_images.encoded(generator, [""])[0]
    chosen = contenders(student, generator.model, empty)
    if quick:
        chosen = {name: chosen[name] for name in QUICK}
    mine = Settings(steps=STEPS, cfg=CFG, quick=quick)
    kept = results.Rows(f"{stem}_student", trained)
    own = Generator(student, generator.clip, generator.vae)
    numbers |= variety.measured(own, network, chosen, mine, kept)
    rows = {
        name: [kept.row(f"{name}, prompt {number}", dict) for number in range(mine.prompts)]
        for name in chosen
    }
    return numbers | at_equal_losses(
        {
            name: {key: np.array([row[key] for row in each]) for key in variety.MEASURES}
            for name, each in rows.items()
        }
    )
