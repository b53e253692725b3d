"""`run.py fuzz --minutes N`: random API prompts for every node of the pack, each followed to its end.

A prompt is built from ComfyUI's /object_info alone: a node of the pack, what its sockets need, and a use of one of its
outputs, at the smallest sizes. In most prompts one input is wrong. Each must end in a result or in one readable
sentence. Prompt n depends on the seed and on n only, so that `--only n` repeats it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.launcher import comfyui, paths, serve, studies
from tools.launcher.api import Client, ConnectionLostError, PromptError
from tools.launcher.console import table
from tools.launcher.errors import LaunchError
from tools.launcher.server import Server
from tools.launcher.widgets import Input, default_value, inputs

FOLDER = paths.CACHE / "fuzz"
_STATE, _RESULT = "state.json", "robustness"
_LIMIT_SECONDS, _STOP_SECONDS = 60.0, 60.0  # for a prompt, and for its end after an interrupt
_SAVE_EVERY = 10

#: What became of a prompt. The last four are defects.
KINDS = ("done", "refused", "sentence", "stock", "stopped", "bare", "frozen", "died", "leftover")
DEFECTS = KINDS[-4:]

# Stock nodes that make what the sockets of the pack take; the first of a type is the usual one.
_STOCK = (
    *("CLIPTextEncode", "VAEEncode", "EmptyLatentImage", "EmptySD3LatentImage", "RandomNoise", "DisableNoise"),
    *("KSamplerSelect", "BasicScheduler", "BasicGuider", "CFGGuider", "EmptyImage", "SolidMask", "VAEDecode"),
    *("ConditioningZeroOut", "KSampler", "SamplerCustomAdvanced"),
)
# Inputs that decide how long a run takes, and the values that keep it short.
_SMALL = {
    r"batch_size|^count$": (1, 2),
    r"width|height|resolution|size$": (64, 128),
    r"steps|count|batch|seeds|images|draws|rounds|epochs|members|samples|budget|seconds|number|length": (1, 2),
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
_WRONG_NUMBERS = (math.nan, math.inf, -math.inf, -1e308, 10**30, "x", "", None, True, {"__value__": [1, 2]})
_WRONG_TEXTS = (5, None, "\0", "* " * 100_000, "x" * 1_000_001, {"__value__": []})
_WRONG_OPTIONS = ("Bogus", "", 7, None, {"__value__": ["a"]})
_WRONG_LINKS = (1, "x", None, True, ["missing", 0], {"__value__": {"samples": 1}})
_BARE = re.compile(
    r"(Key|Index|Attribute|Type|Assertion|Lookup|NotImplemented|Recursion|ZeroDivision|EOF|UnboundLocal|StopIteration"
    r"|JSONDecode|Unicode\w*|Name|Import|ModuleNotFound|Safetensor|Unpickling)Error$|^Exception$"
)
_PLAIN = 0.8
ARGUMENTS = (*serve.CANVAS_ARGUMENTS, "--cache-lru", "200")
_SENTENCE = re.compile(r"^(?!\[Errno)(?!.*weights_only)\S+( +\S+){3,}$")
# Makers that need a file of the user's or a sampler before them: of a type the last choice.
_LAST_CHOICE = re.compile(r"GBX_((?!LoadDemo|W2WLoad)\w*(Load|Import|Build|ProjectLoRA)|ReadActivations)")
_PROMPTS = "portrait, bald\nportrait, red hair\nportrait, sunglasses"  # where a node takes a list
_HOSTILE = "hostile_"
LEFTOVERS = ("*.part", "*.partial", "*.building", "*.tmp")


class Generator:
    """Makes prompts for the nodes that ComfyUI describes in `object_info`."""

    def __init__(self, object_info: dict, seed: int):
        self._info, self._seed = object_info, seed
        module = f"custom_nodes.{comfyui.PACK_NAME}"
        self.nodes = sorted(name for name, info in object_info.items() if info.get("python_module") == module)
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
        return _Prompt(self, random.Random(f"{self._seed} {number}")).fill(subject)

    def plain(self, subject: str) -> tuple[dict, str]:
        """A prompt that runs a node with plain inputs at the smallest sizes, and the number of the node in it."""
        prompt = _Prompt(self, _Lowest())
        number, _ = prompt.add(subject, 1)
        return prompt.nodes, number

    def describe(self, name: str) -> dict:
        """ComfyUI's description of a node class."""
        return self._info[name]

    def maker(self, kind: str, rng: random.Random, cheap: bool) -> tuple[str, int] | None:
        """A node class and its output slot that makes a type; None where there is none."""
        kinds = [one for one in kind.split(",") if one in self._cheapest] if kind != "*" else ["IMAGE"]
        if not kinds:
            return None
        chosen = rng.choice(kinds)
        return self._cheapest[chosen][1] if cheap else rng.choice(self._makers[chosen])

    def _find_cheapest(self) -> dict[str, tuple[int, tuple[str, int]]]:
        """For each type the least cost, about the number of nodes, and the class and slot that makes it so."""
        found: dict[str, tuple[int, tuple[str, int]]] = {}
        changed = True
        while changed:
            changed = False
            for kind, makers in self._makers.items():
                for name, slot in makers:
                    needed = [one.kind for one in inputs(self._info[name]) if one.required and not one.is_widget]
                    if all(one in found for one in needed):
                        cost = 1 + sum(found[one][0] for one in needed) + 50 * bool(_LAST_CHOICE.match(name))
                        if kind not in found or cost < found[kind][0]:
                            found[kind], changed = (cost, (name, slot)), True
        return found


