"""Whatever a report ranks: what it says comes first, of inputs in another order."""

from types import SimpleNamespace

import pytest
import torch
from glassbox.nodes.activations import kmeans, recorder
from glassbox.nodes.common.training import aspect_buckets
from glassbox.nodes.neurons import neuron_attribution, neuron_figures, neuron_reports
from glassbox.nodes.neurons.mask import NeuronMask, SearchRecord
from glassbox.nodes.neurons.memorization_score import PromptScore
from glassbox.nodes.neurons.nemo_search import SelectionStep
from glassbox.nodes.weights import directions, space_report


def pairs(*values):
    """The score of a prompt of three seeds whose pairs are this similar."""
    first, second, third = values
    return PromptScore(
        torch.tensor([[1.0, first, second], [first, 1.0, third], [second, third, 1.0]])
    )


def test_prompts_by_their_score():
    """The highest first, each with the seeds over the threshold; one of them exactly on it."""
    scores = {
        "middle": pairs(0.5, 0.1, 0.2),
        "lowest": pairs(0.2, 0.1, 0.1),
        "highest": pairs(0.9, 0.7, 0.1),
    }
    lines = neuron_reports.score_report(scores, 0.5, 7).splitlines()
    assert lines[:4] == [
        "1 of 3 prompt(s) score over 0.500 and count as memorized.",
        "0.900 memorized (3 of 3 seeds over): highest",
        "0.500 not memorized (0 of 3 seeds over): middle",
        "0.200 not memorized (0 of 3 seeds over): lowest",
    ]


def test_members_by_what_the_components_keep():
    """The member that loses most first; its rank's part is its own."""
    space = SimpleNamespace(
        coefficients=torch.tensor([[3.0, 0.0], [1.0, 1.0], [2.0, 0.0]]),
        squares=torch.tensor([10.0, 8.0, 5.0]),
        kept=torch.tensor([0.5, 0.6, 0.7]),
        members=["ada", "bert", "carl"],
        components=2,
    )
    assert space_report.describe_members(space).splitlines() == [
        "2 components keep 65.0 % of a member on average; least:",
        "  bert: components 25.0 %, rank 60.0 %",
        "  carl: components 80.0 %, rank 70.0 %",
        "  ada: components 90.0 %, rank 50.0 %",
    ]
    assert space_report.describe_members(space, 1).splitlines()[1:] == [
        "  bert: components 25.0 %, rank 60.0 %"
    ]


def test_directions_by_how_similar_they_are():
    """Opposite ones count as similar; five pairs at most."""
    angles = {"a": 0.0, "b": 80.0, "c": 170.0, "d": 10.0}
    found = {}
    for name, angle in angles.items():
        radians = torch.deg2rad(torch.tensor(angle))
        vector = 3 * torch.stack([radians.cos(), radians.sin()])
        found[name] = SimpleNamespace(vector=vector, noise=False, max_projection=1.0, about="fit")
    lines = directions.describe(found).splitlines()
    similar = lines[lines.index("Most similar:") + 1 :]
    assert similar == [
        "a and c: cosine -0.98",
        "a and d: cosine +0.98",
        "c and d: cosine -0.94",
        "b and d: cosine +0.34",
        "a and b: cosine +0.17",
    ]


def test_sizes_of_images():
    sizes = [(64, 128), (128, 64), (64, 64), (128, 64)]
    lines = aspect_buckets.describe_buckets(sizes, sizes).splitlines()
    assert lines[:3] == ["64 x 64: 1 images", "64 x 128: 1 images", "128 x 64: 2 images"]


def test_steps_that_were_not_recorded():
    run = SimpleNamespace(skipped={9: "Late.", 2: "Odd.", 4: "Late."})
    assert recorder.Run.skipped_report(run).splitlines() == [
        "Not recorded: steps 2. Odd.",
        "Not recorded: steps 4, 9. Late.",
    ]


def test_clusters_by_their_size():
    """Of equally large ones the first to appear comes first; an empty one is last."""
    labels = torch.tensor([[4, 4, 1], [0, 1, 0], [1, 2, 2]])
    found = kmeans.sort_by_size(labels, 5)
    assert found.tolist() == [[1, 1, 0], [2, 0, 2], [0, 3, 3]]


@pytest.mark.parametrize("count", [3, 12])
def test_searches_by_what_is_left_of_their_score(count):
    """Of many the highest are drawn in color and named, whatever their order."""
    import figures

    most = neuron_figures._MAX_NAMED
    traces = {
        f"prompt {number}": [
            SelectionStep(theta=1.0, k=1, listed=9, neurons=4, score=0.9),
            SelectionStep(theta=1.0, k=1, listed=9, neurons=2, score=0.01 * ((7 * number) % count)),
        ]
        for number in range(count)
    }
    panel = figures.drawn(neuron_figures.plot_search, traces, 0.428).panels[0]
    ends = {name: float(line[-1, 1]) for name, line in panel.lines.items() if "prompt" in name}
    highest = sorted((trace[-1].score for trace in traces.values()), reverse=True)[:most]
    assert sorted(ends.values(), reverse=True) == pytest.approx(highest)
    if count > most:
        assert list(ends.values()) == pytest.approx(highest)
        assert f"{count - most} more prompts, all lower in the end" in panel.legend
        assert len(panel.segments) == count - most


def test_the_neurons_of_a_chart_by_the_size_of_their_z(monkeypatch):
    """Negative ones count as large; they stay in the mask's order."""
    monkeypatch.setattr(neuron_reports, "_MAX_CHART", 2)
    z = {"a": {"1": 0.5, "4": -7.0, "6": 3.0}}
    record = SearchRecord("p", {"a": (1, 4, 6)}, True, {"z": z})
    mask = NeuronMask({"a": {1: 0.0, 4: 0.5, 6: 0.25}}, (record,))
    chart = neuron_reports.mask_chart(mask)
    assert chart["count"] == 3
    assert [entry[1:3] for entry in chart["neurons"]] == [[4, 0.5], [6, 0.25]]


def test_neurons_by_their_attribution():
    """The largest first, of equal ones the first; at 0 or below a neuron does not help."""
    values = torch.tensor([0.0, 2.0, -1.0, 3.0, 2.0, 1e-9, -0.0])
    assert neuron_attribution._order(values) == [3, 1, 4, 5]
