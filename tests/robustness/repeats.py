"""`run.py fuzz --repeat N`: random prompts run twice, and compared with the same on a ComfyUI that
keeps nothing.

Two moves. Stop and repeat: the prompt is stopped at some evaluation of a model or look at Stop, and
queued again. Change and repeat: it runs, one input of one node changes, and it is queued again.
Both happen in an executor with a cache and a folder of files that stay, under the names that nodes
keep work by. What the second run gives must be what an executor without a cache gives in empty
folders, bit by bit, or it must end in a readable sentence.

Half of the prompts are of nodes that keep work, which run to their end; the others are those of
`run.py fuzz`, without wrong inputs. Number n of a move depends on the seed and on n only.
"""

from __future__ import annotations

import copy
import itertools
import json
import logging
import math
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

from tools.launcher import paths
from tools.launcher.in_process import Comfy, describe, start
from tools.launcher.widgets import inputs

from . import fuzz, prompts

MOVES = ("stop", "change")
#: How the second run ended; the last two are defects.
ENDS = ("equal", "sentence", "not ended", "different", "bare")
DEFECTS = ENDS[-2:]
_WHAT = {
    "equal": "gave what a server without a cache gives for the same prompt, bit by bit",
    "sentence": "ended in a readable sentence",
    "not ended": (
        "were left after the time for one prompt, or ended in an error without a cache too"
    ),
    "different": "gave something else",
    "bare": "ended in an exception without a readable sentence",
}
_STATE = "repeat.json"
_LIMIT = 20.0  # seconds of the processor for a run
_TRIES = 10
_NAME = "kept/work"  # of files of kept work
_CACHES = ("CLASSIC", "LRU")
# Outputs that tell of the run itself: what an earlier one has searched, and sample images of the
# steps of this one.
_OF_THE_RUN = {"GBX_NemoLocalize 1", "GBX_NemoLocalize 3", "GBX_TrainLoraImmiscible 5"}
# What differs between two equal runs: times, and numbers of files.
_PASSING = re.compile(r"\d[\d.,]*\s?(?:s|ms|min|images/s|it/s)\b|_\d{5}_?|\d[\d.,]*\s?[kMG]i?B\b")


class Kept:
    """A node that keeps what it is given; it runs each time."""

    RETURN_TYPES, FUNCTION, OUTPUT_NODE, CATEGORY, INPUT_IS_LIST = (), "keep", True, "test", True
    values: ClassVar[dict[str, object]] = {}

    @classmethod
    def INPUT_TYPES(cls):  # noqa: N802
        return {"required": {"value": ("*", {}), "of": ("STRING", {})}}

    @classmethod
    def IS_CHANGED(cls, **_):  # noqa: N802
        return float("nan")

    def keep(self, value, of):
        self.values[of[0]] = value
        return {}


@dataclass
class State:
    """How far a run has come; saved after each number, so that the next run goes on there."""

    seed: int
    done: dict[str, int] = field(default_factory=lambda: dict.fromkeys(MOVES, 0))
    counts: Counter = field(default_factory=Counter)  # "move: end" -> times
    went_on: int = 0  # stopped runs whose repetition did less than the whole
    stopped: int = 0
    defects: dict[str, str] = field(default_factory=dict)  # "move number" -> what happened

    def note(self, move: str, number: int, end: str, message: str) -> None:
        """Count a number, in the place of what it ended in before."""
        key = f"{move} {number}"
        if key in self.defects:
            self.counts[f"{move}: {self.defects.pop(key).split(': ')[0]}"] -= 1
        else:
            self.done[move] = number + 1
        self.counts[f"{move}: {end}"] += 1
        if end in DEFECTS:
            self.defects[key] = f"{end}: {message}"
        paths.write_atomically(fuzz.FOLDER / _STATE, json.dumps(self.__dict__, indent=1))


def _load_state(seed: int) -> State:
    try:
        saved = json.loads((fuzz.FOLDER / _STATE).read_text("utf-8"))
        if saved["seed"] == seed:
            return State(**{**saved, "counts": Counter(saved["counts"])})
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return State(seed)


