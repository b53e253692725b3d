"""The drawing of a network, and what a recorder holds of a run that failed."""

from types import SimpleNamespace

import torch
from glassbox.nodes.activations import catalog_table, recorder
from glassbox.nodes.activations.tap import TapSettings


class Canvas:
    """Notes what is drawn on it."""

    def __init__(self):
        self.texts, self.boxes = [], []

    def text(self, place, text, **_):
        self.texts.append((place, text))

    def rectangle(self, box, fill):
        self.boxes.append((tuple(box), fill))


def test_a_line_names_its_module_at_its_finest_scale_and_has_a_box_for_each_activation():
    """Downsampling is in the module whose other activations are finer."""
    canvas = Canvas()
    members = [SimpleNamespace(id=f"id{n}", scale=8 if n == 3 else 4) for n in range(30)]
    fills = {spec.id: (number, 0, 0) for number, spec in enumerate(members)}
    bottom = catalog_table._draw_line(
        canvas, 7, top=20, place="down-level1", members=members, fills=fills
    )
    assert canvas.texts == [((7, 20), "down-level1  1/4")]
    assert [fill for _, fill in canvas.boxes] == list(fills.values())
    lefts = [box[0] for box, _ in canvas.boxes]
    assert lefts[0] == 7 and len({box[:2] for box, _ in canvas.boxes}) == len(members)
    lowest = max(box[3] for box, _ in canvas.boxes)
    assert canvas.boxes[0][0][1] > 20 and lowest < bottom
    assert len(set(lefts)) == catalog_table._CELLS_PER_LINE


def test_a_run_that_failed_leaves_nothing_in_its_recorder():
    """Not until the next one begins: its tensors may be all memory that there is."""
    watcher = recorder.Recorder([], TapSettings(), lambda *_: True, lambda sigma: sigma)
    watcher._snapshots[0] = torch.zeros(3)
    watcher._steps = 4
    watcher._skipped[1] = "Late."
    watcher.failed()
    assert not watcher._snapshots and not watcher._skipped and watcher._steps == 0
