"""Random prompts for every node of the pack, built from ComfyUI's /object_info alone."""

from __future__ import annotations

import math
import random
import re

from tools.launcher import comfyui
from tools.launcher.errors import LaunchError
from tools.launcher.widgets import Input, default_value, inputs

# Stock nodes that make what the sockets of the pack take; the first of a type is the usual one.
_STOCK = (
    *(
        "CLIPTextEncode",
        "VAEEncode",
        "EmptyLatentImage",
        "EmptySD3LatentImage",
        "RandomNoise",
        "DisableNoise",
    ),
    *(
        "KSamplerSelect",
        "BasicScheduler",
        "BasicGuider",
        "CFGGuider",
        "EmptyImage",
        "SolidMask",
        "VAEDecode",
    ),
    *("ConditioningZeroOut", "KSampler", "SamplerCustomAdvanced"),
)
# Inputs that decide how long a run takes, and the values that keep it short.
_SMALL = {
    r"batch_size|^count$": (1, 2),
    r"width|height|resolution|size$": (64, 128),
    r"steps|count|batch|seeds|images|draws|rounds|epochs"
    r"|members|samples|budget|seconds|number|length": (1, 2),
    r"rank|pool|candidates|clusters|ensemble|networks|every": (1, 2, 4),
}
_TEXTS = (
    "a man with a beard",
    "a woman, glasses\nan old man",
    "",
    "50%, 50%",
    "beard: 0.5, glasses: -1",
    "*",
    "\u00e4\u4eba \U0001f600",
    "../../secret",
    "[1, 2, {",
    "1" + " " * 800 + "x",
    "a" * 20_000,
)
_WRONG_NUMBERS = (
    math.nan,
    math.inf,
    -math.inf,
    -1e308,
    10**30,
    "x",
    "",
    None,
    True,
    {"__value__": [1, 2]},
)
_WRONG_TEXTS = (5, None, "\0", "* " * 100_000, "x" * 1_000_001, {"__value__": []})
_WRONG_OPTIONS = ("Bogus", "", 7, None, {"__value__": ["a"]})
_WRONG_LINKS = (1, "x", None, True, ["missing", 0], {"__value__": {"samples": 1}})
_PLAIN = 0.8
# Makers that need a file of the user's or a sampler before them: of a type the last choice.
_LAST_CHOICE = re.compile(
    r"GBX_((?!LoadDemo|W2WLoad)\w*(Load|Import|Build|ProjectLoRA)|ReadActivations)"
)
_PROMPTS = "portrait, bald\nportrait, red hair\nportrait, sunglasses"  # where a node takes a list
HOSTILE = "hostile_"


class Generator:
    """Makes prompts for the nodes that ComfyUI describes in `object_info`."""

    def __init__(self, object_info: dict, seed: int):
        self._info, self._seed = object_info, seed
        module = f"custom_nodes.{comfyui.PACK_NAME}"
        self.nodes = sorted(
            name for name, info in object_info.items() if info.get("python_module") == module
        )
        if not self.nodes:
            raise LaunchError("ComfyUI has not loaded the pack: see the server's log.")
        self._makers: dict[str, list[tuple[str, int]]] = {}
        for name in (*_STOCK, *self.nodes):
            for slot, kind in enumerate(object_info.get(name, {}).get("output", ())):
                self._makers.setdefault(kind, []).append((name, slot))
        self._cheapest = self._find_cheapest()

    def make(self, number: int) -> dict:
        """Prompt `number`: the nodes of the pack take turns."""
        subject = self.nodes[number % len(self.nodes)]
        return Prompt(self, random.Random(f"{self._seed} {number}")).fill(subject)

    def plain(self, subject: str) -> tuple[dict, str]:
        """A prompt that runs a node with plain inputs at the smallest sizes, and the number of the
        node in it.
        """
        prompt = Prompt(self, _Lowest())
        number, _ = prompt.add(subject, 1)
        return prompt.nodes, number

    def describe(self, name: str) -> dict:
        """ComfyUI's description of a node class."""
        return self._info[name]

    def maker(self, kind: str, rng: random.Random, cheap: bool) -> tuple[str, int] | None:
        """A node class and its output slot that makes a type; None where there is none."""
        kinds = (
            [one for one in kind.split(",") if one in self._cheapest] if kind != "*" else ["IMAGE"]
        )
        if not kinds:
            return None
        chosen = rng.choice(kinds)
        return self._cheapest[chosen][1] if cheap else rng.choice(self._makers[chosen])

    def _find_cheapest(self) -> dict[str, tuple[int, tuple[str, int]]]:
        """For each type the least cost, about the number of nodes, and the class and slot that
        makes it so.
        """
        found: dict[str, tuple[int, tuple[str, int]]] = {}
        changed = True
        while changed:
            changed = False
            for kind, makers in self._makers.items():
                for name, slot in makers:
                    needed = [
                        one.kind
                        for one in inputs(self._info[name])
                        if one.required and not one.is_widget
                    ]
                    if all(one in found for one in needed):
                        cost = (
                            1
                            + sum(found[one][0] for one in needed)
                            + 50 * bool(_LAST_CHOICE.match(name))
                        )
                        if kind not in found or cost < found[kind][0]:
                            found[kind], changed = (cost, (name, slot)), True
        return found


class _Lowest(random.Random):
    """Draws 0 each time, with which everything in a prompt is plain."""

    def random(self) -> float:
        return 0.0


