"""The mutants: each operator makes what it says, the tabled ones fit, and a survivor is a failure."""

from __future__ import annotations

import ast
import contextlib
import gc
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Final, cast

import pytest

from pulse.common.text import cut
from pulse.store import store
from pulse.store.statements import name_of
from pulse.ui import guard
from tests.mutants import force, judges, operators, repairs, source, sql_operators, trial
from tests.mutants.__main__ import chosen, noticed_of_others, parser
from tests.mutants.judging import leftovers
from tests.mutants.judging.court import Court
from tests.mutants.judging.forks import HUNG, KILLED, SURVIVED, Forks
from tests.mutants.judging.likeness import Likeness
from tests.mutants.judging.reach import Reached
from tests.mutants.judging.warm import NO_TIME, Judges
from tests.mutants.site import hook
from tests.mutants.source import Mutant, Span, modules, statements
from tests.mutants.tables import killers, tabled
from tests.mutants.trial import BLIND, EQUIVALENT, OPEN, Trial
from tests.support.checking.every import every
from tests.support.waiting import is_alive, until

BODY: Final = """
def f(self, a, b):
    if a and not b:
        self.go(1, loud=b)
    while a < b:
        self.x += min(a, b)
        break
    with self.lock:
        self.y = [c for c in a or () if c.d]
    return a - b
"""
CHANGED: Final = {
    "if True:", "if False:", "if (a):", "if (not b):", "if True and not b:", "if a and not False:", "pass",
    "self.go(1)", "while a <= b:", "while False:", "self.x += (a)", "self.x += (b)",
    "self.y = [c for c in (a) if c.d]", "self.y = [c for c in (()) if c.d]", "self.y = [c for c in a or () if False]",
    "return (a)",
}  # fmt: skip
CUT: Final = "cut: width_of(text) <= width -> True"
SELECT: Final = """
UPDATE t SET a = $1, b = 2 WHERE t.x < coalesce($2, t.y) AND (t.z OR t.v BETWEEN 1 AND 2)
"""
SELECTED: Final = {
    "SET b = 2 WHERE", "SET a = $1 WHERE", "t.x <= coalesce", "(t.x < coalesce($2, t.y) OR true) AND",
    "coalesce(t.y)", "coalesce($2)", "(t.z AND false)", "(t.v BETWEEN 1 AND 2 AND false)",
}  # fmt: skip


WHOLE: Final = """
CREATE TRIGGER g AFTER UPDATE ON t FOR EACH ROW WHEN (NOT NEW.p) EXECUTE FUNCTION f();
SELECT FROM t WHERE t.x IS DISTINCT FROM 1 OFFSET 0;
SELECT FROM t WHERE t.a ?| ARRAY['b', 'c'];
SELECT t.y, true AND t.z > 0 FROM t;
"""
WHOLE_CONDITIONS: Final = {"(NOT NEW.p)", "t.x IS DISTINCT FROM 1", "t.a ?| ARRAY['b', 'c']", "t.z > 0"}
DEFINED: Final = """
CREATE SCHEMA IF NOT EXISTS s;
CREATE INDEX i ON t (a);
CREATE TRIGGER g AFTER INSERT OR UPDATE ON t EXECUTE FUNCTION f();
CREATE TRIGGER h AFTER INSERT OR TRUNCATE ON t EXECUTE FUNCTION f();
SELECT FROM a JOIN b ON true OFFSET 0;
REVOKE ALL ON FUNCTION f() FROM PUBLIC;
CASE a WHEN 'b' THEN 1 END;
EXCEPTION WHEN invalid_parameter_value THEN NULL;
END IF;
RETURN a;
"""


