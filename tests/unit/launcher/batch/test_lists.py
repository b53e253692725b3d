"""The lists that a job runs over."""

import pytest

from tools.launcher.batch.lists import digest, opened
from tools.launcher.errors import LaunchError


def test_lines_of_a_text_are_prompts(tmp_path):
    (tmp_path / "list.txt").write_text("\ufeffa cat\n\n  a dog \r\n", "utf-8")
    found = opened(str(tmp_path / "list.txt"))
    assert (found.columns, found.count) == (("prompt",), 2)
    assert list(found.read()) == list(found.read()) == [("a cat",), ("a dog",)]


@pytest.mark.parametrize("comma", [",", ";"])
def test_a_table_has_its_own_columns(tmp_path, comma):
    path = tmp_path / "list.csv"
    path.write_text(f'Caption{comma}seed\n"two\nlines"{comma}1\nx{comma}2\n')
    found = opened(str(path))
    assert found.columns == ("Caption", "seed") and found.count == 2
    assert list(found.read()) == [("two\nlines", "1"), ("x", "2")]


def test_a_range_of_seeds_counts_both_ends():
    found = opened("3-5")
    assert list(found.read()) == [("3",), ("4",), ("5",)] and found.count == 3


def test_a_folder_of_files_and_a_folder_of_folders(tmp_path):
    for name in ("b.png", "a.png", ".hidden"):
        (tmp_path / name).write_bytes(b"x")
    assert list(opened(str(tmp_path)).read()) == [("a.png",), ("b.png",)]
    (tmp_path / "of" / "one").mkdir(parents=True)
    assert opened(str(tmp_path / "of")).columns == ("folder",)
    with pytest.raises(LaunchError, match="files and folders"):
        opened(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("a.txt", "\n", "empty list"),
        ("a.csv", "", "no first line"),
        ("a.csv", "x,x\n1,2\n", "two columns"),
        ("a.csv", "x,y\n1\n", "Row 2"),
        ("a.txt", None, "no list"),
    ],
)
def test_files_that_are_not_lists_are_refused(tmp_path, name, text, sentence):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(LaunchError, match=sentence):
        opened(str(tmp_path / name))


def test_latin_text_is_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(LaunchError, match="UTF-8"):
        opened(str(tmp_path / "a.txt"))


def test_a_folder_s_digest_changes_with_names_and_bytes(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1").write_text("x")
    first = digest(tmp_path)
    (tmp_path / "a" / "1").write_text("y")
    second = digest(tmp_path)
    (tmp_path / "a" / "1").rename(tmp_path / "a" / "2")
    assert len({first, second, digest(tmp_path)}) == 3
