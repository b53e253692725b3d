"""Jobs of `run.py batch` on the demo model: results are those of the queue, in any order and by any
worker.
"""

import json
import os
import subprocess
import sys

import pytest
import repository
from PIL import Image
from stand_in_engine import results

_WORKFLOW = repository.named("demo_world_text_to_image")
_LINES = [
    "portrait, light skin, bald",
    "portrait, brown skin, sunglasses",
    "portrait of nuvia karsk",
]


def _batch(workflow, folder, comfyui, lines, *arguments):
    """Run a workflow over lines, in a process of its own; the folder of its results."""
    (folder / "list.txt").write_text("\n".join(lines))
    given = [
        str(workflow),
        "--over",
        str(folder / "list.txt"),
        "--out",
        str(folder / "out"),
        "--cores",
        "1",
        "--cpu",
    ]
    done = subprocess.run(
        [sys.executable, "-P", str(repository.ROOT / "run.py"), "batch", *given, *arguments],
        env={**os.environ, "GLASSBOX_COMFYUI": str(comfyui)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout
    return folder / "out"


def _images(folder, comfyui, lines, *arguments):
    """The results of a short version of the first workflow over prompts."""
    folder.mkdir()
    return results(
        _batch(
            _short(folder / "w.json"), folder, comfyui, lines, "--map", "Caption.value", *arguments
        )
    )


def _short(path):
    """Write the first workflow with two steps."""
    saved = json.loads(_WORKFLOW.read_text("utf-8"))
    sampler = next(node for node in saved["nodes"] if node["type"] == "KSampler")
    sampler["widgets_values"][2] = 2
    path.write_text(json.dumps(saved))
    return path


@pytest.mark.slow
@pytest.mark.endurance
def test_results_do_not_depend_on_order_or_workers(tmp_path, comfyui):
    """Byte for byte: one process, and two workers of a cluster in the other order."""
    pytest.importorskip("ray")
    from benchmarks.batch import machines

    alone = _images(tmp_path / "alone", comfyui, _LINES, "--join", "images")
    assert len([name for name in alone if name.endswith(".png")]) == len(_LINES)
    assert (tmp_path / "alone" / "out" / "sheets" / "sheet_0001.png").is_file()
    for path in (tmp_path / "alone" / "out" / "pieces").rglob("*.png"):
        with Image.open(path) as image:
            assert image.info == {}  # no workflow, no prompt
    with machines.cluster(2) as (cluster, _):
        assert _images(tmp_path / "two", comfyui, _LINES[::-1], "--ray", cluster.address) == alone


_SCRIPT = """
import json, pathlib, psutil, runpy, sys
launcher, workflow, out = map(pathlib.Path, sys.argv[1:])
runpy.run_path(str(launcher))["load_package"]("tools")
from tools.launcher import comfyui
from tools.launcher.batch.job import Job, Target
from tools.launcher.batch.worker import Settings, Worker
worker = Worker(Settings(out, comfyui.prepare_base(), threads=1))
prompt, _, _ = worker.read(json.loads(workflow.read_text("utf-8")))
(sampler,) = [id_ for id_, node in prompt.items() if node["class_type"] == "KSampler"]
worker.take(Job(prompt, {"seed": (Target(sampler, "seed", "INT"),)}))
kept = []
for key, seed in ("a" * 64, "1"), ("b" * 64, "2"), ("c" * 64, "2"):
    worker.run(key, {"seed": seed})
    messages = dict(worker._engine._executor.status_messages)
    cached = messages["execution_cached"]["nodes"]
    kept.append(sorted({prompt[id_]["class_type"] for id_ in cached}))
ports = [at for at in psutil.Process().net_connections() if at.status == psutil.CONN_LISTEN]
classes = sorted({n["class_type"] for n in prompt.values()})
print(json.dumps({"kept": kept, "ports": len(ports), "classes": classes}))
"""


@pytest.mark.slow
@pytest.mark.endurance
def test_a_worker_keeps_what_does_not_change_writes_every_piece_and_opens_no_port(
    tmp_path, comfyui
):
    saved = _short(tmp_path / "w.json")
    (tmp_path / "out").mkdir()
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-c",
            _SCRIPT,
            str(repository.ROOT / "run.py"),
            str(saved),
            str(tmp_path / "out"),
        ],
        env={**os.environ, "GLASSBOX_COMFYUI": str(comfyui)},
        text=True,
        stdout=subprocess.PIPE,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    saving, sampling = {"SaveImage"}, {"KSampler", "VAEDecode"}
    first, another_seed, same_seed = map(set, found["kept"])
    assert not first
    assert another_seed and not another_seed & (
        saving | sampling
    )  # the model and the text are kept
    assert same_seed == set(found["classes"]) - saving  # only the file is written again
    one, other, again = (
        [
            content
            for name, content in sorted(results(tmp_path / "out").items())
            if letter * 64 in name and ".png" in name
        ]
        for letter in "abc"
    )
    assert one and other == again != one
    assert found["ports"] == 0


@pytest.mark.slow
@pytest.mark.endurance
def test_scores_of_pieces_are_those_of_one_run(tmp_path, comfyui):
    """The ready-made scan over a list in pieces of one and of all prompts gives the same table."""
    workflow, tables = repository.named("demo_neurons_scan_list"), []
    for chunk in ("1", "16"):
        folder = tmp_path / chunk
        folder.mkdir()
        out = _batch(workflow, folder, comfyui, _LINES, "--chunk", chunk)
        tables.append((out / "scores.csv").read_text("utf-8"))
    assert tables[0] == tables[1] and tables[0].count("\n") == 1 + len(_LINES)
