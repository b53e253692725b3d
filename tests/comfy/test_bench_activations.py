"""The benchmark of taps on a tiny network: the contenders keep the same features, and every number
is there.
"""

import numpy as np
import pytest
import torch


@pytest.fixture
def tiny(app, monkeypatch):
    """The benchmark's modules with a tiny network."""
    from benchmarks.activations import networks, tapping

    small = {
        "model_channels": 32,
        "num_res_blocks": [1, 1],
        "channel_mult": [1, 2],
        "transformer_depth": [1, 1],
        "transformer_depth_output": [1, 1, 1, 1],
        "context_dim": 64,
    }
    monkeypatch.setitem(networks.NETWORKS, "tiny", ("SD15", "sd15", small, 16))
    return networks, tapping


def test_hooks_and_tap_keep_the_same_features(tiny):
    networks, tapping = tiny
    bench = networks.Bench("tiny")
    chosen = bench.chosen("all_features")
    tapped = tapping.tap(bench, chosen).tensors
    for kept in (tapping.as_it_is, tapping.copied):
        features = tapping.by_hooks(bench, chosen, kept)
        assert len(features) == len(tapped) == len(chosen) > 20
        for entry, feature in zip(chosen, features, strict=True):
            if entry.kind == "tokens":
                feature = feature.transpose(1, 2)
            ours = tapped[entry.id].float().flatten()
            torch.testing.assert_close(ours, feature.float().flatten(), rtol=1e-3, atol=1e-3)


def test_every_number_is_there(tiny):
    numbers = tiny[1]._network("tiny", 1)
    (whole,) = (
        name.removeprefix("tiny, ").removesuffix(": kept")
        for name in numbers
        if name.endswith(": kept")
    )
    assert {name.removeprefix("tiny, ") for name in numbers} == {
        "plain evaluation",
        f"{whole} over plain",
        "hooks that append over plain",
        "hooks that append copies over plain",
        "the copies alone over plain",
        f"{whole} minus its copies, over plain",
        f"hooks that append copies over {whole}",
        f"{whole}: kept",
    }
    assert all(number["value"] > 0 for number in numbers.values())


def test_each_id_has_its_module_in_diffusers(app):
    """Every path is of a module whose weights ComfyUI itself knows by diffusers' names."""
    from comfy.utils import unet_to_diffusers

    from benchmarks.activations import by_diffusers

    blueprints = app.module("nodes.activations.meta_networks_comfy")
    names = unet_to_diffusers(blueprints.ARCHITECTURES["sd15"])
    network = blueprints.network("architecture", "sd15")
    ids = [
        entry.id
        for entry in app.module("nodes.activations.catalog_unet").catalog(network)
        if entry.kind not in ("map", "input") and not entry.members
    ]
    paths = [by_diffusers.module_of(id_) for id_ in ids]
    assert len(set(paths)) == len(ids) == 164
    assert all(any(name.startswith(f"{path}.") for name in names) for path in paths)
    assert by_diffusers.module_of("up-level1-repeat2-vit-block0-cross-q") == (
        "up_blocks.1.attentions.2.transformer_blocks.0.attn2.to_q"
    )
    assert by_diffusers.module_of("down-level0-downsampler-out") == "down_blocks.0.downsamplers.0"


def test_added_time_is_measured_in_alternation(tiny, monkeypatch):
    """With a clock of our own: 100 ms for the plain evaluation, 3 more for the other, and a machine
    that slows down.
    """
    from benchmarks.activations import adding

    now, slower = [0.0], [0.0]

    def takes(milliseconds):
        slower[0] += 0.5
        now[0] += (milliseconds + slower[0]) / 1000

    monkeypatch.setattr(
        adding,
        "time",
        type("", (), {"process_time": lambda: now[0], "perf_counter": lambda: now[0]}),
    )
    times = adding.rounds({"plain": lambda: takes(100), "tap": lambda: takes(103)}, 5)
    assert [len(one) for one in times.values()] == [5, 5]
    assert np.allclose(times["tap"] - times["plain"], 3)
    numbers = adding.added_numbers("tap", times["tap"], times["plain"], "of nothing")
    assert (
        numbers["tap: added"]["value"] == pytest.approx(3)
        and 0.02 < numbers["tap: fraction added"]["value"] < 0.03
    )


