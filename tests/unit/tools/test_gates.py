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


def test_documents_are_short_and_code_explains_itself():
    assert gates.document_words() <= 30_000
    assert gates.docstring_fraction() >= 0.11
    # Lists of inputs grow with the nodes; what is written by hand has the limit.
    assert gates.page_words(generated=False) <= 60_000
    assert gates.longest_details() == []


def test_nodes_have_few_inputs():
    assert gates.input_count() <= 833


def test_nothing_is_written_twice():
    assert gates.equal_runs() == []


def test_a_line_holds_one_fact():
    assert gates.positional_calls() == []
    assert gates.nested_conditionals() == []
    assert gates.long_lines() == []
    assert gates.positional_settings() == []
    assert gates.untyped_arguments() == []
    assert len(gates.packed_assignments()) <= gates.pack_lines() / 1000  # 5 were the goal


@pytest.mark.parametrize(
    ("call", "counted"),
    [
        ("f(1, 2, 3, 4)", False),
        ("f(1, 2, 3, 4, e=5)", False),
        ("f(1, 2, 3, 4, 5)", True),
        ("f(1, *(2, 3, 4, 5))", True),
        ("g(f(1, 2, 3, 4, 5))", True),
        ("a.b.f(1, 2, 3, 4, 5)", True),
        ("partial(f, 1, 2, 3, 4)", False),
        ("functools.partial(f, 1, 2, 3, 4, 5)", True),
        ("f(*rest)", False),
        ("f[8, 8](1, 2, 3, 4, 5)", False),
        ("io.NodeOutput(1, 2, 3, 4, 5)", False),
        ("executor(1, 2, 3, 4, 5)", False),
        ("comfy.sample.sample(1, 2, 3, 4, 5)", False),
    ],
)
def test_values_by_position_are_counted(house, call, counted):
    root = house({"nodes/a.py": f"def h():\n    x = {call}\n    return x\n"})
    assert gates.positional_calls(root) == (["nodes/a.py:2"] if counted else [])


def test_values_that_a_name_brings_are_counted(house):
    source = "def h():\n    given = (1, 2, 3, 4)\n    return f(0, *given)\n"
    root = house({"nodes/a.py": source, "kernels/b.py": "f(1, 2, 3, 4, 5)\n"})
    assert gates.positional_calls(root) == ["nodes/a.py:3", "kernels/b.py:1"]


def test_packed_assignments_and_nested_conditionals_are_counted(house):
    source = """\
        a, b = 1, f()
        (c, d) = [e, f] = (1, 2)
        g, h = pair()
        i = 1 if a else 2
        j = 1 if a else f(2 if b else 3)
        """
    root = house({"nodes/a.py": source})
    assert gates.packed_assignments(root) == ["nodes/a.py:1", "nodes/a.py:2"]
    assert gates.nested_conditionals(root) == ["nodes/a.py:5"]


def test_arguments_without_a_type_are_counted(house):
    source = """\
        class A:
            def f(self, a, b: int, *c, d=1, **e: int):
                def g(h):
                    return h
                return g

            @classmethod
            def i(cls):
                return lambda j: j

        @triton.jit
        def kernel(pointer, SIZE: tl.constexpr):
            pass
        """
    found = gates.untyped_arguments(house({"nodes/a.py": source}))
    assert [entry.split()[1] for entry in found] == ["a", "d", "c", "h"]


def test_lines_over_the_limit_are_counted(house):
    words = "a b " * 24
    root = house(
        {
            "tests/a.py": f'"""{words}ccccc"""\n',
            "nodes/b.py": f"# {words}c\n# {words}cc\n# {words}ccc\n",
            "tools/c.py": f"# {words}c  # noqa: E501\n{'x' * 120}\n",
        }
    )
    assert gates.long_lines(root) == ["nodes/b.py:3", "tests/a.py:1"]


