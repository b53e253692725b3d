"""Work grows in proportion to the input: steps, opened files and accesses are counted at two sizes,
never seconds.
"""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from glassbox.nodes.neurons import mask_operations
from glassbox.nodes.neurons.mask import NeuronMask, merge_masks, uniform_scales
from glassbox.nodes.weights import directions
from growth import steps

WEB = Path(__file__).resolve().parents[2] / "web"
SMALL, LARGE = 20, 200
#: How many times the steps may grow beyond the tenfold input: for logarithms.
ALLOWED = 1.3


def _mask(count):
    return NeuronMask(uniform_scales((f"blocks.{index // 8}.1", index) for index in range(count)))


def _select(count, keep):
    mask = _mask(count)
    lines = "\n".join(f"{path} {index}" for path, index in mask.neurons)
    return lambda: mask_operations.select_named(mask, lines, keep)


def _merge(count):
    masks = [
        NeuronMask(uniform_scales([(f"blocks.{index}.1", 7), ("other", 7)]))
        for index in range(count)
    ]
    return lambda: merge_masks(masks)


@pytest.mark.parametrize(
    "make",
    [lambda n: _select(n, True), lambda n: _select(n, False), _merge],
    ids=["keep_named", "drop_named", "merge_masks"],
)
def test_steps_grow_with_the_input(make):
    few, many = (steps(make(count)) for count in (SMALL, LARGE))
    assert many <= ALLOWED * (LARGE // SMALL) * few


class _Counted(np.ndarray):
    """Counts the numbers that operations on it, and on what comes of it, go through."""

    numbers = 0

    def __array_ufunc__(self, operation, method, *inputs, **named):
        plain = [np.asarray(one) for one in inputs]
        _Counted.numbers += sum(one.size for one in plain)
        result = getattr(operation, method)(*plain, **named)
        return result.view(_Counted) if isinstance(result, np.ndarray) else result


def test_the_cut_of_a_direction_grows_with_the_members():
    counts = []
    for count in (SMALL, LARGE):
        _Counted.numbers = 0
        values = np.random.default_rng(0).normal(size=count)
        directions.best_cut(values.view(_Counted), (values > 0.1).view(_Counted))
        counts.append(_Counted.numbers)
    assert 0 < counts[1] <= ALLOWED * (LARGE // SMALL) * counts[0]


def test_a_merged_mask_is_the_union_one_by_one():
    from glassbox.nodes.neurons.mask import union

    masks = [
        NeuronMask(uniform_scales([("b", n), ("a", n % 3)], n / 7), (), {"a": (n,)} if n else {})
        for n in range(6)
    ]
    expected = masks[0]
    for one in masks[1:]:
        expected = union(expected, one)
    merged = merge_masks(iter(masks))
    assert (merged.scales, merged.fingerprint) == (
        expected.scales,
        expected.fingerprint,
    ) and merged.fingerprint


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_selecting_all_boxes_of_the_network_map_reads_each_id_a_few_times():
    """Accesses to the list of IDs, of a text that names half of them and then all."""
    module = next(path for path in WEB.rglob("ids.*js"))
    script = f"""
    import {{ readFileSync }} from "node:fs";
    const source = readFileSync({json.dumps(str(module))}, "utf-8");
    const text = await import("data:text/javascript," + encodeURIComponent(source));
    const counts = [];
    for (const count of [{SMALL}, {LARGE}]) {{
      let reads = 0;
      const ids = Array.from({{ length: count }}, (_, index) => `up-level${{index}}-out`);
      const get = (target, key) => (reads++, Reflect.get(target, key));
      const counted = new Proxy(ids, {{ get }});
      const half = ids.filter((_, index) => index % 2).join("\\n");
      const all = text.write(half, counted, ids, true);
      if (new Set(all.split("\\n")).size !== count) throw "wrong";
      if (text.write(all, counted, ids, false) !== "") throw "wrong";
      counts.push(reads);
    }}
    console.log(JSON.stringify(counts));
    """
    done = subprocess.run(
        ["node", "--input-type=module", "-e", script], capture_output=True, text=True, check=True
    )
    few, many = json.loads(done.stdout)
    assert many <= ALLOWED * (LARGE // SMALL) * few


def test_a_search_figure_of_many_prompts_names_a_few():
    """Sixty legend entries covered the axes; the lines of the others are one collection."""
    from glassbox.nodes.neurons import neuron_figures
    from glassbox.nodes.neurons.nemo_search import SelectionStep
    from matplotlib.figure import Figure

    def drawn(count):
        traces = {
            f"prompt {number}": [
                SelectionStep(
                    theta=2.0,
                    k=0,
                    listed=5 * step,
                    neurons=5 * step,
                    score=1 - number / count / 2 - step / 9,
                )
                for step in (1, 2)
            ]
            for number in range(count)
        }
        figure = Figure()
        neuron_figures.plot_search(figure, traces, 0.3)
        return figure.axes[0]

    few, many = drawn(3), drawn(60)
    assert [text.get_text() for text in few.get_legend().get_texts()][:3] == [
        "prompt 0",
        "prompt 1",
        "prompt 2",
    ]
    named = [text.get_text() for text in many.get_legend().get_texts()]
    assert (
        len(named) == 12
        and "prompt 0" in named
        and "50 more prompts, all lower in the end" in named
    )
    assert len(many.collections[0].get_segments()) == 50 and len(many.lines) == 11


def test_a_contact_sheet_of_many_words_has_pages():
    from glassbox.nodes.activations import overlays

    images = torch.rand(1, 4, 4, 3, generator=torch.Generator().manual_seed(0))
    few, many = (
        overlays.contact_sheet([(f"w{n}", images) for n in range(count)], 16) for count in (40, 90)
    )
    assert few.shape[0] == 1 and many.shape == (3, *few.shape[1:])
    assert torch.equal(few[0], many[0])
