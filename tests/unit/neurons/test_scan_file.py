"""Scans on disk: rows as they are done, resumed after a crash, refused with other settings."""

import pytest
import torch
from glassbox.nodes.neurons import scan_file
from glassbox.nodes.neurons.memorization_score import PromptScore, pairwise_similarity
from glassbox.nodes.neurons.scan_file import Pace, ScanFile

SETTINGS = {"seed": 1, "latent": [4, 8, 8], "model": "abc"}


def opened(tmp_path, **changes):
    return ScanFile(tmp_path / "scan.csv", ["score"], SETTINGS | changes)


def test_a_scan_resumes_with_the_rows_that_were_done(tmp_path):
    first = opened(tmp_path)
    first.add('a, b\n"c"', {"score": "0.5"})
    first.add("d", None, MemoryError("full"))
    again = opened(tmp_path)
    assert again.done('a, b\n"c"')["score"] == "0.5"
    assert again.done("d") is None and again.rows["d"]["error"] == "MemoryError: full"
    assert again.done("e") is None
    again.add("d", {"score": "0.25"})
    assert opened(tmp_path).done("d")["score"] == "0.25"


def test_rows_are_on_the_disk_before_the_scan_ends(tmp_path):
    scan = opened(tmp_path)
    scan.add("a", {"score": "0.5"})
    assert (tmp_path / "scan.csv").read_text() == "prompt,score,error\na,0.5,\n"


@pytest.mark.parametrize("cut", range(1, 9))
def test_a_row_that_a_crash_cut_off_is_dropped(tmp_path, cut):
    scan = opened(tmp_path)
    scan.add("a", {"score": "0.5"})
    scan.add("b", {"score": "0.75"})
    path = tmp_path / "scan.csv"
    path.write_bytes(path.read_bytes()[:-cut])
    again = opened(tmp_path)
    assert list(again.rows) == ["a"]
    again.add("c", {"score": "0.1"})
    assert list(opened(tmp_path).rows) == ["a", "c"]


def test_rows_after_the_kept_ones_are_dropped_in_the_order_they_were_done(tmp_path):
    scan = opened(tmp_path)
    scan.add("a", None, MemoryError("full"))
    for prompt in "bcad":
        scan.add(prompt, {"score": "0.5"})
    again = opened(tmp_path)
    again.keep(3)
    assert list(again.rows) == list(opened(tmp_path).rows) == ["b", "c", "a"]
    with pytest.raises(ValueError, match="has lost rows"):
        again.keep(4)


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"seed": 2}, "seed"), ({"latent": [4, 9, 8]}, "latent"), ({"model": "def"}, "model")],
)
def test_other_settings_are_refused(tmp_path, changes, named):
    opened(tmp_path).add("a", {"score": "0.5"})
    with pytest.raises(ValueError, match=f"another {named}"):
        opened(tmp_path, **changes)
    with pytest.raises(ValueError, match="has other columns"):
        ScanFile(tmp_path / "scan.csv", ["other"], SETTINGS)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "[" * 100_000, '{"format": "glassbox_scan", "format_version": 1}']
)
def test_a_table_without_its_settings_is_refused(tmp_path, text):
    opened(tmp_path)
    (tmp_path / "scan.settings.json").write_text(text)
    with pytest.raises(ValueError, match="is no scan"):
        opened(tmp_path)


@pytest.mark.parametrize("norm", [None, 3.25])
def test_a_score_comes_back_to_the_last_bit(norm):
    differences = torch.rand(4, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    score = PromptScore(
        pairwise_similarity(differences), {} if norm is None else {"text_norm": norm}
    )
    again = scan_file.score_from_row(scan_file.score_row(score), 4)
    assert torch.equal(again.pairs, score.pairs) and again.detectors == score.detectors
    assert list(scan_file.score_row(score)) == scan_file.score_columns(4)


def test_the_pace_gives_seconds_a_prompt_and_the_time_left():
    clock = iter([0.0, 200.0, 402.0, 606.0])
    pace = Pace(40, lambda: next(clock))
    assert pace.step() == "1 of 40 prompts, 200 s each, 2:10 h left"
    assert pace.step(failed=True) == "2 of 40 prompts (1 failed), 201 s each, 2:08 h left"
    assert pace.step(2) == "4 of 40 prompts (1 failed), 152 s each, 1:31 h left"


def embedded(tmp_path, **embeddings):
    return ScanFile(tmp_path / "scan.csv", ["score"], SETTINGS, embeddings)


def test_a_row_of_another_embedding_is_refused_and_a_prompt_that_joins_is_not(tmp_path):
    scan = embedded(tmp_path, a="one")
    scan.add("a", {"score": "0.5"})
    scan.add("plain", {"score": "0.5"})
    joined = embedded(tmp_path, a="one", b="two")
    joined.add("b", {"score": "0.25"})
    assert embedded(tmp_path).done("b")["score"] == "0.25"
    for changed in ({"a": "two"}, {"a": "one", "b": "one"}, {"plain": "new"}):
        with pytest.raises(
            ValueError, match=r"was made with another embedding in the prompt '(a|b|plain)'"
        ):
            embedded(tmp_path, **changed)
    assert embedded(tmp_path, a="one", b="two").done("a")["score"] == "0.5"


def test_a_prompt_that_was_not_measured_may_have_another_embedding(tmp_path):
    scan = embedded(tmp_path, a="one", b="one")
    scan.add("a", None, MemoryError("full"))
    again = embedded(tmp_path, a="two", b="two")
    again.add("a", {"score": "0.5"})
    assert embedded(tmp_path, a="two").done("a")
    with pytest.raises(ValueError, match="another embedding"):
        embedded(tmp_path, a="one")


def test_a_scan_from_before_embeddings_were_noted_is_refused_for_prompts_that_name_one(tmp_path):
    import json

    opened(tmp_path).add("a", {"score": "0.5"})
    beside = tmp_path / "scan.settings.json"
    content = json.loads(beside.read_text())
    del content["embeddings"]
    beside.write_text(json.dumps(content))
    assert opened(tmp_path).done("a")
    with pytest.raises(ValueError, match="another embedding"):
        embedded(tmp_path, a="one")


def test_dropping_rows_looks_at_each_once(tmp_path, monkeypatch):
    """Work grows with the rows: comparisons of prompts, counted."""

    class Counted(str):
        __slots__ = ()
        compared = 0

        def __eq__(self, other):
            Counted.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    counts = []
    for size in (200, 800):
        scan = opened(tmp_path / str(size))
        scan.rows = {
            Counted(number): {"prompt": str(number), "score": "", "error": ""}
            for number in range(size)
        }
        Counted.compared = 0
        scan.keep(size // 2)
        assert len(scan.rows) == size // 2
        counts.append(Counted.compared)
    assert counts[1] <= 4 * counts[0] + 10