@pytest.mark.parametrize(
    ("line", "name", "counted"),
    [
        ("@dataclass", "TapSettings", True),
        ("@dataclass(frozen=True)", "TapSettings", True),
        ("@dataclass(frozen=True, kw_only=True)", "TapSettings", False),
        ("@dataclass(frozen=True)", "Point", False),
        ("@dataclass(frozen=True)", "TrainingOptions", True),
    ],
)
def test_settings_made_by_position_are_counted(house, line, name, counted):
    root = house({"kernels/a.py": f"{line}\nclass {name}:\n    a: int\n"})
    assert len(gates.positional_settings(root)) == counted


def test_every_node_stands_in_a_workflow_that_ships():
    """Experimental ones too: what no card shows, nobody finds."""
    assert gates.nodes_without_card() == []


def test_no_link_in_the_registry_archive_is_dead():
    assert gates.dead_archive_links() == []


def test_a_wrong_import_is_counted(house):
    root = house(
        {
            "nodes/noise/pool.py": "import comfy.samplers",
            "nodes/noise/nodes_pool.py": (
                "from comfy_api.latest import io\ndef f():\n    import folder_paths"
            ),
            "nodes/noise/pool_comfy.py": "import comfy.samplers",
            "nodes/host/evaluate.py": "from comfy import utils",
            "nodes/noise/nodes_other.py": (
                "from .nodes_pool import a\nfrom . import nodes_third, pool"
            ),
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


def test_equal_statements_are_found_whatever_their_layout(house):
    statements = [f"a{number} = call({number}, b={number})" for number in range(8)]
    wrapped = [
        f"a{number} = call(\n        {number},\n        b={number},\n    )" for number in range(8)
    ]
    spread = "\n\n".join(f"    {statement}  # why" for statement in wrapped)
    files = {
        "nodes/a.py": "\n".join(statements),
        "tools/b.py": f"def f():\n    z = 0\n{spread}",
    }
    assert gates.equal_runs(house(files)) == ["tools/b.py:3 repeats nodes/a.py"]
    assert gates.equal_runs(house({"tools/b.py": f"def f():\n{spread.replace('a5', 'b5')}"})) == []


@pytest.mark.parametrize(
    "head", ["if a:", "for a in b:", "while a:", "with a as b:", "try:", "match a:\n case 1:"]
)
def test_equal_statements_are_found_in_blocks(house, head):
    block = "".join(f"  a{number} = {number}\n" for number in range(7))
    tail = "finally:\n  pass\n" if head == "try:" else ""
    files = {
        "nodes/a.py": f"{head}\n{block}{tail}c = 1\n",
        "nodes/b.py": f"def f():\n  z = 0\n{textwrap.indent(f'{head}{chr(10)}{block}', '  ')}",
    }
    files["nodes/b.py"] += textwrap.indent(tail, "  ")
    assert len(gates.equal_runs(house(files))) == 1
    changed = files["nodes/b.py"].replace("a3", "b3")
    assert gates.equal_runs(house({"nodes/b.py": changed})) == []


def test_equal_elements_of_a_list_are_found(house):
    inputs = ", ".join(f"Input('name_{number}', default={number})" for number in range(20))
    files = {
        "nodes/a.py": f"s = schema(node_id='a', inputs=[{inputs}])",
        "nodes/b.py": f"def f():\n    return schema(node_id='b', inputs=[{inputs}])",
    }
    assert gates.equal_runs(house(files)) == ["nodes/b.py:2 repeats nodes/a.py"]
    changed = files["nodes/b.py"].replace("default=9", "default=7")
    assert gates.equal_runs(house({"nodes/b.py": changed})) == []


def test_equal_lines_of_javascript_are_found(house):
    lines = [f"a{number} = {number}" for number in range(12)]
    files = {"web/a.js": "\n".join(lines), "web/b.mjs": "z\n\n  " + "\n\n  ".join(lines)}
    assert gates.equal_runs(house(files)) == ["web/b.mjs:3 repeats web/a.js"]
    assert gates.equal_runs(house({"web/b.mjs": "\n".join(lines[1:])})) == []


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