class _Lowest(random.Random):
    """Draws 0 each time, with which everything in a prompt is plain."""

    def random(self) -> float:
        return 0.0


class _Prompt:
    """One prompt while it is built."""

    def __init__(self, generator: Generator, rng: random.Random):
        self._generator, self._rng = generator, rng
        self.nodes: dict[str, dict] = {}
        self._made: dict[str, list] = {}  # type -> link, for a later use of the same

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
        """A node with values for its inputs and links to what makes the others; depth 0 is the node in question."""
        # What only feeds the node in question is mostly plain, so that ComfyUI has it in its cache from another prompt.
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
            self._made.setdefault(kind, [number, slot])
        return [number, 0]

    def _link(self, kind: str, depth: int, plain: bool) -> list | None:
        if kind in self._made and (plain or self._rng.random() < 0.8):
            return self._made[kind]
        maker = self._generator.maker(kind, self._rng, cheap=plain or depth > 2 or self._rng.random() < 0.8)
        return None if maker is None else [self.add(maker[0], depth)[0], maker[1]]

    def _plain_value(self, one: Input) -> object:
        low, high = one.options.get("min", 0), one.options.get("max", 100)
        if one.kind in ("INT", "FLOAT"):
            for pattern, values in _SMALL.items():
                if re.search(pattern, one.name):
                    return type(low)(min(max(values[0], low), high))
        if one.kind == "STRING" and one.name.endswith("prompts"):
            return _PROMPTS
        choices = [choice for choice in one.options.get("options") or () if not str(choice).startswith(_HOSTILE)]
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
            outside = [one.options[end] + step for end, step in (("min", -1), ("max", 1)) if end in one.options]
            wrong = [*_WRONG_NUMBERS, *outside, *outside]
        elif one.is_widget:
            wrong = {"STRING": _WRONG_TEXTS, "COMBO": _WRONG_OPTIONS, "BOOLEAN": _WRONG_NUMBERS}[one.kind]
        else:
            others = [link for kind, link in self._made.items() if kind != one.kind]
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
            self._made[kind] = link
            link = self.add(user, 1)
            self.nodes[link[0]]["inputs"][name] = self._made[kind]
        self.nodes[str(len(self.nodes) + 1)] = {"class_type": "PreviewAny", "inputs": {"source": link}}


@dataclass
class State:
    """How far a run has come; saved now and then, so that the next one goes on there."""

    seed: int
    next: int = 0
    counts: Counter = field(default_factory=Counter)
    messages: dict[str, dict] = field(default_factory=dict)  # message without its numbers -> kind, count, first prompt
    defects: dict[str, list[str]] = field(default_factory=dict)  # number of a prompt -> kind, message without numbers

    def note(self, number: int, kind: str, message: str) -> None:
        """Count one outcome, for a prompt that ended in a defect before in the place of that."""
        if str(number) in self.defects:
            old, key = self.defects.pop(str(number))
            self.counts[old] -= 1
            self.messages[key]["count"] -= 1
            if not self.messages[key]["count"]:
                del self.messages[key]
        self.counts[kind] += 1
        self.next = max(self.next, number + 1)
        if message:
            plain = re.sub(r"'[^']*'|\"[^\"]*\"|-?\d+(?:[.,]\d+)*(?:e[+-]?\d+)?", "#", message)[:300]
            key = f"{kind}: {plain}"
            self.messages.setdefault(key, {"kind": kind, "count": 0, "first": number})["count"] += 1
            if kind in DEFECTS and number >= 0:  # leftovers are of no prompt in particular
                self.defects[str(number)] = [kind, key]

    def numbers(self) -> Iterator[int]:
        """What to try next: first the prompts that ended in a defect, which may have been mended."""
        return itertools.chain(sorted(map(int, self.defects)), itertools.count(self.next))

    def save(self) -> None:
        """Write it to the cache."""
        paths.write_atomically(FOLDER / _STATE, json.dumps(self.__dict__, indent=1))


