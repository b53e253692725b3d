"""Train Slider on a distilled model, at guidance 1 and four steps.

`python run.py study weights slider_student` writes its result to
``studies/results/weights_slider_student.json``. The student: `study conditioning student`.
Two concepts, each by phrases, by exact pairs of renders with the paper's visual objective, and by
the same pairs with the plain difference. Read as in `slider_rivals`; "confidence" is the judge's
mean probability of what it reads, which falls where images lose their few steps and blur. The
teacher's slider from the same phrases, on the teacher, stands beside them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from ..common import host, results
from ..conditioning import student as distillation
from ..world.autoencoder import CHANNELS
from ..world.generate import Generator
from ..world.release import ASSETS, WORLD
from ..world.scenes import Scene, render
from . import slider_rivals
from .slider_captions import CONCEPTS, Concept, caption, named_values, scenes
from .slider_rivals import SEED, TRAINING, read_ways

NAMES, SCENES, QUICK_SCENES, PAIRS = ("beard", "round glasses"), 16, 4, 8
NOISE_SEEDS = 2
STRENGTHS = (0.5, 1.0, 1.5, 2.0)
#: How a model samples: steps and guidance.
SAMPLING = {"student": (distillation.STEPS, distillation.CFG), "teacher": (12, 3.0)}
MEASURES = ("reached", "kept", "as named", "confidence")


def pairs(concept: Concept, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Renders (count, H, W, 3) in 0..1 of scenes without the concept's value and with it; nothing
    else differs.
    """
    group = scenes(concept, count, SEED + 2)
    value = concept.values[-1]
    changed = [_changed(scene, concept.attribute, value) for scene in group]
    plain = [_changed(scene, concept.attribute, "none") for scene in group]
    before, after = (np.stack([render(one) for one in scenes]) for scenes in (plain, changed))
    return torch.from_numpy(before).float() / 255, torch.from_numpy(after).float() / 255


def _changed(scene: Scene, attribute: str, value: str) -> Scene:
    return replace(scene, face=replace(scene.face, **{attribute: value}))


def train(generator: Generator, concept: Concept, way: str, model: str) -> dict:
    """A slider's LoRA, by phrases or by pairs with an objective."""
    node = host.pack("nodes.weights.nodes_train_slider").TrainSlider
    steps, cfg = SAMPLING[model]
    settings = TRAINING | {"sampling_steps": steps, "cfg": cfg, "base_prompt": "portrait"}
    if way == "phrases":
        data = {"latent": {"samples": torch.zeros(1, CHANNELS, 16, 16)}}
        others = scenes(concept, slider_rivals.BASE_PROMPTS, SEED + 9)
        texts = [caption(scene, concept, "WORD") for scene in others]
        settings |= {"base_prompt": "\n".join(texts)}
    else:
        before, after = pairs(concept, PAIRS)
        data = {"before": before, "after": after, "vae": generator.vae, "pair_objective": way}
    _, loras, *_ = node.execute(
        model=generator.model,
        clip=generator.clip,
        increase=concept.increase,
        decrease=concept.decrease,
        **data,
        **settings,
    ).args
    return loras[0]


def measure(
    generator: Generator, judge: torch.nn.Module, name: str, way: str, model: str, count: int
) -> dict[str, list]:
    """``MEASURES`` of every caption at each strength, means over noise seeds."""
    from comfy.sd import load_lora_for_models

    concept = CONCEPTS[name]
    lora = train(generator, concept, way, model)
    group = scenes(concept, count, SEED)
    texts = [caption(scene, concept) for scene in group for _ in range(NOISE_SEEDS)]
    known = [named_values(scene, concept) for scene in group for _ in range(NOISE_SEEDS)]
    steps, cfg = SAMPLING[model]
    images = {"plain": generator.sample(texts, SEED, cfg=cfg, steps=steps)}
    for strength in STRENGTHS:
        patched = load_lora_for_models(generator.model, None, lora, strength, 0.0)[0]
        with_slider = Generator(patched, generator.clip, generator.vae)
        images[f"{strength:g}"] = with_slider.sample(texts, SEED, cfg=cfg, steps=steps)
    read = read_ways(judge, images, concept, known)
    found = {}
    for strength, rows in read.items():
        columns = np.column_stack([rows[:, :3], confidence(judge, images[strength])])
        means = columns.reshape(-1, NOISE_SEEDS, len(MEASURES)).mean(axis=1)
        found[strength] = means.tolist()
    return found


def confidence(judge: torch.nn.Module, images: np.ndarray) -> np.ndarray:
    """The judge's probability of what it reads in each image (n,), mean over attributes."""
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    with torch.inference_mode():
        logits = judge(pixels)
    odds = [rows.float().softmax(dim=1).amax(dim=1) for rows in logits.values()]
    return torch.stack(odds).mean(dim=0).numpy()


def run(quick: bool = False) -> Path:
    """Measure and write; ``quick`` takes one concept by phrases alone, on an untrained student."""
    teacher = Generator.load(WORLD)
    count = QUICK_SCENES if quick else SCENES
    plan = distillation.QUICK_PLAN if quick else distillation.PLAN
    size = distillation.QUICK_TRAJECTORIES if quick else distillation.TRAJECTORIES
    distilled = distillation.distil(teacher, size, plan)
    generators = {"student": Generator(distilled, teacher.clip, teacher.vae), "teacher": teacher}
    judge = host.pack("nodes.demo.judge").load(WORLD)
    ways = [("student", "phrases"), ("student", "visual"), ("student", "difference")]
    ways.append(("teacher", "phrases"))
    stem = "weights_slider_student" + "_quick" * quick
    kept = results.Rows(stem, {"count": count, "plan": repr(plan), "size": size})
    numbers: dict[str, dict] = {}
    for name in NAMES[: 1 if quick else None]:
        for model, way in ways[: 1 if quick else None]:
            rows = kept.row(
                f"{name}, {model}, {way}",
                lambda name=name, model=model, way=way: measure(
                    generators[model], judge, name, way=way, model=model, count=count
                ),
            )
            for strength, values in rows.items():
                for place, what in enumerate(MEASURES):
                    numbers[f"{name}, {model}, {way}, {strength}: {what}"] = results.bootstrap(
                        np.array(values)[:, place],
                        f"{what}; captions, {NOISE_SEEDS} noise seeds each",
                        "fraction",
                    )
            print(name, model, way, {s: np.mean(v, 0).round(2).tolist() for s, v in rows.items()})
    command = "python run.py study weights slider_student" + " --quick" * quick
    path = results.write(stem, command, SEED, (ASSETS,), numbers)
    kept.finished()
    return path