class Side:
    """An executor with folders of its own."""

    def __init__(self, trial: Trial, cache: str):
        self._trial, self._cache, self.folder = trial, cache, trial.base / f"side-{cache.lower()}"
        self.begin()

    def begin(self) -> None:
        """Forget everything."""
        import execution

        shutil.rmtree(self.folder, ignore_errors=True)
        for name in ("output", "w2w"):
            (self.folder / name).mkdir(parents=True)
        quiet = SimpleNamespace(
            client_id=None, last_node_id=None, last_prompt_id=None, send_sync=lambda *message: None
        )
        limits = {"lru": 50, "ram": 1.0, "ram_inactive": 1.0}
        self._executor = execution.PromptExecutor(quiet, execution.CacheType[self._cache], limits)

    def run(self, prompt: dict, stop_at: int | None = None) -> tuple[str, dict | str, int]:
        """Kind ("done", "stopped", "sentence", "bare", "long"), outputs by name or the message, and
        pieces of work.
        """
        import folder_paths

        folder_paths.set_output_directory(str(self.folder / "output"))
        folder_paths.folder_names_and_paths["w2w"] = (
            [str(self.folder / "w2w"), self._trial.spaces],
            {".safetensors"},
        )
        folder_paths.filename_list_cache.clear()
        self._trial.begin(stop_at)
        Kept.values.clear()
        kept = [id_ for id_, node in prompt.items() if node["class_type"] == "FuzzKept"]
        self._executor.execute(copy.deepcopy(prompt), "prompt", {}, kept)
        messages = dict(self._executor.status_messages)
        work = self._trial.work
        if "execution_interrupted" in messages:
            return "long" if stop_at is None else "stopped", "", work
        if "execution_error" in messages:
            error = messages["execution_error"]
            kind, message = (
                error["exception_type"].split(".")[-1],
                error["exception_message"].strip(),
            )
            stock = not error["node_type"].startswith("GBX_")
            readable = stock or fuzz.is_readable(kind, message)
            return (
                "sentence" if readable else "bare",
                f"{error['node_type']}: {kind}: {message[:300]}",
                work,
            )
        return (
            "done",
            {name: self._trial.digest(value) for name, value in Kept.values.items()},
            work,
        )