def lowest() -> random.Random:
    """Draws with which everything in a prompt is plain."""
    return _Lowest()


class Prompt:
    """One prompt while it is built."""

    def __init__(self, generator: Generator, rng: random.Random):
        self._generator, self._rng = generator, rng
        self.nodes: dict[str, dict] = {}
        self.made: dict[str, list] = {}  # type -> link, for a later use of the same

    def fill(self, subject: str) -> dict:
        rng = self._rng
        link = self.add(subject, 0)
        if rng.random() < 0.5:
            self._spoil(self.nodes[link[0]])
        outputs = self._generator.describe(subject)["output"]
        if outputs:
            slot = rng.randrange(len(outputs))
            self._use(outputs[slot], [link[0], slot])
        return self.nodes

    def add(self, name: str, depth: int) -> list:
        """A node with values for its inputs and links to what makes the others; depth 0 is the node
        in question.
        """
        # What only feeds the node in question is mostly plain, so that ComfyUI has it in its cache
        # from another prompt.
        plain = depth > 0 and self._rng.random() < _PLAIN
        values = {}
        for one in inputs(self._generator.describe(name)):
            if one.is_widget:
                values[one.name] = self._plain_value(one) if plain else self._value(one)
            elif one.required or one.kind == "LATENT" or (not plain and self._rng.random() < 0.4):
                link = self._link(one.kind, depth + 1, plain)
                if link is not None:
                    values[one.name] = link
        number = str(len(self.nodes) + 1)
        self.nodes[number] = {"class_type": name, "inputs": values}
        for slot, kind in enumerate(self._generator.describe(name)["output"]):
            self.made.setdefault(kind, [number, slot])
        return [number, 0]

    def _link(self, kind: str, depth: int, plain: bool) -> list | None:
        if kind in self.made and (plain or self._rng.random() < 0.8):
            return self.made[kind]
        maker = self._generator.maker(
            kind, self._rng, cheap=plain or depth > 2 or self._rng.random() < 0.8
        )
        return None if maker is None else [self.add(maker[0], depth)[0], maker[1]]

    def _plain_value(self, one: Input) -> object:
        low, high = one.options.get("min", 0), one.options.get("max", 100)
        if one.kind in ("INT", "FLOAT"):
            for pattern, values in _SMALL.items():
                if re.search(pattern, one.name):
                    return type(low)(min(max(values[0], low), high))
        if one.kind == "STRING" and one.name.endswith("prompts"):
            return _PROMPTS
        choices = [
            choice
            for choice in one.options.get("options") or ()
            if not str(choice).startswith(HOSTILE)
        ]
        return choices[0] if choices and "default" not in one.options else default_value(one)

    def _value(self, one: Input) -> object:
        rng, options = self._rng, one.options
        default = options.get("default")
        if one.kind == "BOOLEAN":
            return rng.random() < 0.5
        if one.kind == "COMBO":
            choices = options.get("options") or [None]
            return default if default in choices and rng.random() < 0.6 else rng.choice(choices)
        if one.kind == "STRING":
            if one.name.endswith("prompts") and rng.random() < 0.6:
                return _PROMPTS
            if "prefix" in one.name or one.name == "name":
                return "fuzz" if rng.random() < 0.8 else rng.choice(_TEXTS)
            return default if default is not None and rng.random() < 0.8 else rng.choice(_TEXTS)
        low, high = options.get("min", 0), options.get("max", 100)
        for pattern, values in _SMALL.items():
            if re.search(pattern, one.name):
                return type(low)(min(max(rng.choice(values), low), high))
        any_value = rng.randint(low, high) if one.kind == "INT" else rng.uniform(low, high)
        return rng.choice([default if default is not None else low] * 3 + [low, high, any_value])

    def _spoil(self, entry: dict) -> None:
        """Make one input of a node wrong, or leave it out."""
        rng = self._rng
        described = list(inputs(self._generator.describe(entry["class_type"])))
        if not described:
            return
        one = rng.choice(described)
        if rng.random() < 0.1:
            entry["inputs"].pop(one.name, None)
            return
        if one.kind in ("INT", "FLOAT") and one.is_widget:
            outside = [
                one.options[end] + step
                for end, step in (("min", -1), ("max", 1))
                if end in one.options
            ]
            wrong = [*_WRONG_NUMBERS, *outside, *outside]
        elif one.is_widget:
            wrong = {"STRING": _WRONG_TEXTS, "COMBO": _WRONG_OPTIONS, "BOOLEAN": _WRONG_NUMBERS}[
                one.kind
            ]
        else:
            others = [link for kind, link in self.made.items() if kind != one.kind]
            wrong = [*_WRONG_LINKS, *others[:1], *([[others[0][0], 99]] if others else [])]
        entry["inputs"][one.name] = rng.choice(list(wrong))

    def _use(self, kind: str, link: list) -> None:
        """Sample with what can be sampled with, and show the rest."""
        user, name = {
            "MODEL": ("KSampler", "model"),
            "CONDITIONING": ("KSampler", "positive"),
            "GUIDER": ("SamplerCustomAdvanced", "guider"),
            "NOISE": ("SamplerCustomAdvanced", "noise"),
        }.get(kind, (None, None))
        if user is not None:
            self.made[kind] = link
            link = self.add(user, 1)
            self.nodes[link[0]]["inputs"][name] = self.made[kind]
        self.nodes[str(len(self.nodes) + 1)] = {
            "class_type": "PreviewAny",
            "inputs": {"source": link},
        }