def test_latents_are_measured_against_themselves(tiny, monkeypatch):
    from benchmarks.activations import latents

    monkeypatch.setattr(latents, "CASES", (("tiny", 8, 2),))
    numbers = latents.measure(False)
    contenders = {name.split(", ")[2].partition(" (")[0].partition(":")[0] for name in numbers}
    taps = {"tap of recommended", "tap of all_features"}
    assert contenders == {"the evaluation against itself", *taps, "7 transformers steered"}
    assert len(numbers) == 2 * len(contenders)


def test_live_bytes_are_counted():
    """Storages that operations made, once each, as long as they live; not what was there before,
    nor views.
    """
    from benchmarks.activations import memory

    before = torch.ones(1000)
    with memory.LiveBytes() as counted:
        first = before + 1
        views = first.view(10, 100), before.t()
        first.mul_(2)
        second = first.half()
        assert (counted.live, counted.peak) == (6000, 6000)
        del first, views
        assert (counted.live, counted.peak) == (2000, 6000)
        del second
    assert (counted.live, counted.peak) == (0, 6000)


def test_a_tap_adds_at_most_what_it_keeps(tiny, monkeypatch):
    networks, tapping = tiny
    from benchmarks.activations import memory

    monkeypatch.setattr(memory, "_NETWORK", "tiny")
    monkeypatch.setattr(memory, "_PRESET", "all_features")
    monkeypatch.setattr(memory, "_SIDE", 16)
    numbers = {
        name.rpartition(": ")[2]: number["value"] * 1e6
        for name, number in memory.measure(True).items()
    }
    bench = networks.Bench("tiny", 16)
    features = tapping.tap(bench, bench.chosen("all_features")).tensors.values()
    assert numbers["kept"] == pytest.approx(sum(feature.nbytes for feature in features), rel=1e-3)
    assert 0 < numbers["added to the peak"] <= numbers["kept"] < numbers["peak of memory"]


def test_without_diffusers_one_sentence(tiny, monkeypatch):
    from benchmarks.activations import by_diffusers

    monkeypatch.setattr(by_diffusers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        SystemExit, match="so taps cannot be measured against it: pip install diffusers"
    ):
        by_diffusers.measure(True)


def test_diffusers_gives_the_same_features(tiny, monkeypatch):
    pytest.importorskip(
        "diffusers", reason="diffusers is not installed (requirements-dev.txt lists it)"
    )
    from benchmarks.activations import by_diffusers, networks

    monkeypatch.setitem(networks.NETWORKS, "thin", ("SD15", "sd15", {"model_channels": 32}, 16))
    numbers = by_diffusers.against("thin", 1)
    (difference,) = (
        number["value"] for name, number in numbers.items() if "largest difference" in name
    )
    assert difference < 1e-4 and len(numbers) == 4


def test_traffic_counts_what_is_read_and_written():
    from benchmarks.activations.steering import Traffic

    values = torch.ones(2, 3, dtype=torch.float16, device="meta")
    with Traffic() as traffic:
        values.view(6).unsqueeze(0)
        added = values + values  # reads two and writes one
        added.mul_(values)
    assert traffic.elements == 2 * 6 and traffic.bytes == 2 * 3 * 6 * 2


def test_steering_adds_less_than_a_percent(app):
    """Counted on SD1.5 at 512 pixels; all sixteen transformers together move a little more than a
    percent of bytes.
    """
    from benchmarks.activations import steering

    numbers = {name: number["value"] for name, number in steering.measure(True).items()}
    kinds = {
        "1 steered",
        "16 steered",
        *(f"1 steered by a sparse feature, {mode}" for mode in ("add", "scale")),
    }
    labels, counted = zip(
        *(name.removeprefix("SD1.5, 512 pixels, ").split(": ") for name in numbers), strict=True
    )
    assert (
        set(labels) == kinds
        and set(counted) == {"operations added", "bytes added"}
        and len(numbers) == 8
    )
    assert all(
        0 < value < (0.02 if "16 steered: bytes" in name else 0.01)
        for name, value in numbers.items()
    ), numbers