class Trial:
    """ComfyUI in this process, and the moves."""

    def __init__(self, comfy: Comfy, base: Path, seed: int):
        import comfy.model_management as management
        import folder_paths
        from comfy.model_base import BaseModel

        self.base, self._comfy, self._seed = base, comfy, seed
        self.work, self._stop_at, self._deadline = 0, None, math.inf
        self._owner = management
        stop, apply = management.throw_exception_if_processing_interrupted, BaseModel.apply_model

        def look() -> None:
            self._count()
            stop()

        def evaluate(*args, **kwargs):
            self._count()
            return apply(*args, **kwargs)

        management.throw_exception_if_processing_interrupted, BaseModel.apply_model = look, evaluate
        comfy.classes["FuzzKept"] = Kept
        sys.path.insert(0, str(paths.ROOT / "tests" / "helpers"))
        import resumable

        self._nodes, self._before, self._free = resumable.NODES, resumable.BEFORE, resumable.FREE
        (base / "files").mkdir()
        resumable.make_files(comfy, base / "files")
        self.spaces = str(paths.ROOT / "assets")
        self._worlds(comfy)
        self._generator = prompts.Generator(
            {name: describe(name, node) for name, node in comfy.classes.items()}, seed
        )
        self.sides = {cache: Side(self, cache) for cache in (*_CACHES, "NONE")}
        folder_paths.set_temp_directory(str(base / "temp"))

    def _worlds(self, comfy: Comfy) -> None:
        """Load the demo world twice, once for the executor that keeps nothing, instead of at each
        prompt.
        """
        node = comfy.classes["GBX_LoadDemoModel"]
        self._loaded = {
            own: comfy.run("GBX_LoadDemoModel", weights="avatars-v2") for own in (False, True)
        }
        execute, trial = node.execute.__func__, self

        def shared(cls, weights):
            from comfy_api.latest import io

            if weights != "avatars-v2":
                return execute(cls, weights)
            model, clip, vae = trial._loaded[trial.alone]
            return io.NodeOutput(model.clone(), clip.clone(), vae)

        self.alone = False
        node.execute = classmethod(shared)

    def begin(self, stop_at: int | None) -> None:
        """Count from 0, and press Stop at a piece of work."""
        self.work, self._stop_at, self._deadline = 0, stop_at, time.process_time() + _LIMIT

    def _count(self) -> None:
        self.work += 1
        if self.work == self._stop_at or time.process_time() > self._deadline:
            self._owner.interrupt_current_processing()

    def digest(self, value) -> str:
        """Changes with an output, but for what passes: times, and numbers of files."""
        resume, identity = (
            self._comfy.module("nodes.common.resume"),
            self._comfy.module("nodes.host.identity"),
        )

        def known(part):
            if isinstance(part, str):
                return (
                    None
                    if type(part) is str and self._lasting(part) == part
                    else self._lasting(part)
                )
            if hasattr(part, "patches_uuid"):
                return identity.model_digest(part)
            if hasattr(part, "basis") and hasattr(
                part, "coefficients"
            ):  # a space also says when its files were made
                return [
                    part.layout.to_json(),
                    part.mean,
                    part.deviation,
                    part.basis,
                    part.coefficients,
                    part.members,
                ]
            if hasattr(part, "tokenizer") and hasattr(part, "patcher"):
                return identity.clip_digest(part)
            if hasattr(part, "first_stage_model") and hasattr(part, "patcher"):
                return identity.vae_digest(part)
            return None

        texts = isinstance(value, list) and all(isinstance(one, str) for one in value)
        return self._lasting("\n".join(value)) if texts else resume.digest(value, known)

    def _lasting(self, text: str) -> str:
        """A text without what passes."""
        for side in self.sides.values():
            text = text.replace(str(side.folder), "")
        return _PASSING.sub("#", str(text))

    def prompt(self, rng: random.Random) -> tuple[prompts.Prompt, str]:
        """A prompt with one node in question, and that node's number."""
        made = prompts.Prompt(self._generator, rng)
        if rng.random() < 0.5:
            subject = rng.choice(sorted(self._nodes))
            given, file, _ = self._nodes[subject]
            for id_, (kind, values) in self._before.items():
                made.nodes[id_] = {"class_type": kind, "inputs": dict(values)}
                for slot, output in enumerate(self._generator.describe(kind)["output"]):
                    made.made.setdefault(output, [id_, slot])
            made.nodes["subject"] = {"class_type": subject, "inputs": {**given, file: _NAME}}
            return made, "subject"
        number = made.add(rng.choice(self._generator.nodes), 1)[0]  # mostly plain: few refusals
        return made, number

    def with_kept(self, nodes: dict[str, dict], number: str) -> dict[str, dict]:
        """The prompt with what keeps every output of a node."""
        nodes = dict(nodes)
        for slot, _ in enumerate(self._generator.describe(nodes[number]["class_type"])["output"]):
            nodes[f"kept {slot}"] = {
                "class_type": "FuzzKept",
                "inputs": {"value": [number, slot], "of": f"{nodes[number]['class_type']} {slot}"},
            }
        return nodes

    def changed(
        self, made: prompts.Prompt, number: str, rng: random.Random
    ) -> tuple[dict[str, dict], str] | None:
        """The nodes with one input of a node in other value, and which; None where none was
        found.
        """
        nodes, before = made.nodes, copy.deepcopy(made.nodes)
        ours = [
            id_
            for id_ in self._reached(nodes, number)
            if nodes[id_]["class_type"].startswith("GBX_")
        ]
        for _ in range(_TRIES):
            chosen = number if rng.random() < 0.7 else rng.choice(ours)
            kind = nodes[chosen]["class_type"]
            described = [
                one for one in inputs(self._generator.describe(kind)) if kind != "GBX_LoadDemoModel"
            ]
            if not described:
                continue
            one, old = rng.choice(described), None
            old = before[chosen]["inputs"].get(one.name)
            if one.is_widget:
                new = made._value(one)
            else:
                made.made.pop(one.kind, None)
                new = made._link(one.kind, 1, plain=False)
            # What is kept may be rounded otherwise, and in a time budget a run that goes on finds
            # more.
            free = one.name in self._free.get(kind, ()) or one.name == "time_budget"
            if new is not None and new != old and old != _NAME and not free:
                nodes[chosen]["inputs"][one.name] = new
                return nodes, f"{kind}.{one.name}: {str(old)[:60]} -> {str(new)[:60]}"
        return None

    def _reached(self, nodes: dict[str, dict], number: str) -> list[str]:
        """A node and what comes before it."""
        found, left = [], [number]
        while left:
            id_ = left.pop()
            if id_ not in found:
                found.append(id_)
                left += [
                    value[0] for value in nodes[id_]["inputs"].values() if isinstance(value, list)
                ]
        return found

    def alone_run(self, prompt: dict) -> tuple[str, dict | str, int]:
        """What the executor that keeps nothing gives, in empty folders."""
        self.alone = True
        try:
            self.sides["NONE"].begin()
            return self.sides["NONE"].run(prompt)
        finally:
            self.alone = False

    def follow(self, move: str, number: int, state: State) -> tuple[str, str]:
        """One number of a move to its end: an end of ENDS, and what happened."""
        rng = random.Random(f"{self._seed} {move} {number}")
        side = self.sides[rng.choice(_CACHES)]
        side.begin()
        made, subject = self.prompt(rng)
        name, change = made.nodes[subject]["class_type"], ""
        if move == "change":
            first = self.with_kept(copy.deepcopy(made.nodes), subject)
            other = self.changed(made, subject, rng)
            if other is None:
                return "not ended", f"{name}: nothing to change"
            nodes, change = other
            if side.run(first)[0] == "long":
                return "not ended", f"{name} took too long"
            second = self.with_kept(nodes, subject)
            kind, right, whole = self.alone_run(second)
        else:
            for _ in range(_TRIES):  # until one works long enough to be stopped
                second = self.with_kept(made.nodes, subject)
                kind, right, whole = self.alone_run(second)
                if kind == "done" and whole:
                    break
                made, subject = self.prompt(rng)
            name = made.nodes[subject]["class_type"]
            if kind == "done" and whole:
                stopped = side.run(second, rng.randint(1, whole))[0] == "stopped"
                state.stopped += stopped
        if kind in ("long", "stopped"):
            return "not ended", f"{name} took too long"
        found, given, work = side.run(second)
        what = f"{name} {change}"
        if found in ("long", "stopped"):
            return "not ended", f"{what}: took too long"
        if found == "bare":
            return "bare", f"{what}: {given}"
        if found == "sentence":
            return "sentence", f"{what}: {given}"
        if kind != "done":
            return "different", f"{what}: it should end in {right}"
        state.went_on += move == "stop" and work < whole
        differ = [
            slot for slot in right if slot not in _OF_THE_RUN and given.get(slot) != right[slot]
        ]
        if differ:
            again = self.alone_run(second)[1]  # what differs by itself says nothing
            differ = [slot for slot in differ if again[slot] == right[slot]]
        shown = [
            f"{slot} ({_first_difference(str(given.get(slot)), str(right[slot]))})"
            for slot in differ
        ]
        return ("different", f"{what}: {', '.join(shown)}") if differ else ("equal", what)