@pytest.fixture
def text(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for module in (operators, sql_operators, source):
        monkeypatch.setattr(module, "text_of", {"m": BODY, "s": SELECT, "d": DEFINED, "w": WHOLE}.__getitem__)
    monkeypatch.setattr(operators, "tree_of", lambda _: ast.parse(BODY))
    source._line_starts.cache_clear()
    return monkeypatch


@pytest.mark.usefixtures("text")
def test_what_is_made_of_code() -> None:
    """Each kind of change is made, all of them are Python, and no two are the same."""
    made = [mutant.mutated() for mutant in operators.mutants_of("m")]
    for one in made:
        ast.parse(one)
    assert len(set(made)) == len(made)
    lines = {line.strip() for one in made for line in one.splitlines()}
    assert CHANGED - lines == set()


@pytest.mark.usefixtures("text")
def test_what_is_made_of_sql() -> None:
    made = [mutant.mutated() for mutant in sql_operators.mutants_of("s")]
    assert {one for one in SELECTED if not any(one in text for text in made)} == set()


@pytest.mark.usefixtures("text")
def test_conditions_of_sql_are_whole() -> None:
    made = {one.key for one in sql_operators.mutants_of("w", fine=True)}
    assert made >= {f"w: : {one} -> ({one} OR true)" for one in WHOLE_CONDITIONS}


def test_the_function_after_one_that_is_made_by_execute_has_its_own_name() -> None:
    assert "time_problem" in {match[1] for match in sql_operators.FUNCTION.finditer(source.text_of(source.SCHEMA))}


@pytest.mark.usefixtures("text")
def test_what_is_no_condition_of_sql() -> None:
    assert [one.key for one in sql_operators.mutants_of("d")] == []


@pytest.mark.rest
def test_the_tabled_fit() -> None:
    """Each replaced text is there exactly once, the result is Python, and its tests exist."""
    assert tabled.mutants().keys() - {*modules(), *statements()} == set()

    def check(mutant: Mutant) -> None:
        assert mutant.mutated() != source.text_of(mutant.where)
        if mutant.is_code:
            ast.parse(mutant.mutated())
        file = mutant.killer.partition("::")[0].removesuffix("@oldest")
        assert not file or (source.ROOT / file).is_file()

    started = [file for files in judges.PROCESSES.values() for file in files]
    assert [file for file in started if not (source.ROOT / file).is_file()] == []
    every([one for some in tabled.mutants().values() for one in some], check)


def test_repairs_fit() -> None:
    """Each replaced text is there exactly once, the result is Python, and the test that notices exists."""

    def check(mutant: Mutant) -> None:
        if mutant.is_code:
            ast.parse(mutant.mutated())
        file, *classes, test = mutant.killer.split("::")
        assert f"def {test}(" in (source.ROOT / file).read_text("utf-8"), "its test is gone: name another one"
        assert len(classes) <= 1

    every(repairs.reversals_of({*modules(), *statements()}), check)


def test_the_page_of_repairs_is_up_to_date() -> None:
    assert repairs.PAGE.read_text("utf-8") == repairs.page(), "python -m tests.mutants.repairs"


@pytest.mark.rest
def test_what_is_listed_is_there() -> None:
    where = {key.partition(":")[0] for key in EQUIVALENT}
    made = [one.key for n in where for one in (sql_operators if n in statements() else operators).mutants_of(n)]
    assert [key for key in EQUIVALENT if not any(one == key or one.startswith(f"{key} -> ") for one in made)] == []
    assert OPEN.keys() - {*modules(), *statements()} == set()
    blind = [name.split("::") for name in BLIND]
    assert [test for file, test in blind if f"def {test}(" not in (source.ROOT / file).read_text("utf-8")] == []


def test_which_are_tried() -> None:
    """Those that no test may see only where they are asked for; of a sample each n-th; guards without the rest."""
    where = "cancel_jobs"
    named, all_of, some = (
        [one.key for one in chosen(parser().parse_args([where, *more]))]
        for more in ([], ["--equivalent"], ["--every", "2"])
    )
    listed = [key for key in EQUIVALENT if key.startswith(f"{where}: ")]
    assert listed
    assert {*all_of} - {*named} == {*listed}
    assert some == named[::2]
    for one, module in ((where, sql_operators), ("pulse.common.text", operators)):
        assert [m for m in module.mutants_of(one, fine=False) if m.is_guard] == [
            m for m in module.mutants_of(one) if m.is_guard
        ]


def test_the_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(killers, "_LAST", tmp_path / "killers.json")
    monkeypatch.setattr(killers, "_TABLE", tmp_path / "killers.txt")
    first, *others = [one.key for one in chosen(parser().parse_args(["pulse.common.text"]))]
    killers.keep({first: "t::one"}, tried=[first])
    left = chosen(parser().parse_args(["pulse.common.text", "--unknown"]))
    assert [one.key for one in left] == others
    assert [(one.key, test) for one, test in noticed_of_others(left)] == [(first, "t::one")]


@pytest.mark.rest
def test_a_function_gets_other_code(tmp_path: Path) -> None:
    """Also for modules that have imported it before; it stays in the fork."""
    (mutant,) = [one for one in operators.mutants_of("pulse.common.text") if one.key.endswith(CUT)]
    force.functions.cache_clear()  # another test may have looked before `cut` was imported
    gc.freeze()  # as an actor does that starts in this process
    assert holds_in_fork(mutant, tmp_path, lambda: cut("four", 3) == "four")
    gc.unfreeze()
    assert cut("four", 3) != "four"


def test_a_program_has_the_mutant_too(tmp_path: Path) -> None:
    """Also one that puts a finder of its own before all others, as pytest does."""
    (mutant,) = [one for one in operators.mutants_of("pulse.common.text") if one.key.endswith(CUT)]
    changed = tmp_path / "mutant.py"
    changed.write_text(mutant.mutated(), "utf-8")
    program = (
        "import sys, importlib.machinery; sys.meta_path.insert(0, importlib.machinery.PathFinder); "
        "from pulse.common.text import cut; print(cut('four', 3))"
    )
    env = {**os.environ, hook.MODULE: mutant.where, hook.SOURCE: str(changed), "PYTHONPATH": str(force._SITE)}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "four\n"


def test_a_statement_gets_another_text(tmp_path: Path) -> None:
    """Also where a module keeps it."""
    mutant = Mutant("complete_jobs", "", Span(0, 0), "\n")
    before = store._COMPLETE
    assert holds_in_fork(mutant, tmp_path, lambda: f"\n{before}" == store._COMPLETE)
    assert holds_in_fork(
        mutant, tmp_path, lambda: before != store._COMPLETE and name_of(store._COMPLETE) == "complete_jobs"
    )


def test_a_constant_gets_another_value(tmp_path: Path) -> None:
    (mutant,) = [one for one in tabled.mutants()["pulse.ui.guard"] if one.scope == "_READING"]
    assert holds_in_fork(mutant, tmp_path, lambda: "OPTIONS" in guard._READING)


def holds_in_fork(mutant: Mutant, directory: Path, condition: Callable[[], bool]) -> bool:
    """Whether *condition* holds where *mutant* is in force, and not after it was taken back."""
    pid = os.fork()
    if pid == 0:
        try:
            take_back = force.force(mutant, directory)
            holds = condition()
            take_back()
            os._exit(0 if holds and not condition() else 1)
        finally:
            os._exit(2)
    return os.waitpid(pid, 0)[1] == 0


def test_which_tests_noticed_mutants_in_the_last_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was tried anew and survived is forgotten; what was not tried is kept; a file that is cut off is none."""
    monkeypatch.setattr(killers, "_LAST", tmp_path / "build" / "killers.json")
    assert killers.last() == {}
    killers.keep({"a": "t::one", "b": "t::two"}, tried={"a", "b"})
    killers.keep({}, tried={"a"})
    assert killers.last() == {"b": "t::two"}
    killers._LAST.write_text('{"b": "t:', "utf-8")
    assert killers.last() == {}


def test_the_table_of_tests_that_noticed_mutants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same; what there is no more is left out, and a run here knows better."""
    monkeypatch.setattr(killers, "_LAST", tmp_path / "build" / "killers.json")
    monkeypatch.setattr(killers, "_TABLE", tmp_path / "killers.txt")
    assert killers.known("abc") == {}
    many = [f"m: f: {number} -> False" for number in range(30)]
    found = {"a": 't::two["ü"]', "b": "t::one", "c": "t::one", **dict.fromkeys(many, "t::many")}
    killers.note(found, tried=found, alive=found)
    assert killers.known(found) == found
    assert killers.known("b") == {"b": "t::one"}
    killers.note({"b": "t::three"}, tried={"b", "c"}, alive="abc")
    assert killers.known(found) == {"a": found["a"], "b": "t::three"}
    killers.keep({"a": "t::four"}, tried="a")
    assert killers.known("a") == {"a": "t::four"}


@pytest.mark.rest
def test_the_words_of_a_mutant_say_which_tests_are_about_it(request: pytest.FixtureRequest) -> None:
    """The rarer a word, the more it counts; those of a test are in its name and its function."""
    like = Likeness(request.session.items)
    (mutant,) = [one for one in operators.mutants_of("pulse.common.text") if one.key.endswith(CUT)]
    weights = like.weights_of(mutant)
    assert sum(weights.values()) == pytest.approx(1.0)
    mine = request.node.nodeid
    assert 0.0 < like.of(mine, weights) < 1.0
    assert like.of(mine, {"about": 0.5, "no" + "where": 0.25, "likeness": 0.25}) == 0.75


def test_a_test_that_noticed_another_mutant_of_the_function_is_tried_first(tmp_path: Path) -> None:
    """Then one of the same file, and of several sets of parameters one comes before the others."""
    names = ["t/a.py::x[1]", "t/a.py::x[2]", "t/b.py::y", "t/c.py::z", "t/c.py::w"]
    one, other = [one for one in operators.mutants_of("pulse.common.text") if one.scope == "cut"][:2]
    warm = Judges(lambda _: None, Forks(tmp_path, 1, None), "")
    warm._likeness = Likeness(cast("list[pytest.Item]", [SimpleNamespace(nodeid=name) for name in names]))
    lines = {str(source.path_of(one.where)): 1}
    warm.reached |= {name: Reached(0.1, passed=True, lines=lines) for name in names}
    assert warm.in_order(one, names, 1.0) == names
    warm.kills["t/a.py::x[1]"] = warm.kills["t/a.py::x[2]"] = 5
    warm.found(other, "t/c.py::w")
    assert warm.in_order(one, names, 1.0)[:3] == ["t/c.py::w", "t/c.py::z", "t/a.py::x[1]"]


@pytest.mark.parametrize("is_ours", [True, False])
def test_what_a_fork_has_started_ends_with_it(is_ours: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs with a session of their own, too, as supervisors are; and what these leave where others look."""
    monkeypatch.setattr(leftovers, "PLACE", tmp_path / "pulse")
    monkeypatch.setattr(leftovers, "_IS_OURS", is_ours)
    (tmp_path / "pulse").mkdir()
    reading, writing = os.pipe()
    fork = os.fork()
    if fork == 0:
        with contextlib.suppress(BaseException):
            os.setsid()
            leftovers.mark()
            os.write(writing, b"%d" % subprocess.Popen(["sleep", "600"], start_new_session=True).pid)
            signal.pause()
        os._exit(0)
    program = int(os.read(reading, 20))
    leftovers.end(fork)
    assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == -signal.SIGKILL
    until(lambda: not is_alive(program), "its program ends")
    assert (tmp_path / "pulse").exists() != is_ours
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize(("status", "is_wrong"), [(SURVIVED, True), (KILLED, False), (HUNG, False)])
def test_a_survivor_is_wrong(status: int, is_wrong: bool) -> None:
    mutant = Mutant("pulse.job", "", Span(0, 1), "x")
    judged = Trial([mutant], math.inf)
    judged._tell(mutant, status, "a test")
    assert "1 mutants tried" in judged.report()
    assert bool(judged.wrong) == is_wrong


def test_what_judges_nothing_is_reported() -> None:
    """Whether it failed when it was recorded, or with a change that changes nothing."""
    judged = Trial([], math.inf)
    judged._silent |= {"t::one": "it fails", "a": NO_TIME, "b": NO_TIME}
    judged._court = cast("Court", SimpleNamespace(dismissed={"t::two": "it hangs"}))
    assert judged.report().splitlines()[:3] == [
        "t::one judges nothing: it fails",
        "t::two judges nothing: it hangs",
        "2 files of tests judge nothing: there was no time",
    ]
    mutant = Mutant("pulse.job", "", Span(0, 1), "x")
    judged._tell_fast(mutant, SURVIVED, "")
    assert judged.end_of(mutant) is None, "one of those may notice it"


@dataclass(slots=True)
class Warm:
    """Judges that notice a mutant by the tests *noticing*, and note which tests are recorded, in which order."""

    noticing: set[str]
    items: list[SimpleNamespace]
    recorded: list[set[str]] = field(default_factory=list[set[str]])
    dismissed: dict[str, str] = field(default_factory=dict[str, str])
    reached: dict[str, Reached] = field(default_factory=dict[str, Reached])

    def expect(self, _mutants: object) -> None:
        """It has no order of its own."""

    def trust(self, names: set[str]) -> None:
        self.reached |= {name: Reached(0.1, passed=True, lines={}) for name in names}

    def forget_what_hung(self) -> None:
        """None does."""

    def record(self, chosen: list[SimpleNamespace], _paths: object, _until_s: float) -> dict[str, str]:
        names = {item.nodeid for item in chosen}
        self.recorded += [names] if names else []
        lines = {str(source.path_of("pulse.job")): 0b10}
        self.reached |= {name: Reached(0.1, passed=True, lines=lines) for name in names}
        return {}

    def judge(self, mutants: Iterable[tuple[Mutant, list[str]]], tell: Callable[..., None], *_limits: object) -> None:
        for mutant, names in mutants:
            (*_, found) = ["", *sorted(self.noticing.intersection(names))]
            tell(mutant, KILLED if found else SURVIVED, found)


@pytest.fixture
def warm_is_court(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "Court", lambda warm: warm)
    monkeypatch.setattr(trial, "Batches", lambda *_: SimpleNamespace(judge=lambda cases, _tell: cases))


FAST: Final = "tests/pulse/test_job.py::test_a"
OWN: Final = "tests/pulse/test_job_system.py::test_b"
FAR: Final = "tests/pulse/test_config_system.py::test_c"


@pytest.mark.parametrize(("noticing", "known", "recorded"), [
    ({FAST}, "", [{FAST}]),
    ({OWN}, "", [{FAST}, {OWN}]),
    ({FAR}, "", [{FAST}, {OWN}, {FAR}]),
    ({FAR}, FAR, []),
    ({OWN}, FAR, [{FAST}, {OWN}]),
    ({FAR}, OWN, [{FAST}, {OWN}, {FAR}]),
    ({FAR}, f"{FAR}ar", [{FAST}, {OWN}, {FAR}]),
])  # fmt: skip
@pytest.mark.usefixtures("warm_is_court")
def test_slow_tests_are_run_only_where_fast_ones_notice_nothing(
    noticing: set[str], known: str, recorded: list[set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless one is known to notice this mutant: that one alone is run, or all, if it does so no more."""
    mutant = Mutant("pulse.job", "", Span(0, 1), "x", (1, 1))
    monkeypatch.setattr(judges, "processes_for", lambda _: (OWN.partition("::")[0], FAR.partition("::")[0]))
    monkeypatch.setattr(trial, "_files_for", lambda _: [one.partition("::")[0] for one in (FAST, OWN, FAR)])
    items = [SimpleNamespace(nodeid=name, get_closest_marker=lambda _: None) for name in (FAST, OWN, FAR)]
    warm = Warm(noticing, items)
    judged = Trial([mutant], time.monotonic() + 60.0, {mutant.key: known} if known else {})
    judged.work(cast("Judges", warm))
    assert judged.end_of(mutant) == (KILLED, *noticing)
    assert warm.recorded == recorded
    assert judged.wrong == []


@pytest.mark.rest
@pytest.mark.parametrize(("is_here", "is_dismissed", "why"), [
    (False, False, "is not here"), (True, True, "judges nothing"), (True, False, ""),
])  # fmt: skip
@pytest.mark.usefixtures("warm_is_court")
def test_why_a_known_mutant_survives(*, is_here: bool, is_dismissed: bool, why: str) -> None:
    """Its test was removed, or needs a program that is not installed; or it notices no more, and there is no reason."""
    mutant = Mutant("pulse.job", "", Span(0, 1), "x", (1, 1))
    judged = Trial([mutant], math.inf, {mutant.key: FAR}, is_fast=True)
    items = [SimpleNamespace(nodeid=FAR, get_closest_marker=lambda _: None)] if is_here else []
    judged.work(cast("Judges", Warm(set(), items, dismissed={FAR: "it is skipped"} if is_dismissed else {})))
    judged._tell(mutant, SURVIVED, "")
    said = [line for line in judged.report().splitlines() if "noticed what survived" in line]
    assert said == ([f"{FAR} noticed what survived, and {why}"] if why else [])


@pytest.mark.parametrize("scope", ["schema_sql", "nobody_names_this"])
def test_the_blind_judge_no_schema(scope: str) -> None:
    """A test of what a mutant of the schema replaces would fail whatever the mutant is."""
    blind = next(iter(BLIND))
    seeing = f"{blind.partition('::')[0]}::another"
    mutant = Mutant(source.SCHEMA, scope, Span(0, 1), "x")
    judged = Trial([mutant], math.inf)
    assert judged._tests({name: {} for name in (*BLIND, seeing)}, mutant) == [seeing]