def load_state(seed: int) -> State:
    """The saved state of this seed, or a new one."""
    try:
        saved = json.loads((FOLDER / _STATE).read_text("utf-8"))
        if saved["seed"] == seed:
            return State(**{**saved, "counts": Counter(saved["counts"])})
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return State(seed)


def follow(client: Client, prompt: dict, limit: float = _LIMIT_SECONDS, stop: float = _STOP_SECONDS) -> tuple[str, str]:
    """Queue a prompt and wait for its end; returns its kind (of KINDS) and the message that it ended with."""
    try:
        prompt_id = client.queue(prompt)
    except PromptError as error:
        return "refused", str(error)
    except ConnectionLostError as error:
        return "died", str(error)
    interrupted, pause = False, 0.02
    deadline = time.monotonic() + limit
    try:
        while (entry := client.history(prompt_id)) is None:
            if time.monotonic() > deadline:
                if interrupted:
                    return "frozen", f"{_names(prompt)} did not stop within {stop:.0f} s"
                client.interrupt()
                interrupted, deadline = True, time.monotonic() + stop
            time.sleep(pause)
            pause = min(1.2 * pause, 1.0)  # each request costs the server about as much as a small node
    except ConnectionLostError:
        return "died", f"{_names(prompt)} ended the server"
    return ("stopped", "") if interrupted else outcome(entry, prompt)


def outcome(entry: dict, prompt: dict) -> tuple[str, str]:
    """Kind and message of a history entry."""
    for kind, data in (entry.get("status") or {}).get("messages", ()):
        if kind == "execution_error":
            error, node = data["exception_type"].split(".")[-1], data["node_type"]
            message = data["exception_message"].strip()
            if not node.startswith("GBX_"):
                return "stock", f"{node}: {error}: {message}"
            return ("sentence" if is_readable(error, message) else "bare"), f"{node}: {error}: {message}"
    return "done", ""


def is_readable(error: str, message: str) -> bool:
    """Whether an exception's class and message are what a person can act on: one sentence, not one of Python's own."""
    return not _BARE.search(error) and bool(_SENTENCE.match(message))


def _names(prompt: dict) -> str:
    return " + ".join(entry["class_type"] for entry in prompt.values() if entry["class_type"].startswith("GBX_"))


def hostile_files(base: Path) -> None:
    """Put files that no reader can use where the nodes list files."""
    contents = {
        "empty": b"",
        "text": b"<html>not what the name says</html>",
        "zeros": bytes(4096),
        "deep": b"[" * 5000,
        "header": (2**62).to_bytes(8, "little") + b"{}",
        "keys": b"{}",
    }
    for folder in ("models/w2w", "models/loras", "input"):
        for name, content in contents.items():
            for suffix in (
                (".safetensors", ".pt") if "models" in folder else (".safetensors", ".json", ".csv", ".txt", ".png")
            ):
                file = base / folder / f"{_HOSTILE}{name}{suffix}"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)


def leftovers(base: Path) -> list[str]:
    """Temporary files that are left below a folder."""
    return sorted(str(path.relative_to(base)) for pattern in LEFTOVERS for path in base.rglob(pattern))


def run(comfyui_folder: Path, arguments: Sequence[str]) -> int:
    """Try prompts for some minutes, and report; returns 1 if there was a defect.

    A run goes on where the last one ended, after it has tried again what ended in a defect then.
    """
    parser = argparse.ArgumentParser("run.py fuzz", description="Follow random prompts for every node to their end.")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default: 10)")
    parser.add_argument("--seed", type=int, default=1, help="of the prompts (default: 1)")
    parser.add_argument("--restart", action="store_true", help="forget what earlier runs have tried")
    parser.add_argument("--soak", type=int, metavar="PROMPTS", help="instead, run the demo workflows this many times")
    parser.add_argument(
        "--stop", nargs="*", metavar="NODE", help="instead, measure how long Stop waits in every node, or in these"
    )
    parser.add_argument("--calls", type=int, metavar="PROMPTS", help="instead, compare hooking nodes with a reference")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="print one prompt, run it and print its end")
    options = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # at the smallest sizes more threads only wait for each other
    if options.calls is not None:
        from . import calls

        return calls.run(comfyui_folder, options.calls, options.seed)
    base = FOLDER / "base"
    if options.restart:
        shutil.rmtree(FOLDER, ignore_errors=True)
    comfyui.prepare_base(base)
    hostile_files(base)
    if options.only is not None:
        with Server(comfyui_folder, base, ARGUMENTS) as server:
            client = Client(server.url)
            prompt = Generator(client.object_info(), options.seed).make(options.only)
            print(json.dumps(prompt, indent=1), *follow(client, prompt), sep="\n")
        return 0
    if options.soak is not None:
        from . import soak

        numbers = soak.run(comfyui_folder, options.soak, options.minutes)
        for name, entry in numbers.items():
            print(f"{name}: {entry['value']:.4g} {entry['unit']} ({entry['what']})")
        _write("soak: ", numbers, options.seed)
        bad = ("failed", "different", "temporary files")
        return int(any(numbers[f"soak: {name}"]["value"] for name in bad))
    if options.stop is not None:
        from . import stops

        return stops.run(comfyui_folder, options.stop)
    state = load_state(options.seed)
    try:
        for number, kind, message in _tried(comfyui_folder, base, state, options.minutes * 60):
            state.note(number, kind, message)
            if state.next % _SAVE_EVERY == 0:
                state.save()
        for name in leftovers(base):
            state.note(-1, "leftover", re.sub(r"\.[0-9a-f]{8}\.", ".#.", name))
    finally:
        state.save()
    _report(state, options.seed)
    return int(any(state.counts[kind] for kind in DEFECTS))