def _first_difference(given: str, right: str) -> str:
    """The lines in which two texts differ first."""
    pairs = itertools.zip_longest(given.splitlines(), right.splitlines(), fillvalue="nothing")
    one, other = next((pair for pair in pairs if pair[0] != pair[1]), ("", ""))
    return f"{one[:200]!r} for {other[:200]!r}"


def run(comfyui_folder: Path, count: int, seed: int, only: Sequence[str] = ()) -> int:
    """Follow so many numbers of each move, from where the last run ended, and report; 1 where there
    was a defect.
    """
    state = _load_state(seed)
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(start(comfyui_folder, Path(folder)), Path(folder), seed)
        logging.disable(logging.CRITICAL)
        numbers = [tuple(one.split(" ")) for one in only or sorted(state.defects)]
        if not only:
            first = min(state.done.values())
            numbers += [
                (move, n) for n in range(first, count) for move in MOVES if n >= state.done[move]
            ]
        begun = time.monotonic()
        for tried, (move, number) in enumerate(numbers):
            end, message = trial.follow(move, int(number), state)
            if only or end in DEFECTS:
                print(f"{move} {number}: {end}: {message}", flush=True)
            if not only:
                state.note(move, int(number), end, message)
            if tried % 50 == 49:
                print(
                    f"{tried + 1} in {time.monotonic() - begun:.0f} s: {dict(state.counts)}",
                    flush=True,
                )
    if only:
        return 0
    numbers = {}
    for move in MOVES:
        for end in ENDS:
            value = state.counts[f"{move}: {end}"]
            numbers[f"repeat: {move}: {end}"] = {
                "value": value,
                "n": state.done[move],
                "unit": "prompts",
            } | {
                "what": (
                    f"{'stopped' if move == 'stop' else 'changed in one input'} and queued again; "
                    f"{_WHAT[end]}"
                )
            }
    numbers["repeat: stop: stopped"] = {
        "value": state.stopped,
        "n": state.done["stop"],
        "unit": "prompts",
    } | {"what": "were stopped before their end"}
    numbers["repeat: stop: went on"] = {
        "value": state.went_on,
        "n": state.stopped,
        "unit": "prompts",
    } | {"what": "did less the second time than the whole"}
    fuzz._write("repeat: ", numbers, seed)
    for name, entry in numbers.items():
        print(f"{name}: {entry['value']} of {entry['n']}")
    return int(bool(state.defects))
