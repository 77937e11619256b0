"""Names with odd characters on the command line: read as they are, or refused with the quotes."""

import csv
import shlex
from contextlib import nullcontext
from pathlib import Path

import pytest

from scope_torch.cli.quoting import refuse_changed_names
from scope_torch.errors import InputError

PLANNERS = ["4.10", "4.1", "001", "1e5", "true", "null"]
SOLVERS = ["gpt (a)", "a,b", "it's", "a=b", "größer", "big"]


@pytest.fixture
def given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with open("runs.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["planner", "solver", "query", "quality", "cost_usd"])
        for planner in PLANNERS:
            for solver in SOLVERS:
                price = 0.1 if (planner, solver) == ("4.10", "big") else 0.01
                rows.writerows([planner, solver, f"q{i}", 1, price] for i in range(6))
    return [
        "task=table", "task.path=runs.csv", "task.module_columns=[planner,solver]",
        "task.epsilon=0.1", "budget_usd=0.05",
    ]  # fmt: skip


def typed(line: str) -> list[str]:
    """The arguments that a shell makes of a line."""
    return shlex.split(line)


REFERENCE = """'task.reference=["4.10",big]'"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "mend"),
    [
        ("'base=[4.10,big]'", """'base=["4.10",big]'"""),
        ("'base=[1e5,big]'", """'base=["1e5",big]'"""),
        ("'base=[true,big]'", """'base=["true",big]'"""),
        ("""'base=["4.10",gpt (a)]'""", """'base=["4.10","gpt (a)"]'"""),
        ("""'base=['"'4.1'"',gpt (a)]'""", """'base=["4.1","gpt (a)"]'"""),
        ("'base=[001,a=b]'", """'base=[001,"a=b"]'"""),
        ("""'base=[4.10,"a,b"]'""", """'base=["4.10","a,b"]'"""),
        ("'base=[001,größer]'", """'base=[001,"größer"]'"""),
        ("'base=[null, größer]'", """'base=["null","größer"]'"""),
        ("'base={planner:4.10,solver:big}'", """'base={planner:"4.10",solver:big}'"""),
    ],
)
def test_the_message_shows_the_quoting_and_it_works(cli, given, wrong, mend):
    status, _, err = cli(*given, *typed(REFERENCE), *typed(wrong))
    assert status == 2
    assert mend in err
    status, out, err = cli(*given, *typed(REFERENCE), *typed(mend))
    assert status == 0, err
    assert "planner:" in out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "mend"),
    [
        ("base='gpt (a)'", """'base="gpt (a)"'"""),
        ("base=a,b", """'base="a,b"'"""),
        ('base="it\'s"', """'base="it'"'"'s"'"""),
        ("base='a{b}'", """'base="a{b}"'"""),
        ("base=größer", """'base="größer"'"""),
    ],
)
def test_one_name_for_all_modules(cli, given, wrong, mend):
    status, _, err = cli(*given, *typed(REFERENCE), *typed(wrong))
    assert status == 2
    assert mend in err
    status, _, err = cli(*given, *typed(REFERENCE), *typed(mend))
    assert "is not a candidate of module 'planner'" in err  # it was read as one name
    assert "such as base=[001," in err


@pytest.mark.parametrize(
    ("wrong", "mend"),
    [
        ("'base=[4.10,big],[001,a=b]'", """'base=["4.10",big],[001,"a=b"]'"""),
        ("base=4.10,001", """'base="4.10",001'"""),
        ("base=null,1e5", """'base=null,"1e5"'"""),
    ],
)
def test_each_name_of_a_sweep_goes_into_quotes(cli, given, wrong, mend):
    status, _, err = cli("-m", *given, *typed(REFERENCE), *typed(wrong))
    assert (status, mend in err) == (2, True), err


def test_a_sweep_in_a_file_is_one_without_the_flag():
    with pytest.raises(InputError, match=r"""'base="4\.10",001'"""):
        refuse_changed_names(["base=4.10,001"], in_sweep=True)


def test_a_path_with_an_umlaut_is_read_in_quotes(cli, given):
    Path("runs.csv").rename("läufe.csv")
    status, _, err = cli(*given, *typed(REFERENCE), "task.path=läufe.csv")
    assert (status, """'task.path="läufe.csv"'""" in err) == (2, True), err
    assert cli(*given, *typed(REFERENCE), 'task.path="läufe.csv"', "base=[001,big]")[0] == 0


@pytest.mark.slow
def test_too_many_names_because_of_a_comma(cli, given):
    status, _, err = cli(*given, *typed(REFERENCE), "base=[001,a,b]")
    assert status == 2
    assert 'a name with a comma needs quotes, such as "a,b"' in err
    assert cli(*given, *typed(REFERENCE), 'base=[001,"a,b"]')[0] == 0


def test_numbers_of_a_sweep_are_names_too(cli, given):
    status, _, err = cli("-m", *given, *typed(REFERENCE), "base=[4.10,big],[001,big]")
    assert status == 2
    assert "4.10 would be read as another name" in err


@pytest.mark.parametrize(
    ("value", "refused"),
    [
        ("Grok 4.20", False),
        ("gpt:4.10", False),
        ("[ft:gpt-4.1:org::8e10,llama 3.10]", False),
        ("[ 4.10,big]", True),
        ("{planner:4.10}", True),
        ("{planner:[big,4.10]}", True),
    ],
)
def test_a_number_within_a_name_is_kept(value, refused):
    with pytest.raises(InputError) if refused else nullcontext():
        refuse_changed_names([f"base={value}"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "reference", "said"),
    [
        ("[4.10, big]", '["4.10", big]', "base: YAML reads 4.1"),
        ("[001, big]", '["4.10", big]', "base: YAML reads 1"),
        ("4.10", '["4.10", big]', "base: YAML reads 4.1"),
        ('["4.10", big]', "[4.10, big]", "task.reference: YAML reads 4.1"),
        ('["4.10", big]', "[yes, big]", "task.reference: YAML reads True"),
        ("[null, big]", '["4.10", big]', "base: YAML reads None"),
        ("{planner: 4.10, solver: big}", '["4.10", big]', "base: YAML reads 4.1"),
        ('{planner: "4.10", solver: big}', '["4.10", big]', ""),
        ('["4.10", big]', '["4.10", big]', ""),
        ("null", '["4.10", big]', "needs a base LLM"),
    ],
)
@pytest.mark.parametrize("group", ["task", "experiment"])
def test_a_name_in_a_file_that_is_no_text_is_refused(cli, given, group, base, reference, said):
    task = f"task: {{name: mine, reference: {reference}}}\nbase: {base}\n"
    defaults = "defaults: [/schema/task/table@task, _self_]\n" if group == "task" else ""
    folder = Path("conf", group)
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(f"# @package _global_\n{defaults}{task}")
    given = ["task=mine", *given[1:]] if group == "task" else ["experiment=mine", *given]
    status, _, err = cli("--config-dir", "conf", *given)
    assert (status, said in err) == (2 if said else 0, True), err
    assert ("put it into quotes" in err) == ("YAML" in said)


@pytest.mark.slow
def test_a_name_in_the_parameters_of_a_sweep_is_refused_too(cli, given):
    Path("conf", "experiment").mkdir(parents=True)
    sweep = "hydra: {sweeper: {params: {base: '[4.10,big]'}}}\n"
    Path("conf", "experiment", "mine.yaml").write_text(f"# @package _global_\n{sweep}")
    more = ["--config-dir", "conf", "-m", "experiment=mine"]
    status, _, err = cli(*more, *given, *typed(REFERENCE))
    assert status == 2
    assert """'base=["4.10",big]'""" in err
