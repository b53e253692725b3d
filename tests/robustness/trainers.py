"""`run.py fuzz --trainers N`: a trainer behind every node that changes a MODEL, and behind two of
them.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tools.launcher import comfyui, paths
from tools.launcher.api import Client
from tools.launcher.server import Server
from tools.launcher.widgets import inputs

from .prompts import Generator, Prompt, lowest

PREFIX = "trainers: "
_STATE = "trainers.json"
_FEWER_STEPS = Path(__file__).parent / "fewer_steps"
_CHECKPOINTING = "gradient_checkpointing"
#: Two are enough where a batch holds one: each costs images that are sampled.
_PROMPTS = "portrait, bald\nportrait, red hair"
#: What the plain values leave as a trainer that does not train, or a node that changes nothing.
_VALUES = {
    "GBX_NemoLocalize": {
        "method": "attribution",
        "ranking": "multi",
        "stopping_rule": "fraction",
        "anchor": "portrait",
        "layers": "all",
    },
    "GBX_W2WTrainSpace": {"folder": "people"},
    "GBX_AdversarialUnlearning": {"prompts": _PROMPTS},
    "GBX_OptimizeNeuronMask": {"prompts": "portrait, bald", "ordinary_prompts": "portrait"},
    "GBX_EditByWords": {"edits": "red hair -> blue hair: 1.5", "prompt": "portrait, red hair"},
}
#: It takes what a sampler has recorded, which no plain input makes: `--calls` tries it.
_NEEDS_A_RUN = "GBX_ActivationPatching"
#: For a prompt: Optimize Neuron Mask samples the images that it learns from.
_SECONDS = 240.0
#: How far a node acts, of values that all of its schemas allow.
_STRENGTHS = {"strength": (0.5, 1.0), "start_percent": (0.0, 0.2), "end_percent": (0.8, 1.0)}


def turns(number: int, changes: int, trainers: int) -> tuple[int, int]:
    """Which node and which trainer prompt ``number`` has: in ``changes * trainers`` prompts each
    trainer meets each node once.

    Both take turns; the shift is for counts that share a divisor.
    """
    shift = number // math.lcm(changes, trainers)
    return number % changes, (number + shift) % trainers


class TrainerPrompts:
    """Makes prompts of one or two nodes that change a MODEL, and a trainer behind them.

    All inputs are valid, so that the trainer is reached: what is wrong in them other prompts try.
    """

    def __init__(self, generator: Generator, seed: int):
        self._generator, self._seed = generator, seed
        described = {name: list(inputs(generator.describe(name))) for name in generator.nodes}
        self.trainers = [
            name
            for name, own in described.items()
            if any(one.name == _CHECKPOINTING for one in own)
        ]
        self.changes = [
            name
            for name, own in described.items()
            if name not in (*self.trainers, _NEEDS_A_RUN)
            and any(one.kind == "MODEL" for one in own)
            and "MODEL" in generator.describe(name)["output"]
        ]

    def make(self, number: int) -> dict:
        """Prompt ``number``: nodes and trainers take turns, every other time with a second node."""
        draw = random.Random(f"{self._seed} trainers {number}")
        prompt = Prompt(self._generator, lowest())
        first, last = turns(number, len(self.changes), len(self.trainers))
        prompt.add("EmptyImage", 1)  # else a node's plot, hundreds of pixels wide, is the image
        names = [self.changes[first]]
        if number % 2:
            names.append(draw.choice(self.changes))
        for name in names:
            link = self._add(prompt, name, 1)
            values = prompt.nodes[link[0]]["inputs"]
            for key in values.keys() & _STRENGTHS.keys():
                values[key] = draw.choice(_STRENGTHS[key])
        link = self._add(prompt, self.trainers[last], 1)
        prompt.nodes[link[0]]["inputs"][_CHECKPOINTING] = draw.random() < 0.7
        prompt.nodes[str(len(prompt.nodes) + 1)] = {
            "class_type": "PreviewAny",
            "inputs": {"source": link},
        }
        for entry in prompt.nodes.values():  # kept work of another model would be refused
            if entry["class_type"] == "GBX_TrainSparseAutoencoder":
                entry["inputs"]["name"] = f"fuzz/autoencoder_{self._seed}_{number}"
        return prompt.nodes

    def _add(self, prompt: Prompt, name: str, depth: int) -> list:
        """Add a node on the MODEL of the node before, and let what follows stand on its MODEL."""
        before = prompt.made.get("MODEL")
        link = prompt.add(name, depth)
        prompt.nodes[link[0]]["inputs"] |= _VALUES.get(name, {})
        described = self._generator.describe(name)
        if before is not None:
            for one in inputs(described):
                if one.kind == "MODEL":
                    prompt.nodes[link[0]]["inputs"][one.name] = before
        if "MODEL" in described["output"]:
            prompt.made["MODEL"] = [link[0], described["output"].index("MODEL")]
        return link


def people_folder(base: Path) -> None:
    """Two people of one image each in the input folder, for W2W Train Space."""
    source = paths.ROOT / "assets" / "avatars-v2-people"
    for person in ("person_00", "person_01"):
        target = base / "input" / "people" / person
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / person / "0.webp", target)


#: What a run counts, and what its ends mean.
_MEANINGS = {
    "done": "trained",
    "refused": "refused by ComfyUI before anything ran",
    "sentence": "ended in one readable sentence",
    "stock": "ended in an error of a stock node",
    "stopped": "stopped after the time for one prompt",
    "bare": "ended in an exception without a readable sentence",
    "frozen": "did not stop when requested",
    "died": "ended the server",
}


@dataclass
class Ends:
    """How the prompts of a seed have ended so far, saved after each, so that a run goes on there.

    ``kinds``, ``seconds``: of each prompt by its number.
    """

    seed: int
    kinds: dict[int, str] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)

    @classmethod
    def load(cls, file: Path, seed: int) -> Ends:
        """The saved ends of this seed, or none."""
        try:
            saved = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError):
            return cls(seed)
        if saved["seed"] != seed:
            return cls(seed)
        kinds = {int(number): kind for number, kind in saved["kinds"].items()}
        seconds = {int(number): value for number, value in saved["seconds"].items()}
        return cls(seed, kinds, seconds)

    def save(self, file: Path) -> None:
        """Write them to the cache."""
        paths.write_atomically(file, json.dumps(asdict(self)))

    def waiting(self, count: int, defects: Collection[str]) -> list[int]:
        """Which of the first ``count`` prompts to run: those that ended in a defect, which may have
        been mended, then those that have not run.
        """
        again = [number for number in range(count) if self.kinds.get(number) in defects]
        return again + [number for number in range(count) if number not in self.kinds]

    def numbers(self, count: int) -> dict[str, dict]:
        """Entries for the result file, of the first ``count`` prompts."""
        counts = Counter(kind for number, kind in self.kinds.items() if number < count)
        return {
            PREFIX + kind: {
                "value": counts[kind],
                "n": count,
                "unit": "prompts",
                "what": f"a trainer behind one or two nodes that change a MODEL; {what}",
            }
            for kind, what in _MEANINGS.items()
        }


def run(comfyui_folder: Path, count: int, seed: int) -> dict[str, dict]:
    """Follow so many prompts to their end, print the defects, and return the numbers.

    Prompts of this seed that an earlier run has followed count as they ended then.
    """
    from tqdm import tqdm

    from . import fuzz

    base = comfyui.prepare_base(fuzz.FOLDER / "trainers")
    comfyui.link(_FEWER_STEPS, base / "custom_nodes" / _FEWER_STEPS.name)
    people_folder(base)
    file = fuzz.FOLDER / _STATE
    ends = Ends.load(file, seed)
    waiting = iter(ends.waiting(count, fuzz.DEFECTS))
    number = next(waiting, None)
    with tqdm(total=count, initial=len(ends.kinds), unit="prompt") as bar:
        while number is not None:
            with Server(comfyui_folder, base, fuzz.ARGUMENTS) as server:
                client = Client(server.url)
                prompts = TrainerPrompts(Generator(client.object_info(), seed), seed)
                kind = "done"
                while number is not None and kind not in ("died", "frozen"):
                    begun = time.monotonic()
                    kind, message = fuzz.follow(client, prompts.make(number), _SECONDS)
                    bar.update(number not in ends.kinds)
                    ends.kinds[number] = kind
                    ends.seconds[number] = time.monotonic() - begun
                    ends.save(file)
                    if kind in fuzz.DEFECTS:
                        print(f"prompt {number}: {kind}: {message}")
                    number = next(waiting, None)
    return ends.numbers(count)