def _tried(comfyui_folder: Path, base: Path, state: State, seconds: float) -> Iterator[tuple[int, str, str]]:
    """Number, kind and message of one prompt after the other; a server that has died or hangs is replaced."""
    from tqdm import tqdm  # here, because the launcher is imported before its environment exists

    start, numbers = time.monotonic(), state.numbers()
    bar = tqdm(total=seconds, bar_format="  [{bar:24}] {percentage:3.0f}%  {desc}", ascii="-#")
    with bar:
        while time.monotonic() - start < seconds:
            with Server(comfyui_folder, base, ARGUMENTS) as server:
                client = Client(server.url)
                generator = Generator(client.object_info(), state.seed)
                kind = "done"
                while kind not in ("died", "frozen") and time.monotonic() - start < seconds:
                    number = next(numbers)
                    kind, message = follow(client, generator.make(number))
                    if kind == "died":
                        time.sleep(1)  # a server that breaks its connections off needs a moment to end
                        if server.running():
                            kind, message = "frozen", f"{message} It had not ended."
                    if kind in ("died", "frozen"):
                        shutil.copy(server.log, FOLDER / f"{number}.log")
                    yield number, kind, message
                    bar.n = min(time.monotonic() - start, seconds)
                    bar.set_description_str(
                        f"{state.next} prompts, {sum(state.counts[kind] for kind in DEFECTS)} defects"
                    )


def _report(state: State, seed: int) -> None:
    """Print the counts and the distinct messages, and write the result file."""
    tried = sum(state.counts.values())
    print("\n" + table(("end", "prompts"), [(kind, str(state.counts[kind])) for kind in KINDS]))
    for kind in (*DEFECTS, "stock"):
        for message, entry in sorted(state.messages.items(), key=lambda item: -item[1]["count"]):
            if entry["kind"] == kind:
                print(f"{entry['count']:5d} x {message} (prompt {entry['first']})")
    numbers = {
        f"prompts: {kind}": {"value": state.counts[kind], "n": tried, "unit": "prompts", "what": what}
        for kind, what in {
            "done": "ended in a result",
            "refused": "refused by ComfyUI before anything ran",
            "sentence": "ended in one readable sentence of the pack",
            "stock": "ended in an error of a stock node",
            "stopped": f"stopped after {_LIMIT_SECONDS:.0f} s, as requested",
            "bare": "ended in an exception without a readable sentence",
            "frozen": "did not stop when requested",
            "died": "ended the server",
            "leftover": "temporary files left behind",
        }.items()
    }
    numbers["prompts: distinct messages"] = {
        "value": sum(entry["kind"] == "sentence" for entry in state.messages.values()),
        "n": tried,
        "unit": "messages",
        "what": "readable sentences that differ in more than numbers and quoted names",
    }
    _write("prompts: ", numbers, seed)


def _write(prefix: str, numbers: dict[str, dict], seed: int) -> None:
    """Replace the numbers of that prefix in the result file, which both kinds of run share."""
    results = studies.load_module("common.results", "studies")
    path = results.RESULTS / f"{_RESULT}.json"
    before = json.loads(path.read_text("utf-8"))["numbers"] if path.exists() else {}
    kept = {name: entry for name, entry in before.items() if not name.startswith(prefix)}
    command = f"python run.py fuzz --seed {seed}"
    assets = paths.ROOT / "assets" / "avatars-v2"

    print(f"\nWritten: {results.write(_RESULT, command, seed, assets, dict(sorted({**kept, **numbers}.items())))}")
