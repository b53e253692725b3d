"""What the soak makes of its measurements."""

import io
from types import SimpleNamespace

import pytest
from PIL import Image, PngImagePlugin
from robustness import soak

from tools.launcher.errors import LaunchError


def _traces(slope, rounds=12):
    traces = soak.Traces(prompts=20 * rounds, threads=[9] * rounds, handles=[30] * rounds)
    traces.memory = [
        (20 * number, 500 + slope * 20 * number + number % 2) for number in range(1, rounds + 1)
    ]
    return traces


def test_slope_of_memory_has_an_interval_around_it():
    numbers = soak._numbers(_traces(0.25), 36, 20, 0)
    slope = numbers["soak: memory slope"]
    assert (
        slope["low"] < 0.25 < slope["high"]
        and slope["high"] - slope["low"] < 0.1
        and slope["n"] == 8
    )
    assert numbers["soak: threads gained"]["value"] == 0


def test_too_few_rounds_are_one_sentence():
    with pytest.raises(LaunchError, match="too few"):
        soak._numbers(_traces(0.0, rounds=7), 36, 20, 0)


def test_steps_sizes_and_batches_become_tiny():
    inputs = {
        "width": ["INT", {"min": 16}],
        "steps": ["INT", {"min": 4}],
        "seed": ["INT", {}],
        "cfg": ["FLOAT", {}],
    }
    assert soak.shrink(
        {"width": 512, "steps": 20, "seed": 9, "cfg": 7.5}, {"input": {"required": inputs}}
    ) == {
        "width": 64,
        "steps": 4,
        "seed": 9,
        "cfg": 7.5,
    }


def _made(report, color=(9, 8, 7), note="", **others):
    content, about = io.BytesIO(), PngImagePlugin.PngInfo()
    about.add_text("prompt", note)
    Image.new("RGB", (4, 4), color).save(content, "png", pnginfo=about)
    client = SimpleNamespace(download=lambda file: content.getvalue())
    image = {"filename": "x.png", "subfolder": "", "type": "output"}
    return soak._digest(client, {"outputs": {"3": {"images": [image], "text": [report]}, **others}})


def test_results_are_compared_by_pixels_and_texts_without_durations():
    made = _made("2 steps, 0.21 s each, 3.6 ms in all.")
    assert made == _made("2 steps, 0.13 s each, 12 ms in all.", note="another")
    assert made != _made("3 steps, 0.21 s each, 3.6 ms in all.")
    assert made != _made("2 steps, 0.21 s each, 3.6 ms in all.", color=(9, 8, 6))


def test_a_panel_whose_node_came_from_the_cache_is_no_difference():
    assert _made("2 steps.") == _made("2 steps.", panel={"ranges": [[0, 1]]})
    assert _made("2 steps.") != _made("2 steps.", another={"text": ["another"]})


def test_what_workflows_have_written_is_removed(tmp_path):
    for name in ("models/w2w/space.safetensors", "output/a/b.png", "input/kept.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    soak._remove_made(tmp_path)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["kept.png"]
