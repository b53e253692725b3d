"""Two ComfyUI servers on one models folder and one output folder, at work on one file at the same
moment.
"""

import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import members
import pytest
from glassbox.nodes.neurons import mask_file
from glassbox.nodes.neurons.mask import NeuronMask
from glassbox.nodes.weights import space_file
from robustness import fuzz

from tools.launcher import comfyui as installation
from tools.launcher.api import Client
from tools.launcher.server import Server

pytestmark = [pytest.mark.slow, pytest.mark.endurance]

_ROUNDS = 8
_MEMBERS = (100, 140)  # of the space that each server builds
_SECONDS = 600.0  # for the busiest machine
_BUILD = {"rank": 2, "energy": 0.99, "components": 20, "form": "as_trained", "standardize": True}
_BUILD |= {"on_mismatch": "skip", "storage": "float32"}
_LAYER = "input_blocks.1.1.transformer_blocks.0.attn2.to_v"


class Pair:
    """Two servers with the same models and output folders; each has LoRAs and a mask of its own."""

    def __init__(self, servers):
        self.models, self.output = servers[0].base / "models", servers[0].base / "output"
        self._clients = [Client(server.url, timeout=_SECONDS) for server in servers]
        self._threads = ThreadPoolExecutor(len(servers))

    def run(self, *prompts):
        """Follow one prompt on each server, all at once; returns the kind and message of each
        end.
        """
        ends = self._threads.map(
            lambda client, prompt: fuzz.follow(client, prompt, _SECONDS), self._clients, prompts
        )
        return list(ends)

    def build(self, *folders):
        """Build the space "both", on each server of other LoRAs; the ends, and the bytes of the
        file.
        """
        self._space("both").unlink(missing_ok=True)
        ends = self.run(
            *(
                _nodes(("GBX_W2WBuildSpace", _BUILD | {"folder": one, "filename": "both"}))
                for one in folders
            )
        )
        return ends, self._space("both").read_bytes()

    def space(self, name):
        """A space as the pack reads it; it raises for a file that is not whole."""
        return space_file.read(self._space(name))

    def _space(self, name):
        return self.models / "w2w" / f"{name}.safetensors"


@pytest.fixture(scope="module")
def pair(comfyui, tmp_path_factory):
    bases = [installation.prepare_base(tmp_path_factory.mktemp("server")) for _ in range(2)]
    for name in ("models", "output"):
        shutil.rmtree(bases[1] / name)
        installation.link(bases[0] / name, bases[1] / name)
    for number, (base, count) in enumerate(zip(bases, _MEMBERS, strict=True)):
        members.write_folder(base / "models" / "loras" / f"people_{number}", count, rank=2)
        mask = NeuronMask({_LAYER: {number: 0.0}}, history=(f"mask {number}",))
        mask_file.write(mask, base / "input" / "mask.json")
    with ExitStack() as stack:  # without a cache, so that each prompt runs all its nodes
        servers = [
            stack.enter_context(Server(comfyui, base, ("--cache-none",), cpu=True))
            for base in bases
        ]
        yield Pair(servers)


def _nodes(*nodes):
    """A prompt of nodes in a row, the last one's first output shown."""
    prompt = {
        str(number): {"class_type": name, "inputs": dict(given)}
        for number, (name, given) in enumerate(nodes)
    }
    return prompt | {
        "shown": {"class_type": "PreviewAny", "inputs": {"source": [str(len(nodes) - 1), 0]}}
    }


def _busy(end):
    kind, message = end
    return kind == "sentence" and "is being written by another run or another ComfyUI" in message


def test_space_built_by_both_at_once_is_that_of_one(pair):
    alone = [pair.build(f"people_{number}")[1] for number in range(2)]
    assert alone[0] != alone[1]
    refused = 0
    for _ in range(_ROUNDS):
        ends, made = pair.build("people_0", "people_1")
        assert all(kind == "done" or _busy((kind, message)) for kind, message in ends), ends
        assert made in [
            whole for whole, (kind, _) in zip(alone, ends, strict=True) if kind == "done"
        ]
        refused += sum(map(_busy, ends))
    assert refused, "the two were never at work at once"
    assert fuzz.leftovers(pair.models) == []


def test_space_saved_by_both_at_once_is_that_of_one(pair):
    for number in range(2):
        pair.build(f"people_{number}")
        (pair.models / "w2w" / "both.safetensors").rename(
            pair.models / "w2w" / f"space_{number}.safetensors"
        )
    prompts = [
        _nodes(
            ("GBX_W2WLoadSpace", {"space_name": f"space_{number}.safetensors"}),
            ("GBX_W2WSaveSpace", {"space": ["0", 0], "filename": "saved", "storage": "float32"}),
        )
        for number in range(2)
    ]
    for _ in range(_ROUNDS):
        ends = pair.run(*prompts)
        assert all(kind == "done" for kind, _ in ends), ends
        saved = pair.space("saved")
        kept = _MEMBERS.index(len(saved.members))
        assert bool((saved.basis[:] == pair.space(f"space_{kept}").basis[:]).all())
    assert fuzz.leftovers(pair.models) == []


def test_mask_saved_by_both_at_once_is_that_of_one(pair):
    prompt = _nodes(
        ("GBX_LoadDemoModel", {"weights": "avatars-v2"}),
        ("GBX_LoadNeuronMask", {"file": "mask.json", "model": ["0", 0], "threshold": 0.5}),
        ("GBX_SaveNeuronMask", {"mask": ["1", 0], "filename_prefix": "masks/mask"}),
    )
    for _ in range(_ROUNDS):
        ends = pair.run(prompt, prompt)
        assert all(kind == "done" for kind, _ in ends), ends
    files = sorted((pair.output / "masks").glob("*.json"))
    assert _ROUNDS <= len(files) <= 2 * _ROUNDS
    for file in files:
        mask = mask_file.read(file, [])
        (index,) = mask.scales[_LAYER]
        assert mask.history[0] == f"mask {index}"
    assert fuzz.leftovers(pair.output) == []
