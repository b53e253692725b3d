"""The network map of a file whose header holds hostile shapes: drawn, or one sentence."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

import pytest
import reduced
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from robustness import fuzz

#: Shapes whose products, bytes or strides overflow, and others that no layer has. A tensor without
#: numbers takes no place, so a stranger may give it any shape; others lie in a hole of the file.
SHAPES = (
    [0],
    [],
    [2**62, 0],
    [2**63, 0],
    [2**64 - 1, 0],
    [2**62, 2**62, 0],
    [0, 2**31, 2**31, 2**31],
    [0] * 70,
    [1] * 70,
    [2**33],
    [2**17, 2**17],
    [1, 1, 1, 2**33],
    [3, 5],
)
PREFIX = "model.diffusion_model."


def _network(app, name):
    if name == "sd15":
        return app.module("nodes.activations.meta_networks_comfy").network("architecture", name)
    return reduced.flux_without_weights()


@pytest.fixture(scope="module")
def shapes(app):
    """The tensors' shapes of SD1.5's network and of Flux by name."""
    return {
        name: {
            PREFIX + key: list(tensor.shape)
            for key, tensor in _network(app, name).state_dict().items()
        }
        for name in ("sd15", "flux")
    }


@pytest.fixture
def answer(app, monkeypatch, tmp_path):
    """What the canvas is answered for a file of these shapes."""
    import folder_paths

    file = tmp_path / "hostile.safetensors"
    monkeypatch.setattr(folder_paths, "get_full_path", lambda kind, name: str(file))
    outline = app.module("nodes.activations.nodes_catalog").network_outline

    def of(shapes: dict[str, list[int]]) -> str:
        """ "drawn", or the sentence."""
        _write(file, shapes)
        try:
            json.dumps(outline("checkpoints", file.name, {}), allow_nan=False)
        except ValueError as error:
            message = str(error)
            assert fuzz.is_readable(type(error).__name__, message), message
            assert file.name in message
            return message
        return "drawn"

    return of


def _write(path: Path, shapes: dict[str, list[int]]) -> None:
    """A .safetensors file of one byte a number, all of them in a hole."""
    header = {}
    end = 0
    for name, shape in shapes.items():
        count = 1
        for side in shape:
            count *= side
        header[name] = {"dtype": "U8", "shape": shape, "data_offsets": [end, end + count]}
        end += count
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


def test_headers_that_fit_are_drawn(shapes, answer):
    for name, own in shapes.items():
        assert answer(own) == "drawn", name


@pytest.mark.parametrize("network", ["sd15", "flux"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_hostile_shape_anywhere_is_drawn_or_one_sentence(shapes, answer, network, shape):
    """In what ComfyUI tells the network by, and beside it."""
    own = shapes[network]
    telling = [
        key
        for key in own
        if key.endswith(("input_blocks.0.0.weight", "attn2.to_k.weight", "img_in.weight"))
        or key.endswith(("out.2.weight", "txt_in.weight", "query_norm.scale", "query_norm.weight"))
    ]
    assert len(telling) > 2
    for key in (*telling[:4], f"{PREFIX}further.weight"):
        answer({**own, key: shape})


@pytest.mark.parametrize("network", ["sd15", "flux"])
def test_any_hostile_shapes(shapes, answer, network):
    own = shapes[network]

    @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.randoms(use_true_random=False))
    def check(rng: random.Random) -> None:
        changed = dict(own)
        for _ in range(rng.choice((1, 2, 4))):
            key = rng.choice(sorted(changed))
            draw = rng.random()
            if draw < 0.2:
                del changed[key]
            elif draw < 0.4:  # another number of a block, or none
                number = rng.choice((".99.", ".-1.", ".x.", f".{'9' * 5000}."))
                changed[key.replace(".0.", number)] = [4]
            else:
                changed[key] = rng.choice(SHAPES)
        answer(changed)

    check()


def test_a_shape_that_overflows_is_named_a_header_that_cannot_be_read(shapes, answer):
    own = shapes["sd15"]
    for shape in ([2**63, 0], [2**64 - 1, 0]):
        key = f"{PREFIX}input_blocks.0.0.weight"
        assert answer({**own, key: shape}).endswith("run the workflow once.")
