"""The modules that a reader has to open to follow a node are counted right."""

import textwrap

from tools import gates, reach

_FILES = {
    "nodes/a/nodes_a.py": """
        from __future__ import annotations
        from typing import TYPE_CHECKING
        from ..b.c import helper
        from ..b import d
        if TYPE_CHECKING:
            from ..b.e import Kind
        class Node:
            def execute(self, kind: Kind):
                from ..b.late import work
                return helper(), d.LIMIT, work()
        class Other:
            def execute(self):
                return d.unused()
        """,
    "nodes/b/c.py": """
        from .f import deep
        from kernels.fast import run
        def helper():
            return deep() + run()
        def unused():
            from .g import never
            return never()
        """,
    "nodes/b/d.py": "LIMIT = 3\ndef unused():\n    from .g import never\n    return never()\n",
    "nodes/b/e.py": "class Kind:\n    pass\n",
    "nodes/b/f.py": "def deep():\n    return deep() if helper else 0\n",
    "nodes/b/g.py": "def never():\n    return 1\n",
    "nodes/b/late.py": "def work():\n    return 2\n",
}


def _house(root):
    for name, text in _FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), "utf-8")
    return root


def test_modules_are_followed_by_name(tmp_path):
    """Through functions, attributes of modules, late imports and annotations, and not through what
    stands beside them.
    """
    root = _house(tmp_path)
    assert reach.modules_reached(root, "nodes/a/nodes_a.py", "Node") == [
        "nodes/a/nodes_a",
        "nodes/b/c",
        "nodes/b/d",
        "nodes/b/e",
        "nodes/b/f",
        "nodes/b/late",
    ]
    assert reach.modules_reached(root, "nodes/a/nodes_a.py", "Other") == [
        "nodes/a/nodes_a",
        "nodes/b/d",
        "nodes/b/g",
    ]


def test_the_nodes_that_are_counted_exist():
    for name, modules in gates.modules_followed().items():
        assert len(modules) > 1, name


def test_words_that_a_command_writes_are_counted_separately(tmp_path):
    page = (
        "Five words stand <!-- value a: b -->0.5 to 0.7<!-- end --> here.\n"
        "<!-- inputs -->\n- `a`: many words\n<!-- end -->\n"
    )
    for name in ("README.md", "docs/a.md", "web/docs/b.md", "studies/weights/details.md"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, "utf-8")
    shown = "Five words stand 0.5 to 0.7 here. - `a`: many words"
    assert gates.page_words(tmp_path) == 4 * len(shown.split())
    assert gates.page_words(tmp_path, generated=False) == 4 * 4
    assert gates.longest_details(tmp_path) == []
    (tmp_path / "studies/weights/details.md").write_text("word " * 1501, "utf-8")
    assert gates.longest_details(tmp_path) == ["studies/weights/details.md: 1501 words"]
