"""`run.py fuzz --minutes N`: random API prompts for every node of the pack, each followed to its
end.

A prompt is built from ComfyUI's /object_info alone: a node of the pack, what its sockets need, and
a use of one of its outputs, at the smallest sizes. In most prompts one input is wrong. Each must
end in a result or in one readable sentence. Prompt n depends on the seed and on n only, so that
`--only n` repeats it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
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
from tools.launcher.server import Server

from .prompts import HOSTILE, Generator

FOLDER = paths.CACHE / "fuzz"
_STATE, _RESULT = "state.json", "robustness"
_LIMIT_SECONDS, _STOP_SECONDS = 60.0, 60.0  # for a prompt, and for its end after an interrupt
_SAVE_EVERY = 10

#: What became of a prompt. The last four are defects.
KINDS = ("done", "refused", "sentence", "stock", "stopped", "bare", "frozen", "died", "leftover")
DEFECTS = KINDS[-4:]

_BARE = re.compile(
    r"(Key|Index|Attribute|Type|Assertion|Lookup|NotImplemented|Recursion|ZeroDivision|EOF|UnboundLocal|StopIteration"
    r"|JSONDecode|Unicode\w*|Name|Import|ModuleNotFound|Safetensor|Unpickling)Error$|^Exception$"
)
ARGUMENTS = (*serve.CANVAS_ARGUMENTS, "--cache-lru", "200")
_SENTENCE = re.compile(r"^(?!\[Errno)(?!.*weights_only)\S+( +\S+){3,}$")
LEFTOVERS = ("*.part", "*.partial", "*.building", "*.tmp")


@dataclass
class State:
    """How far a run has come; saved now and then, so that the next one goes on there."""

    seed: int
    next: int = 0
    counts: Counter = field(default_factory=Counter)
    messages: dict[str, dict] = field(
        default_factory=dict
    )  # message without its numbers -> kind, count, first prompt
    defects: dict[str, list[str]] = field(
        default_factory=dict
    )  # number of a prompt -> kind, message without numbers

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
            plain = re.sub(r"'[^']*'|\"[^\"]*\"|-?\d+(?:[.,]\d+)*(?:e[+-]?\d+)?", "#", message)[
                :300
            ]
            key = f"{kind}: {plain}"
            self.messages.setdefault(key, {"kind": kind, "count": 0, "first": number})["count"] += 1
            if kind in DEFECTS and number >= 0:  # leftovers are of no prompt in particular
                self.defects[str(number)] = [kind, key]

    def numbers(self) -> Iterator[int]:
        """What to try next: first the prompts that ended in a defect, which may have been
        mended.
        """
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


def follow(
    client: Client, prompt: dict, limit: float = _LIMIT_SECONDS, stop: float = _STOP_SECONDS
) -> tuple[str, str]:
    """Queue a prompt and wait for its end; returns its kind (of KINDS) and the message that it
    ended with.
    """
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
            pause = min(
                1.2 * pause, 1.0
            )  # each request costs the server about as much as a small node
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
            return (
                "sentence" if is_readable(error, message) else "bare"
            ), f"{node}: {error}: {message}"
    return "done", ""


def is_readable(error: str, message: str) -> bool:
    """Whether an exception's class and message are what a person can act on: one sentence, not one
    of Python's own.
    """
    return not _BARE.search(error) and bool(_SENTENCE.match(message))


def _names(prompt: dict) -> str:
    return " + ".join(
        entry["class_type"] for entry in prompt.values() if entry["class_type"].startswith("GBX_")
    )


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
                (".safetensors", ".pt")
                if "models" in folder
                else (".safetensors", ".json", ".csv", ".txt", ".png")
            ):
                file = base / folder / f"{HOSTILE}{name}{suffix}"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)


def leftovers(base: Path) -> list[str]:
    """Temporary files that are left below a folder."""
    return sorted(
        str(path.relative_to(base)) for pattern in LEFTOVERS for path in base.rglob(pattern)
    )


def run(comfyui_folder: Path, arguments: Sequence[str]) -> int:
    """Try prompts for some minutes, and report; returns 1 if there was a defect.

    A run goes on where the last one ended, after it has tried again what ended in a defect then.
    """
    parser = argparse.ArgumentParser(
        "run.py fuzz", description="Follow random prompts for every node to their end."
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default: 10)")
    parser.add_argument("--seed", type=int, default=1, help="of the prompts (default: 1)")
    parser.add_argument(
        "--restart", action="store_true", help="forget what earlier runs have tried"
    )
    parser.add_argument(
        "--soak",
        type=int,
        metavar="PROMPTS",
        help="instead, run the demo workflows this many times",
    )
    parser.add_argument(
        "--stop",
        nargs="*",
        metavar="NODE",
        help="instead, measure how long Stop waits in every node, or in these",
    )
    parser.add_argument(
        "--calls",
        type=int,
        metavar="PROMPTS",
        help="instead, compare hooking nodes with a reference",
    )
    parser.add_argument(
        "--repeat",
        type=int,
        metavar="N",
        help="instead, stop or change N prompts each and queue them again",
    )
    parser.add_argument(
        "--trainers", type=int, metavar="N", help="instead, run N trainers behind other nodes"
    )
    parser.add_argument(
        "--these",
        nargs="+",
        default=(),
        metavar="MOVE_NUMBER",
        help="of --repeat, print these alone",
    )
    parser.add_argument(
        "--headers",
        type=int,
        metavar="FILES",
        help="instead, read valid files with hostile headers",
    )
    parser.add_argument(
        "--only", type=int, metavar="NUMBER", help="print one prompt, run it and print its end"
    )
    options = parser.parse_args(arguments)
    os.environ.setdefault(
        "OMP_NUM_THREADS", "1"
    )  # at the smallest sizes more threads only wait for each other
    if options.calls is not None:
        from . import calls

        return calls.run(comfyui_folder, options.calls, options.seed)
    if options.headers is not None:
        return _try_headers(options.headers, options.seed)
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
    if options.trainers is not None:
        from . import trainers

        numbers = trainers.run(comfyui_folder, options.trainers, options.seed)
        _write(trainers.PREFIX, numbers, options.seed)
        return int(
            any(numbers[f"{trainers.PREFIX}{kind}"]["value"] for kind in ("bare", "frozen", "died"))
        )
    if options.stop is not None:
        from . import stops

        return stops.run(comfyui_folder, options.stop)
    if options.repeat is not None:
        from . import repeats

        return repeats.run(
            comfyui_folder,
            options.repeat,
            options.seed,
            [one.replace("_", " ") for one in options.these],
        )
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


def _tried(
    comfyui_folder: Path, base: Path, state: State, seconds: float
) -> Iterator[tuple[int, str, str]]:
    """Number, kind and message of one prompt after the other; a server that has died or hangs is
    replaced.
    """
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
                        time.sleep(
                            1
                        )  # a server that breaks its connections off needs a moment to end
                        if server.running():
                            kind, message = "frozen", f"{message} It had not ended."
                    if kind in ("died", "frozen"):
                        shutil.copy(server.log, FOLDER / f"{number}.log")
                    yield number, kind, message
                    bar.n = min(time.monotonic() - start, seconds)
                    bar.set_description_str(
                        f"{state.next} prompts, {sum(state.counts[kind] for kind in DEFECTS)} "
                        "defects"
                    )


def _try_headers(count: int, seed: int) -> int:
    """Read files with hostile headers, and write how many ended how; returns 1 if there was a
    defect.
    """
    from . import hostile_headers

    counts, defects = hostile_headers.run(count, seed)
    print(*defects, sep="\n")
    meanings = {
        "result": "valid files with hostile header values; were read",
        "sentence": (
            "valid files with hostile header values; ended in one readable sentence that names "
            "the file"
        ),
        "bare": (
            "valid files with hostile header values; ended in an exception without such a sentence"
        ),
        "slow": (
            "valid files with hostile header values; took more than "
            f"{hostile_headers.MOST_SECONDS:.0f} s"
        ),
    }
    numbers = {
        f"headers: {end}": {
            "value": counts[end],
            "n": count,
            "unit": "files",
            "what": meanings[end],
        }
        for end in hostile_headers.ENDS
    }
    numbers["headers: kinds"] = {
        "value": len(hostile_headers.KINDS),
        "n": count,
        "unit": "kinds",
        "what": (
            "of files, each with an equal number of cases; their readers ran in one process, "
            "without nodes"
        ),
    }
    for name, entry in numbers.items():
        print(f"{name}: {entry['value']} of {count} ({entry['what']})")
    _write("headers: ", numbers, seed)
    return int(bool(defects))


def _report(state: State, seed: int) -> None:
    """Print the counts and the distinct messages, and write the result file."""
    tried = sum(state.counts.values())
    print("\n" + table(("end", "prompts"), [(kind, str(state.counts[kind])) for kind in KINDS]))
    for kind in (*DEFECTS, "stock"):
        for message, entry in sorted(state.messages.items(), key=lambda item: -item[1]["count"]):
            if entry["kind"] == kind:
                print(f"{entry['count']:5d} x {message} (prompt {entry['first']})")
    numbers = {
        f"prompts: {kind}": {
            "value": state.counts[kind],
            "n": tried,
            "unit": "prompts",
            "what": what,
        }
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

    every = dict(sorted({**kept, **numbers}.items()))
    print(f"\nWritten: {results.write(_RESULT, command, seed, assets, every)}")
