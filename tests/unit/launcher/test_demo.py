"""The demo command on a stand-in for ComfyUI: images, table, failures, choice of workflows."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
import urllib.request

import pytest
from PIL import Image

from tools.launcher import cli, demo, environment, paths, workflow
from tools.launcher.api import Progress
from tools.launcher.console import ProgressLine
from tools.launcher.errors import LaunchError
from tools.launcher.server import Server


def _write(folder, name, node, kind, **further):
    """A workflow of one node, of which `to_prompt` gives the prompt that it holds."""
    saved = {
        "prompt": {"1": {"class_type": node, "inputs": {}}},
        "extra": {"glassbox": {"kind": kind, "name": name, **further}},
    }
    (folder / f"{name}.json").write_text(json.dumps(saved))


@pytest.fixture
def workflows(tmp_path, monkeypatch):
    """A folder of workflows, already in API format, and a place for what they make."""
    folder = tmp_path / "workflows"
    folder.mkdir()
    for name, node in (
        ("demo_a", "Sample"),
        ("demo_b", "Fail"),
        ("demo_c", "Sample"),
        ("sd15_x", "Sample"),
    ):
        _write(folder, name, node, "checkpoint" if name == "sd15_x" else "demo")
    monkeypatch.setattr(paths, "WORKFLOWS", folder)
    monkeypatch.setattr(paths, "FURTHER_WORKFLOWS", tmp_path / "further")
    monkeypatch.setattr(paths, "HOST", tmp_path / "host")
    monkeypatch.setattr(paths, "DURATIONS", tmp_path / "durations.json")
    monkeypatch.setattr(workflow, "to_prompt", lambda loaded, object_info: loaded["prompt"])
    monkeypatch.setattr(workflow, "load", lambda path: json.loads(path.read_text()))
    monkeypatch.setattr(environment, "needs_cpu", lambda: False)
    return folder


def test_failing_workflow_is_reported_and_the_others_run(workflows, stand_in, tmp_path, capsys):
    out = tmp_path / "out"
    assert demo.run(stand_in, None, False, out, None, keep_open=False) == 1
    assert {path.name for path in out.iterdir()} == {
        "demo_a_1.png",
        "demo_c_1.png",
        "contact_sheet.png",
    }
    printed = capsys.readouterr().out
    assert re.search(r"^demo_a +\d+\.\d +demo_a_1\.png$", printed, re.MULTILINE)
    assert re.search(
        r"^demo_b +\d+\.\d +FAILED: Fail \(node 1\): The file is corrupt", printed, re.MULTILINE
    )


def test_only_runs_one_workflow_and_removes_old_images(workflows, stand_in, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "demo_c_2.png").write_text("of an earlier run")
    assert demo.run(stand_in, "c", False, out, None, keep_open=False) == 0
    assert {path.name for path in out.iterdir()} == {"demo_c_1.png", "contact_sheet.png"}
    with Image.open(out / "contact_sheet.png") as sheet:
        assert sheet.width > 300


class _Camera:
    """Records what it should take, instead of taking it."""

    def __init__(self, out, settings=None):
        self.settings = settings
        self.out, self.taken, self.taken_with = out, [], []

    def take(self, url, name, path, run):
        self.taken_with.append((name, run))
        self.taken.append((name, [self.out.parent / "demo_c_1.png"]))


def test_screenshots_are_taken_of_every_workflow(workflows, stand_in, tmp_path, monkeypatch):
    out = tmp_path / "out"
    for only, taken_with in (
        ("c", [("demo_c", True)]),
        (None, [("demo_a", True), ("demo_b", False), ("demo_c", True), ("sd15_x", False)]),
    ):
        camera = _Camera(out / "screenshots")
        monkeypatch.setattr(
            demo.screenshots, "Camera", lambda *_, camera=camera: contextlib.nullcontext(camera)
        )
        assert demo.run(
            stand_in, only, False, out, None, keep_open=False, with_screenshots=True
        ) == (only is None)
        assert camera.taken_with == taken_with and (out / "screenshots.png").exists()


def test_screenshots_are_of_the_chosen_front_end_theme_and_language(
    workflows, stand_in, tmp_path, monkeypatch
):
    monkeypatch.setattr(demo, "newest_front_end", lambda: tmp_path / "front end")
    cameras, started = [], []

    def taking(*given):
        cameras.append(_Camera(*given))
        return contextlib.nullcontext(cameras[-1])

    def start(comfyui, base, arguments, port):
        started.append(arguments)
        return Server(comfyui, base, arguments, port)

    monkeypatch.setattr(demo.screenshots, "Camera", taking)
    monkeypatch.setattr(demo, "Server", start)
    out, given = (
        tmp_path / "out",
        ["demo", "--only", "c", "--screenshots", "--newest-front-end", "--out"],
    )
    for chosen in (["--locale", "zh"], ["--pairs"]):
        assert cli._command(cli._parse([*given, str(out), *chosen]), stand_in) == 0
    fixed, paired = cameras[0].settings, cameras[1].settings
    assert (
        fixed("classic", 0)
        == fixed("nodes2", 1)
        == {"Comfy.ColorPalette": "dark", "Comfy.Locale": "zh"}
    )
    assert paired("nodes2", 0) == {"Comfy.ColorPalette": "dark", "Comfy.Locale": "zh"}
    assert started[0][-2:] == ("--front-end-root", str(tmp_path / "front end"))


def test_paired_screenshots_show_all_pairs():
    """Of a workflow, those of renderer, front end and theme; of two workflows those of a language
    with each of them.
    """
    seen = {
        number: [
            (renderer, newest, *demo.screenshots.paired(renderer, number, newest).values())
            for renderer in ("classic", "nodes2")
            for newest in (False, True)
        ]
        for number in (4, 5)
    }
    for one in seen.values():
        assert all(
            len({(look[a], look[b]) for look in one}) == 4 for a, b in ((0, 1), (0, 2), (1, 2))
        )
    together = seen[4] + seen[5]
    assert all(len({(look[a], look[3]) for look in together}) == 4 for a in range(3))


def test_kept_open_the_canvas_stays_until_ctrl_c(
    workflows, stand_in, tmp_path, monkeypatch, capsys
):
    def pressed(server):
        urllib.request.urlopen(
            f"{server.url}/object_info", timeout=10
        ).close()  # the canvas answers after the run
        raise KeyboardInterrupt

    monkeypatch.setattr(Server, "wait", pressed)
    assert demo.run(stand_in, "c", False, tmp_path / "out", None, keep_open=True) == 0
    printed = capsys.readouterr().out
    address = re.search(
        r"^The canvas is open at (http://127\.0\.0\.1:\d+) - press Ctrl-C", printed, re.MULTILINE
    )[1]
    assert printed.index("demo_c_1.png") < printed.index(address)
    with pytest.raises(OSError):
        urllib.request.urlopen(f"{address}/object_info", timeout=2)


def test_an_unknown_name_is_one_sentence(workflows):
    with pytest.raises(
        LaunchError, match="There is no demo workflow named demo_aa: did you mean demo_a"
    ):
        demo.choose("demo_aa")
    with pytest.raises(LaunchError, match="there are demo_a, demo_b, demo_c"):
        demo.choose("portrait")


def test_every_demo_workflow_is_chosen_and_no_other(workflows, tmp_path):
    (tmp_path / "further").mkdir()
    _write(tmp_path / "further", "demo_0", "Sample", "demo")
    assert list(demo.choose(None)) == ["demo_a", "demo_b", "demo_c"]
    assert list(demo.choose(None, everything=True)) == ["demo_a", "demo_b", "demo_c", "demo_0"]
    assert list(demo.choose("0")) == ["demo_0"]


def test_a_demo_is_chosen_by_its_title(workflows):
    (workflows / "demo_b.json").rename(workflows / "01 A title (demo).json")
    assert list(demo.choose("01 A title (demo)")) == ["demo_b"]


def test_no_workflows_at_all_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "WORKFLOWS", tmp_path)
    monkeypatch.setattr(paths, "FURTHER_WORKFLOWS", tmp_path)
    with pytest.raises(LaunchError, match="incomplete"):
        demo.choose(None)


def test_a_server_that_dies_ends_the_demo_with_a_sentence(workflows, stand_in, tmp_path):
    _write(workflows, "demo_b", "Die", "demo")
    with pytest.raises(LaunchError, match=r"ComfyUI ended while running demo_b: see .*server\.log"):
        demo.run(stand_in, None, False, tmp_path / "out", None, keep_open=False)


def test_it_prints_what_it_runs_and_how_long_that_took_the_last_time(
    workflows, stand_in, tmp_path, capsys
):
    def printed(only):
        demo.run(stand_in, only, False, tmp_path / "out", None, keep_open=False)
        return capsys.readouterr().out.splitlines()

    first = printed(None)
    assert first[:4] == [
        "Running 3 workflows; --all runs the others, too:",
        "  demo_a",
        "  demo_b",
        "  demo_c",
    ]
    second = printed(None)
    assert re.fullmatch(r"  demo_a \(took \d s last time\)", second[1])
    assert second[2] == "  demo_b"  # which failed
    assert re.fullmatch(r"Running one workflow \(took \d s last time\):", printed("c")[0])
    started = second.index("  demo_a ...")
    assert re.fullmatch(r"    \d s", second[started + 1])


def test_a_long_workflow_says_its_time_before_its_first_run(workflows, stand_in, tmp_path, capsys):
    _write(workflows, "demo_c", "Sample", "demo", seconds=90)

    def printed():
        demo.run(stand_in, None, False, tmp_path / "out", None, keep_open=False)
        return capsys.readouterr().out.splitlines()[1:4]

    assert printed() == [
        "  demo_a",
        "  demo_b",
        "  demo_c (about 1 min 30 s on two quiet CPU cores)",
    ]
    assert re.fullmatch(r"  demo_c \(took \d s last time\)", printed()[2])


def test_the_demo_is_the_first_ten_templates():
    names = [path.stem for path in demo.choose(None).values()]
    assert [name[:3] for name in names] == [f"{number:02d} " for number in range(1, 11)]
    everything = demo.choose(None, everything=True)
    assert list(everything)[:10] == list(demo.choose(None)) and len(everything) > 40
    assert {path.parent for path in everything.values()} == {
        paths.WORKFLOWS,
        paths.FURTHER_WORKFLOWS,
    }


def test_a_line_names_the_node_and_its_step(monkeypatch, tmp_path):
    """Messages as ComfyUI sends them; a node that a node made has no title."""
    prompt = {"7": {"class_type": "KSampler", "inputs": {}, "_meta": {"title": "Sampler"}}}
    messages = [Progress("7"), Progress("7", 3, 20), Progress("7", 3, 20), Progress("7.1", 1, 2)]

    class Client:
        queue = staticmethod(lambda prompt, saved: "id")
        wait = staticmethod(
            lambda prompt_id, show: [show(message) for message in messages] and {"outputs": {}}
        )

    plain, times = io.StringIO(), itertools.count(0, 25)
    line = ProgressLine("01 Title", len(prompt), plain, clock=lambda: next(times))
    assert demo._run_prompt(Client(), prompt, {}, target=tmp_path / "demo_a", line=line) == ()
    assert plain.getvalue().splitlines() == [
        "      0%  01 Title: Sampler, 25 s",
        "     15%  01 Title: Sampler, step 3 of 20, 50 s",
        "     15%  01 Title: Sampler, step 3 of 20, 1 min 15 s",
        "    100%  01 Title: 7.1, step 1 of 2, 1 min 40 s",
    ]
