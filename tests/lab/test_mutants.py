# SPDX-License-Identifier: MIT
"""./lab mutants (mutants.py): the tables, what is generated, and a run in guests."""

from __future__ import annotations

import random
import re
from pathlib import Path

import mutants
import mutants_planted
import pytest
from lab_runs import PROJECT, built, lab
from mutants_planted import TableError, known, mutants_of, planted, read

FUNCTION = """\
/* A comment. */
static int f(const int *Py_UNUSED(unused), int a)
{
    assert(a > 0);
#if defined(__x86_64__) || defined(__i386__)
    pause(a);
#endif
    if (a < 3) {
        a = g(a);
    }
    return a;
}
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc/f.c").write_text(FUNCTION)
    return tmp_path


def table(folder: Path, *entries: str) -> Path:
    path = folder / "table.txt"
    path.write_text("# A comment\n\n" + "\n\n".join(entries) + "\n")
    return path


KNOWN = "no g: g must be called\ncsrc/f.c\n-        a = g(a);\n+        a = 7;"


def test_each_entry_of_the_table_applies_to_the_core() -> None:
    found = known(PROJECT, mutants.TABLE)
    assert len(found) >= 25
    assert len({mutant.name for mutant in found}) == len(found)


def test_each_mutant_of_the_model_is_in_the_table() -> None:
    names = {mutant.name for mutant in known(PROJECT, mutants.TABLE)}
    models = "".join(path.read_text() for path in (PROJECT / "tests/model").glob("*.pml"))
    of_model = set(mutants.OF_MODEL.findall(models))
    assert len(of_model) > 20
    assert {name.replace("_", " ") for name in of_model} <= {
        name.replace("-", " ") for name in names
    }


def test_each_explanation_is_of_a_mutant() -> None:
    assert mutants.idle_explanations(mutants.explained(mutants.EXPLAINED)) == []


def test_an_entry_that_applies_no_more_is_named(tree: Path) -> None:
    assert [mutant.name for mutant in known(tree, table(tree, KNOWN))] == ["no g"]
    (tree / "csrc/f.c").write_text(FUNCTION.replace("g(a)", "h(a)"))
    read.cache_clear()
    with pytest.raises(TableError, match=r"'no g' does not apply: csrc/f.c has its lines 0 times"):
        known(tree, table(tree, KNOWN))


def test_an_entry_that_is_none_is_refused(tree: Path) -> None:
    with pytest.raises(TableError, match=r"table.txt:3: a mutant is NAME: RULE, FILE and hunks"):
        known(tree, table(tree, "no g\ncsrc/f.c\n-        a = g(a);"))


def test_a_changed_line_loses_its_explanation(tree: Path) -> None:
    entry = "csrc/f.c: f()\n- a = g(a);\n+ ;\n= nobody looks at a"
    why = mutants_planted.explained(table(tree, entry))
    (dropped,) = [m for m in mutants_of(read(tree, "csrc/f.c")) if m.key in why]
    assert dropped.line == 9
    (tree / "csrc/f.c").write_text(FUNCTION.replace("g(a)", "g(a + 1)"))
    read.cache_clear()
    assert not [m for m in mutants_of(read(tree, "csrc/f.c")) if m.key in why]


def test_what_only_checks_or_shows_is_not_changed(tree: Path) -> None:
    diffs = [mutant.diff for mutant in mutants_of(read(tree, "csrc/f.c"))]
    assert ("- if (a < 3) {", "+ if (a <= 3) {") in diffs
    assert ("- a = g(a);", "+ ;") in diffs
    assert not [diff for diff in diffs if "assert" in diff[0] or "pause" in diff[0]]


def test_a_planted_source_has_a_copy_of_the_function_and_a_mark(tree: Path) -> None:
    source = read(tree, "csrc/f.c")
    (mutant,) = known(tree, table(tree, KNOWN))
    data, owners = planted(source, {3: mutant})
    lines = data.decode().splitlines()
    assert "        cqn_reach(3); a = g(a);" in lines
    assert "{ if (cqn_is_mutant(3)) { return f_mutant_3(_unused_unused, a); }" in lines
    copied = lines.index("        a = 7;")
    assert owners[copied] == 3
    assert owners[lines.index("        cqn_reach(3); a = g(a);")] == 0


def test_the_seed_chooses_and_each_file_has_its_share() -> None:
    files = mutants.sources()
    first, again, other = (
        mutants_planted.chosen(PROJECT, files, 60, seed, frozenset()) for seed in (1, 1, 2)
    )
    assert first == again
    assert len(first) == len(other) == 60
    assert first != other
    assert len({mutant.file for mutant in first}) > 15


def test_the_tests_that_found_others_come_first_and_each_function_once() -> None:
    (mutant,) = known(PROJECT, mutants.TABLE)[:1]
    run = mutants.Run([], 1, {1: mutant}, 10, False)
    tests = ["t::a[1]", "t::a[2]", "t::b[1]", "t::c[1]", "t::c[2]"]
    run.seconds = dict(zip(tests, (0.1, 0.2, 0.3, 0.4, 0.5), strict=True))
    run.reaching[1] = random.Random(1).sample(tests, len(tests))
    run.kills[mutant.function, "t::c"] += 1
    assert run.order(1) == ["t::c[1]", "t::a[1]", "t::b[1]", "t::c[2]", "t::a[2]"]
    run.budget = 2
    assert run.order(1) == ["t::c[1]", "t::a[1]"]


# ---- in guests --------------------------------------------------------------------------------

CAUGHT = """\
event is not counted: it could not be acknowledged
csrc/notify/events.c
-    self->unacked++;
-    self->stats.events++;
+    self->stats.events++;"""
EQUIVALENT = """\
event is unpolled twice: it makes no difference
csrc/notify/events.c
-    self->event_unpolled = true;
+    self->event_unpolled = true;
+    self->event_unpolled = true;"""
HANGS = """\
event counts for ever: no end
csrc/notify/events.c
-    self->unacked++;
+    while (self != NULL) {
+        self->unacked++;
+    }"""
TESTS = "tests/notify/test_armed.py"


@built
def test_a_mutant_is_caught_and_an_equivalent_one_survives(tmp_path: Path) -> None:
    result = lab(
        *("mutants", "0", "--verbose", "-j", "1", "--tests", TESTS),
        *("--table", str(table(tmp_path, CAUGHT, EQUIVALENT, HANGS))),
    )
    said = result.stdout.decode()
    assert "fails without a mutant" not in said
    assert (
        "all                                        2           0           1           0" in said
    )
    survived = said.partition("\nsurvived:\n")[2]
    head = r"csrc/notify/events\.c:\d+: count_event\(\)  \[event is unpolled twice\]\n"
    assert re.match(head, survived)
    assert "hang" in said
    assert result.returncode == 1


@built
def test_an_entry_that_does_not_apply_ends_the_run(tmp_path: Path) -> None:
    entry = CAUGHT.replace("unacked", "nothing")
    result = lab("mutants", "0", "--table", str(table(tmp_path, entry)))
    assert result.returncode == 2
    assert result.stdout.decode().startswith(
        "mutants: the mutant 'event is not counted' does not apply: csrc/notify/events.c"
    )
