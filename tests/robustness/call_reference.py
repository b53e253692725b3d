"""Prompts with areas, couples and tiles, and a reference that samples each of their parts alone.

The reference samples each part of a prompt alone: its area is cut out of the latent and evaluated
in a call of its own, tile by tile, with the node on the MODEL and that place's part of the mask,
and is put back as ComfyUI weighs it. So in the reference nobody has to know whose rows are whose. A
node must end with the reference's result or in one sentence.
"""

from __future__ import annotations

import itertools
import math
import random
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from tools.launcher import in_process, paths

sys.path.insert(0, str(paths.ROOT / "tests" / "helpers"))

import reduced
from tapping import World, hooks_left

#: How a node can end: as the reference, in a sentence of the pack, in another error, or with
#: another result.
KINDS = ("right", "sentence", "bare", "wrong")
DEFECTS = KINDS[2:]
HEIGHT, WIDTH, _STEPS, _SEED = 96, 128, 2, 5
_SCHEDULER = "simple"  # whose second step is in the middle of the range
_TEXTS = ("portrait, red hair", "a blue hoodie on a tall man", "green", "portrait, " * 40 + "hat")
_NETWORK = {
    **{
        "num_res_blocks": [1, 1],
        "channel_mult": [1, 2],
        "transformer_depth": [1, 1],
        "transformer_depth_middle": 1,
    },
    **{"transformer_depth_output": [1] * 4, "num_heads": 4},
}
#: Errors that are one readable sentence or two.
_SENTENCE = re.compile(r"[A-Z'].{20,900}[.]", re.DOTALL)


@dataclass(frozen=True)
class Text:
    """A part of a prompt: its text, where it acts in pixels (x, y, width, height), how strongly and
    when.
    """

    text: str
    place: tuple[int, int, int, int] | None = None
    how: str = "area"  # "area", "percent", "mask", "bounds" (a mask, cut to its bounds)
    strength: float = 1.0
    range: tuple[float, float] = (0.0, 1.0)


@dataclass(frozen=True)
class Case:
    """A prompt, and what else is on the MODEL: tiles, and a couple that doubles rows of sides of
    the guider.
    """

    number: int
    positive: tuple[Text, ...]
    negative: tuple[Text, ...]
    images: int
    cfg: float
    couple: tuple[int, ...] = ()
    tiles: str = ""  # "", "apart" or "together" in one call

    @property
    def plain(self) -> bool:
        """Whether the positive prompt is a single text over the whole image, at all times."""
        return (
            len(self.positive) == 1
            and self.positive[0].place is None
            and self.positive[0].range == (0.0, 1.0)
        )


def make_case(number: int, seed: int) -> Case:
    """Prompt ``number`` of a seed: one in four with areas alone, with areas on both sides, a
    couple, tiles.
    """
    draw = random.Random(f"{seed} {number}")
    kind = number % 4
    several = kind < 2 or draw.random() < 0.4
    positive = tuple(_text(draw, several) for _ in range(draw.choice((1, 2, 3)) if several else 1))
    if several and draw.random() < 0.5:
        positive = (*positive, Text(draw.choice(_TEXTS)))  # behind the areas: a background
    negative = (Text(draw.choice(("", *_TEXTS))),)
    if kind == 1:
        negative = tuple(_text(draw, True) for _ in range(draw.choice((1, 2))))
        negative = negative if draw.random() < 0.5 else (Text(""), *negative)
    couple = draw.choice(((0,), (1,), (0, 1))) if kind == 2 else ()
    tiles = draw.choice(("apart", "together")) if kind == 3 else ""
    return Case(
        number, positive, negative, draw.choice((1, 2)), draw.choice((1.0, 3.0, 3.0)), couple, tiles
    )


def _text(draw: random.Random, placed: bool) -> Text:
    text, place, how = draw.choice(_TEXTS), None, "area"
    if placed and draw.random() < 0.9:
        width, height = draw.choice((32, 64, 96, WIDTH)), draw.choice((32, 64, HEIGHT))
        x, y = (
            draw.randrange(0, side - own + 1, 32)
            for side, own in ((WIDTH, width), (HEIGHT, height))
        )
        place, how = (
            (x, y, width, height),
            draw.choice(("area", "area", "percent", "mask", "bounds")),
        )
    when = draw.choice(((0.0, 1.0), (0.0, 1.0), (0.0, 0.3), (0.3, 1.0))) if placed else (0.0, 1.0)
    return Text(text, place, how, draw.choice((1.0, 1.0, 0.6)), when)


