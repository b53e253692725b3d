"""The weight space of the demo world: `python run.py study weights [STEP ...] [--quick]`.

Steps, in order: train (LoRAs of a population, a cohort at a time), release (the space of these
LoRAs), learned (the space that the pack ships, trained as a whole), learned_measure (the two side
by side), eyes (captions that name them), gradual (sliders step by step), discovered (sliders for
what varies), slider_rivals (Train Slider beside every other way), slider_student (on a distilled
model), sampling (by which law), composition (people composed of members' attributes), twins
(what limits an edit), matched (edits at the prompt's loss), matched_seeds (the same with four noise
seeds a person), delayed (edits that start late), measure, guidance, invert (the node W2W Invert),
images (the same from one, three and ten images), fits and ceiling (what limits a collected space),
names (every layer of LoRAs of ten networks beside Load LoRA, on the ComfyUI that COMFYUI_DIR
names), random_labels (how often a label without meaning counts as a direction), folder (any folder
of LoRAs that --loras names: norms, likeness, sizes), sdxl (the way from twenty LoRAs of SDXL's
shapes to a file, with time and memory), small (the demo workflow's space of sixteen people),
factors (what a learned space depends on, one factor at a time: hours, in pieces that --minutes
ends). Without a step all run; `--quick` measures the shipped space with fewer samples. Finished
parts are kept in .cache/weights.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path

from ..common import host

FOLDER = host.ROOT / ".cache" / "weights"
OF_SHIPPED = (
    "learned_measure",
    "eyes",
    "sampling",
    "composition",
    "gradual",
    "discovered",
    "slider_rivals",
    "slider_student",
    "twins",
    "matched",
    "matched_seeds",
    "delayed",
)
OF_COLLECTED = ("measure", "guidance", "fits", "ceiling", "random_labels")
PARTS = {name: f"{name}:run" for name in OF_SHIPPED + OF_COLLECTED}
PARTS |= {
    "invert": "node_inversion:run",
    "images": "node_inversion:run_images",
    "names": "lora_names:run",
}
PARTS |= {
    "folder": "lora_folder:run",
    "sdxl": "sdxl_journey:run",
    "small": "small_space:run",
    "factors": "factors:run",
}
NAMES = ("train", "release", "learned", *PARTS)


def main(argv: Sequence[str]) -> int:
    """Run the named steps."""
    parser = argparse.ArgumentParser(
        prog="run.py study weights", description=__doc__.splitlines()[0]
    )
    parser.add_argument("steps", nargs="*", metavar="STEP", help=", ".join(NAMES))
    parser.add_argument("--people", type=int, default=512, help="how many identities to train")
    parser.add_argument(
        "--minutes",
        type=float,
        default=float("inf"),
        help="begin no further cohort or space after so long",
    )
    parser.add_argument(
        "--loras", type=Path, help="for the step folder: a folder of LoRAs of one base model"
    )
    parser.add_argument(
        "--start", type=Path, help="for the step learned: a learned space that is trained further"
    )
    parser.add_argument("--further", type=int, default=300, help="with --start: training steps")
    parser.add_argument(
        "--quick", action="store_true", help="measure with fewer samples, in under five minutes"
    )
    options = parser.parse_args(argv)
    unknown = [step for step in options.steps if step not in NAMES]
    if unknown:
        parser.error(f"there is no step {unknown[0]}: choose from {', '.join(NAMES)}")
    for step in options.steps or (("measure",) if options.quick else NAMES):
        if step == "learned":
            _learned(options.people, options.start, options.further)
        elif step not in PARTS:
            _population(options.people, options.minutes * 60, step == "release")
        elif step == "folder" and not options.loras:
            print("Step folder is left out: name one by --loras.")
        else:
            module, function = PARTS[step].split(":")
            of = {"folder": options.loras, "sdxl": FOLDER / "sdxl"}.get(step, options.quick)
            given = {"minutes": options.minutes} if step == "factors" else {}
            print(
                getattr(importlib.import_module(f".{module}", __package__), function)(of, **given)
            )
    return 0


def _learned(count: int, start: Path | None, further: int) -> None:
    """Train the space that the pack ships, or go on training; write it and the demo's folders.

    With ``start`` a space of the same people is trained for ``further`` steps.
    """
    from ..world.generate import Generator
    from ..world.release import WORLD
    from . import learned
    from .people import people

    folder, group = FOLDER / "learned", people(count)
    updates, seconds = learned.train(
        Generator.load(WORLD),
        group,
        folder,
        steps=learned.STEPS if start is None else further,
        start=start,
    )
    print(f"{seconds:.0f} s")
    learned.write(updates, group)
    learned.write_folders(learned.DEMO_FOLDER)


def _population(count: int, seconds: float, release_it: bool) -> None:
    """Train, or go on training; and make the space of what there is."""
    from ..world.generate import Generator
    from ..world.release import WORLD
    from . import population, release

    generator, plan = Generator.load(WORLD), population.Plan()
    limit = 0.0 if release_it else seconds
    group, flats = population.train(generator, count, FOLDER, plan, limit)
    if release_it:
        layout = population.Trainer(generator, plan).layout
        release.write(release.build(group, flats, layout, release.COMPONENTS, FOLDER), plan, group)
