"""Results on disk: whole or absent, written once."""

import json
import os
import shutil
import threading
import time

import pytest

from tools.launcher.batch.store import Store

KEY = "ab" + "0" * 62


def _write(store, text, key=KEY):
    store.begin()
    (store.work / "sub").mkdir()
    (store.work / "sub" / "a.txt").write_text(text)
    store.finish(key, {"values": {"prompt": text}, "texts": {}})


def test_a_result_is_found_by_its_key(tmp_path):
    store = Store(tmp_path)
    assert store.read(KEY) is None
    _write(store, "one")
    record = store.read(KEY)
    assert record["values"] == {"prompt": "one"} and record["files"] == {"sub/a.txt": 3}
    assert (store.folder(KEY) / "sub" / "a.txt").read_text() == "one"


def test_the_first_of_two_results_of_a_key_is_kept(tmp_path):
    first, second = Store(tmp_path), Store(tmp_path)
    _write(first, "one")
    _write(second, "another")
    assert first.read(KEY)["values"] == {"prompt": "one"}
    assert not second.work.exists()


def test_many_writers_of_one_key_leave_one_whole_result(tmp_path):
    barrier = threading.Barrier(8)

    def write(number):
        store = Store(tmp_path)
        store.begin()
        (store.work / "a.txt").write_text(str(number) * 1000)
        barrier.wait()
        store.finish(KEY, {"values": {"number": str(number)}, "texts": {}})

    threads = [threading.Thread(target=write, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    number = Store(tmp_path).read(KEY)["values"]["number"]
    assert (Store(tmp_path).folder(KEY) / "a.txt").read_text() == number * 1000
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.parametrize(
    "damage", ["no record", "half a record", "no list of files", "lost file", "cut file"]
)
def test_a_damaged_result_counts_as_absent_and_can_be_made_again(tmp_path, damage):
    store = Store(tmp_path)
    _write(store, "one")
    record = store.folder(KEY) / "result.json"
    match damage:
        case "no record":
            record.unlink()
        case "half a record":
            record.write_text(record.read_text()[:20])
        case "no list of files":
            record.write_text(json.dumps([1]))
        case "lost file":
            shutil.rmtree(store.folder(KEY) / "sub")
        case "cut file":
            (store.folder(KEY) / "sub" / "a.txt").write_text("o")
    assert store.read(KEY) is None
    _write(store, "two")
    assert store.read(KEY)["values"] == {"prompt": "two"}


def test_an_unfinished_piece_is_not_a_result(tmp_path):
    store = Store(tmp_path)
    store.begin()
    (store.work / "a.txt").write_text("half")
    assert Store(tmp_path).read(KEY) is None
    Store(tmp_path).sweep()
    assert store.work.exists()  # its worker may still run
    old = time.time() - 8 * 24 * 3600
    os.utime(store.work, (old, old))
    Store(tmp_path).sweep()
    assert store.work.exists()
    os.utime(store.work / "a.txt", (old, old))
    Store(tmp_path).sweep()
    assert not store.work.exists()


def test_the_record_says_nothing_of_time_or_place(tmp_path):
    for name in ("here", "there"):
        _write(Store(tmp_path / name), "one")
    here, there = (
        (tmp_path / name / "pieces" / "ab" / KEY / "result.json").read_bytes()
        for name in ("here", "there")
    )
    assert here == there and str(tmp_path).encode() not in here