@dataclass(frozen=True)
class Subject:
    """A node's use on one prompt.

    ``model_for(model, mask, sigma)``: the MODEL that it makes, whole or for a part of its ``mask``
    (M, H, W) and, in the reference, at a noise level; ``sides``: which conditionings it acts in (0:
    positive). Of a watcher ``read``: what it has to tell of a run, by step, from the MODEL that was
    made and the run's latent. ``check``: how the node ends, where it samples by itself.
    ``stacked``: instead of all this, several nodes, each on the MODEL of the one before.
    """

    model_for: Callable | None = None
    sides: tuple[int, ...] = ()
    mask: torch.Tensor | None = None
    read: Callable | None = None
    check: Callable | None = None
    stacked: tuple[Subject, ...] = ()

    @property
    def nodes(self) -> tuple[Subject, ...]:
        """The nodes that are used, the first on the MODEL itself."""
        return self.stacked or (self,)

    def on(self, model):
        """A MODEL behind all nodes, with whole masks."""
        for node in self.nodes:
            model = node.model_for(model, node.mask, None)
        return model


@dataclass
class Bench:
    """A small U-Net that is not given the size of the image, so that an area is as a latent of its
    own.
    """

    app: in_process.Comfy
    world: World = field(init=False)

    def __post_init__(self):
        import comfy.utils

        self.world = World(self.app, *reduced.checkpoint("sd15", **_NETWORK))
        specs = self.app.module("nodes.activations.catalog_unet").catalog(self.network)
        self.channels = {spec.id: spec.channels for spec in specs}
        comfy.utils.PROGRESS_BAR_ENABLED = False
        self._texts: dict[str, list] = {}
        self.kept: dict[str, object] = {}  # what a subject has made once for all prompts

    @property
    def region(self) -> torch.Tensor:
        """What an attention couple puts beside the prompt, (1, tokens, D)."""
        return self.encoded("a yellow house")[0][0]

    @property
    def network(self):
        return self.world.model.model.diffusion_model

    def try_case(self, case: Case, subjects: dict[str, Callable]) -> Iterator[tuple[str, str, str]]:
        """Node, kind of end and message of every node on a prompt; ``subjects``: what makes a
        node's use, by name.
        """
        plain, conds = self.sample(case, self.on(case, self.world.model))
        for name, subject_of in subjects.items():
            draw, generator = (
                random.Random(f"{case.number} {name}"),
                torch.Generator().manual_seed(case.number),
            )
            try:
                subject = subject_of(self, case, draw, generator)
                kind, message = (
                    subject.check(conds)
                    if subject.check
                    else self.compare(case, subject, plain, conds)
                )
            except Exception as error:
                kind, message = kind_of(error)
            if hooks_left(self.world.model):
                kind, message = "bare", "Hooks were left on the network."
            yield name, kind, message

    def compare(
        self, case: Case, subject: Subject, plain: torch.Tensor, conds: list
    ) -> tuple[str, str]:
        """How a node ends on a prompt; ``plain``: the latent without it, ``conds``: as ComfyUI has
        prepared them.
        """
        made = subject.on(self.world.model)
        found, _ = self.sample(case, self.on(case, made))
        if subject.read:
            if not torch.equal(found, plain):
                return "wrong", "The watcher has changed the image."
            return self.compare_readings(case, subject, subject.read(made, found), conds)
        expected, _ = self.reference(case, subject, conds)
        return compared(found, expected, plain)

    def compare_readings(
        self, case: Case, subject: Subject, readings: dict, conds: list
    ) -> tuple[str, str]:
        """Of a watcher: what it has read of each step, against what it reads of the positive prompt
        alone.
        """
        _, seen = self.reference(case, subject, conds)
        worst = 0.0
        for step, tensors in readings.items():
            if len(seen[step]) != 1:
                return (
                    "wrong",
                    f"Read one activation in step {step}, where {len(seen[step])} parts act.",
                )
            for name, tensor in tensors.items():
                expected = seen[step][0][name]
                if tensor.shape != expected.shape:
                    return (
                        "wrong",
                        f"{name} is {tuple(tensor.shape)}, alone {tuple(expected.shape)}",
                    )
                worst = max(worst, relative(tensor, expected))
        return ("right" if worst <= 1e-4 else "wrong"), f"off by {worst:.1e} of the largest"

    def sample(self, case: Case, model) -> tuple[torch.Tensor, list]:
        """The latent of a prompt with a MODEL, and the conditionings as ComfyUI prepares them:
        positive, negative.
        """
        from comfy.patcher_extension import WrappersMP

        seen: list = []

        def keep(executor, *args, **kwargs):
            seen[:] = [executor.class_obj.conds[name] for name in ("positive", "negative")]
            return executor(*args, **kwargs)

        watched = model.clone()
        watched.add_wrapper_with_key(WrappersMP.PREDICT_NOISE, "calls", keep)
        sides = {name: self.conditioning(getattr(case, name)) for name in ("positive", "negative")}
        latent = {"samples": torch.zeros(case.images, 4, HEIGHT // 8, WIDTH // 8)}
        how = {"seed": _SEED, "steps": _STEPS, "cfg": case.cfg, "scheduler": _SCHEDULER}
        return self.world.sample(watched, latent, **how, **sides)["samples"], seen

    def conditioning(self, texts: tuple[Text, ...]) -> list:
        """A CONDITIONING of these parts, made by ComfyUI's own nodes."""
        run, joined = self.app.run, []
        for one in texts:
            made = self.encoded(one.text)
            if one.place is not None:
                x, y, width, height = one.place
                if one.how == "area":
                    given = {
                        "x": x,
                        "y": y,
                        "width": width,
                        "height": height,
                        "strength": one.strength,
                    }
                    (made,) = run("ConditioningSetArea", conditioning=made, **given)
                elif one.how == "percent":
                    given = {
                        "x": x / WIDTH,
                        "y": y / HEIGHT,
                        "width": width / WIDTH,
                        "height": height / HEIGHT,
                    }
                    given |= {"strength": one.strength}
                    (made,) = run("ConditioningSetAreaPercentage", conditioning=made, **given)
                else:
                    mask = torch.zeros(1, HEIGHT, WIDTH)
                    mask[:, y : y + height, x : x + width] = 1
                    kind = "mask bounds" if one.how == "bounds" else "default"
                    given = {"mask": mask, "strength": one.strength, "set_cond_area": kind}
                    (made,) = run("ConditioningSetMask", conditioning=made, **given)
            if one.range != (0.0, 1.0):
                start, end = one.range
                (made,) = run(
                    "ConditioningSetTimestepRange", conditioning=made, start=start, end=end
                )
            joined += made
        return joined

    def encoded(self, text: str) -> list:
        """The CONDITIONING of a text."""
        if text not in self._texts:
            (self._texts[text],) = self.app.run("CLIPTextEncode", clip=self.world.clip, text=text)
        return self._texts[text]

    def on(self, case: Case, model):
        """The MODEL behind a prompt's couple and tiles."""
        if case.couple:
            model = coupled(model, self.region, case.couple)
        return tiled(model, case.tiles == "together") if case.tiles else model

    def reference(self, case: Case, subject: Subject, conds: list) -> tuple[torch.Tensor, list]:
        """The latent as if each part were sampled alone, and what a watcher reads of each positive
        part by step.
        """
        import comfy.sample

        model = self.world.model.model
        sampling, sigmas = self.world.model.get_model_object("model_sampling"), self.sigmas()
        noise = comfy.sample.prepare_noise(
            torch.zeros(case.images, 4, HEIGHT // 8, WIDTH // 8), _SEED
        )
        x, seen = sampling.noise_scaling(sigmas[0], noise, torch.zeros_like(noise), True), []
        for sigma, after in itertools.pairwise(sigmas):
            readings: list = []
            predicted = [
                self.predicted(case, subject, entries, x, sigma, sigmas, side, readings)
                for side, entries in enumerate(conds if case.cfg != 1 else conds[:1])
            ]
            denoised = predicted[0]
            if case.cfg != 1:
                denoised = predicted[1] + case.cfg * (predicted[0] - predicted[1])
            x = x + (x - denoised) / sigma * (after - sigma)
            seen.append(readings)
        return model.process_latent_out(x), seen

    def sigmas(self) -> torch.Tensor:
        """The noise levels of the runs."""
        import comfy.samplers

        return comfy.samplers.calculate_sigmas(
            self.world.model.get_model_object("model_sampling"), _SCHEDULER, _STEPS
        )

    def predicted(
        self, case, subject, entries, x, sigma, sigmas, side=0, readings=None
    ) -> torch.Tensor:
        """The prediction of a side of the guider: of each of its parts alone, weighed as ComfyUI
        does.
        """
        import comfy.samplers

        total, weight = torch.zeros_like(x), torch.full_like(x, 1e-37)
        for entry in entries:
            part = comfy.samplers.get_area_and_mult(entry, x, sigma.expand(len(x)))
            if part is None:
                continue
            height, width, top, left = part.area or (*x.shape[2:], 0, 0)
            box = (..., slice(top, top + height), slice(left, left + width))
            text = entry["model_conds"]["c_crossattn"].cond
            result, read = self.alone(
                case, subject, side, text, part.input_x, (top, left), sigma, sigmas
            )
            if readings is not None:
                readings += read
            total[box] += result * part.mult
            weight[box] += part.mult
        return total / weight

    def active(self, entries: list, sigma: float) -> list[torch.Tensor]:
        """The encoded texts (1, tokens, D) of the parts that act at a noise level."""
        return [
            entry["model_conds"]["c_crossattn"].cond
            for entry in entries
            if entry.get("timestep_end", -1.0) <= sigma <= entry.get("timestep_start", math.inf)
        ]

    def alone(
        self, case, subject, side, text, x, begin, sigma, sigmas
    ) -> tuple[torch.Tensor, list]:
        """The prediction of one part in calls of its own, one for each tile."""
        halves, left, results, read = [x], 0, [], []
        if case.tiles:
            half = x.shape[3] // 2
            halves = [x[..., :half], x[..., half:]]
        for tile in halves:
            model = self.world.model
            for node in subject.nodes:
                if side in node.sides or (node.read and side == 0):
                    mask = _cut(node.mask, (begin[0], begin[1] + left), tile.shape[2:])
                    model = node.model_for(model, mask, float(sigma))
            behind = coupled(model, self.region, (side,)) if side in case.couple else model
            denoised, latent = self._evaluated(behind, side, text, tile, sigma, sigmas)
            results.append(denoised)
            if subject.read and side == 0:
                read += subject.read(model, latent).values()
            left += tile.shape[3]
        return torch.cat(results, dim=3), read

    def _evaluated(self, model, side: int, text: torch.Tensor, x: torch.Tensor, sigma, sigmas):
        """The prediction of a MODEL for a text alone, as a side of the guider, and the latent of
        that run.

        The run has the whole schedule, and evaluates nothing else.
        """
        import comfy.samplers

        made = {}

        def one_side(args: dict) -> list:
            conds = [
                entries if number == side else None for number, entries in enumerate(args["conds"])
            ]
            given = (conds, args["input"], args["sigma"], args["model_options"])
            made["predicted"] = comfy.samplers.calc_cond_batch(args["model"], *given)[side]
            return [made["predicted"]] * 2

        class At(comfy.samplers.Sampler):
            def sample(self, model_wrap, sigmas, extra_args, callback, noise, *args, **kwargs):
                model_wrap(x, sigma.expand(len(x)), **extra_args)
                return noise

        with torch.inference_mode():
            alone = model.clone()
            alone.model_options["sampler_calc_cond_batch_function"] = one_side
            guider, blank = comfy.samplers.CFGGuider(alone), torch.zeros_like(x)
            guider.inner_set_conds({key: [[text, {}]] for key in ("positive", "negative")})
            guider.set_cfg(2.0)
            latent = guider.sample(blank, blank, At(), sigmas, disable_pbar=True, seed=0)
        return made["predicted"], latent

    def prepared(self, texts: tuple[Text, ...]) -> list:
        """The entries of a positive prompt as ComfyUI prepares them where there is no other."""
        import comfy.samplers

        guider = comfy.samplers.CFGGuider(self.world.model)
        guider.inner_set_conds({"positive": self.conditioning(texts)})
        seen = []

        class Never(comfy.samplers.Sampler):
            def sample(self, model_wrap, sigmas, extra_args, callback, noise, *args, **kwargs):
                seen.extend(model_wrap.conds["positive"])
                return noise

        blank = torch.zeros(1, 4, HEIGHT // 8, WIDTH // 8)
        with torch.inference_mode():
            guider.sample(blank, blank, Never(), self.sigmas(), disable_pbar=True, seed=0)
        return seen


def _cut(
    mask: torch.Tensor | None, begin: tuple[int, int], size: tuple[int, ...]
) -> torch.Tensor | None:
    """The part of masks (M, H, W) of the image over a rectangle of the latent."""
    if mask is None:
        return None
    slices = []
    for first, length, cells in zip(
        begin, size, (8 * mask.shape[1] / HEIGHT, 8 * mask.shape[2] / WIDTH), strict=True
    ):
        slices.append(slice(round(first * cells), round((first + length) * cells)))
    return mask[:, *slices]


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference as a fraction of the largest value."""
    return float(
        (found.float() - expected.float()).abs().max()
        / expected.float().abs().max().clamp_min(1e-12)
    )


def compared(found: torch.Tensor, expected: torch.Tensor, plain: torch.Tensor) -> tuple[str, str]:
    """Right where a result is off by a thousandth of what the node does, or less: other orders of
    sums differ.
    """
    error, acted = relative(found, expected), relative(plain, expected)
    message = f"off by {error:.1e} of the largest, acts by {acted:.1e}"
    return ("right" if error <= 1e-3 * acted + 1e-5 else "wrong"), message


def kind_of(error: Exception) -> tuple[str, str]:
    trace, text = error.__traceback__, str(error)
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    own = trace is not None and str(paths.ROOT / "nodes") in trace.tb_frame.f_code.co_filename
    sentence = own and isinstance(error, ValueError) and _SENTENCE.fullmatch(text)
    return (
        "sentence" if sentence else "bare"
    ), f"{type(error).__name__}: {text}" if not sentence else text


# What stands for other packs' nodes; none of it is anybody's code.


def coupled(model, region: torch.Tensor, sides: tuple[int, ...]):
    """Regional prompts: the rows of some conditionings (0: positive) are doubled inside
    cross-attention.

    With a region's text (1, tokens, D) in the second ones; both are averaged afterwards.
    """

    def patch(q, k, v, options):
        parts = options["cond_or_uncond"]
        found: list[list] = [[], [], []]
        for side, *tensors in zip(
            parts, *(tensor.chunk(len(parts)) for tensor in (q, k, v)), strict=True
        ):
            other = region.to(q).repeat(1, -(-k.shape[1] // region.shape[1]), 1)
            for out, tensor, second in zip(found, tensors, (tensors[0], other, other), strict=True):
                out.append(tensor)
                if side in sides:
                    out.append(second.expand(len(tensor), -1, -1))
        return tuple(map(torch.cat, found))

    def joined(out, options):
        parts = options["cond_or_uncond"]
        single = len(out) // sum(2 if side in sides else 1 for side in parts)
        rows, result = list(out.split(single)), []
        for side in parts:
            one = rows.pop(0)
            result.append((one + rows.pop(0)) / 2 if side in sides else one)
        return torch.cat(result)

    clone = model.clone()
    clone.set_model_attn2_patch(patch)
    clone.set_model_attn2_output_patch(joined)
    return clone


def tiled(model, together: bool):
    """A wrapper that evaluates the left and the right half of what it is given, as tiling nodes
    do.
    """

    def wrapper(apply_model, given):
        x, t, c = given["input"], given["timestep"], given["c"]
        half = x.shape[3] // 2
        tiles = [x[..., :half], x[..., half:]]
        with torch.inference_mode():
            if not together:
                return torch.cat([apply_model(tile, t, **c) for tile in tiles], dim=3)
            twice = {
                name: torch.cat([one] * 2) if torch.is_tensor(one) else one
                for name, one in c.items()
            }
            return torch.cat(
                apply_model(torch.cat(tiles), torch.cat([t] * 2), **twice).chunk(2), dim=3
            )

    clone = model.clone()
    clone.set_model_unet_function_wrapper(wrapper)
    return clone
