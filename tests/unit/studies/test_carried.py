"""Numbers that a study carries over from its earlier result."""

import json

from studies.common import results


def test_what_is_not_here_is_carried_over_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    entry = {"value": 0.5, "low": 0.4, "high": 0.6, "n": 10, "unit": "fraction", "what": "seen"}
    numbers = {
        "collected, both sides": entry,
        "learned, both sides": entry,
        "learned less collected": entry,
    }
    (tmp_path / "some.json").write_text(json.dumps({"numbers": numbers}))
    found = results.carried("some", "collected")
    remark = "seen; carried over from an earlier measurement"
    assert found == {"collected, both sides": {**entry, "what": remark}}
    (tmp_path / "some.json").write_text(json.dumps({"numbers": found}))
    assert results.carried("some", "collected") == found, "the remark stands once"
    assert results.carried("nothing", "collected") == {}
