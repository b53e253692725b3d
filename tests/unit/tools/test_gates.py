"""What keeps the house in order is counted right, and holds; what extends it does."""

import sys
import textwrap
import types

import pytest

from tools import gates
from tools.trials import TRIALS, Trial

#: Files to touch for an addition, without those that hold texts.
_MOST_FILES = {
    "the guidance formula": 1,
    "a direction fitter": 2,
    "a network's blocks and attention": 1,
    "a detector of memorization": 2,
    "a rescale law": 2,
}


@pytest.fixture
def house(tmp_path):
    """Writes files of a repository: path -> text."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text), "utf-8")
        return tmp_path

    return write


def test_only_host_demo_and_the_halves_of_methods_import_comfyui():
    assert gates.comfy_imports() == []


def test_no_file_of_nodes_imports_another():
    assert gates.sideways_imports() == []


def test_bodies_of_execute_are_short():
    assert gates.long_bodies() == []


def test_host_holds_what_several_families_need():
    assert gates.host_lines() <= 3300


def test_documents_are_short_and_code_explains_itself():
    assert gates.document_words() <= 30_000
    assert gates.docstring_fraction() >= 0.11


def test_nothing_is_written_twice():
    assert gates.equal_runs() == []


def test_a_wrong_import_is_counted(house):
    root = house(
        {
            "nodes/noise/pool.py": "import comfy.samplers",
            "nodes/noise/nodes_pool.py": "from comfy_api.latest import io\ndef f():\n    import folder_paths",
            "nodes/noise/pool_comfy.py": "import comfy.samplers",
            "nodes/host/evaluate.py": "from comfy import utils",
            "nodes/noise/nodes_other.py": "from .nodes_pool import a\nfrom . import nodes_third, pool",
        }
    )
    assert gates.comfy_imports(root) == [
        "nodes/noise/nodes_pool.py imports folder_paths",
        "nodes/noise/pool.py imports comfy.samplers",
    ]
    assert [line.partition(" imports ")[2] for line in gates.sideways_imports(root)] == [
        ".nodes_pool",
        ".nodes_third",
    ]


@pytest.mark.parametrize(("lines", "found"), [(25, []), (26, ["nodes/noise/nodes_pool.py: 26"])])
def test_a_long_body_is_counted_without_its_docstring(house, lines, found):
    body = "".join(f"        a = {number}\n" for number in range(lines))
    source = f'class Node:\n    def execute(cls):\n        """What it does."""\n{body}'
    assert gates.long_bodies(house({"nodes/noise/nodes_pool.py": source})) == found


def test_equal_lines_are_found_whatever_their_indentation_and_blank_lines(house):
    lines = [f"a{number} = {number}" for number in range(12)]
    spread = "\n\n".join(f"    {line}" for line in lines)
    files = {"nodes/a.py": "\n".join(lines), "tools/b.py": f"def f():\n    z = 0\n{spread}", "web/c.js": "x\n" * 11}
    assert gates.equal_runs(house(files)) == ["tools/b.py:3 repeats nodes/a.py"]
    assert gates.equal_runs(house({"tools/b.py": f"def f():\n{spread.replace('a7', 'b7')}"})) == []


def test_a_signature_is_no_repetition(house):
    names = "".join(f"    name_{number},\n" for number in range(20))
    source = f"def f(\n{names}):\n    return 1\n"
    assert gates.equal_runs(house({"nodes/a.py": source, "nodes/b.py": source})) == []


def test_words_of_generated_tables_and_of_reference_pages_do_not_count(house):
    table = "<!-- numbers weights: x -->\n| a | b |\n|---|---|\n<!-- end -->\n"
    page = f"# Weights\n\nFive words stand here now.\n\n{table}Made so.\n"
    root = house({"docs/weights.md": page, "docs/nodes.md": "many words"})
    assert gates.document_words(root) == 9


def test_the_lines_that_explain_are_docstrings_and_comments(house):
    source = '"""What it is.\n\nMore.\n"""\n\n# why\na = 1  # not alone\n'
    source += '\n\ndef f():\n    """What it does."""\n    return "text"\n'
    assert gates.docstring_fraction(house({"nodes/a.py": source})) == pytest.approx(6 / 12)


def test_an_addition_touches_few_files():
    assert {name: len(trial.files) for name, trial in TRIALS.items()} == _MOST_FILES


@pytest.mark.parametrize("name", TRIALS)
def test_an_addition_works_in_these_files(name, tmp_path, monkeypatch):
    trial = TRIALS[name]
    trial.apply(gates.ROOT, tmp_path)
    for file in trial.files:
        compile((tmp_path / file).read_text("utf-8"), file, "exec")
    _run(trial, tmp_path, monkeypatch)
    with pytest.raises((AssertionError, AttributeError, KeyError, ValueError)):
        _run(trial, gates.ROOT, monkeypatch)


def _run(trial, root, monkeypatch):
    """Run a trial's program on a copy of the pack, as the package `edited`."""
    for known in [name for name in sys.modules if name.partition(".")[0] == "edited"]:
        monkeypatch.delitem(sys.modules, known)
    package = types.ModuleType("edited")
    package.__path__ = [str(root)]
    monkeypatch.setitem(sys.modules, "edited", package)
    exec(trial.program, {})


def test_an_edit_without_its_place_is_named(house, tmp_path):
    root = house({"nodes/a.py": "a = 1", "kernels/b.py": ""})
    with pytest.raises(ValueError, match=r"nodes/a.py has 0 places 'b = 1': write the trial again"):
        Trial({"nodes/a.py": [("b = 1", "c = 1")]}, "").apply(root, tmp_path / "copy")
