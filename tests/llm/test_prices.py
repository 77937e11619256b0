"""The price list and the world file: the packaged files, and files that are refused."""

from importlib.resources import files

import pytest

from scope_torch.errors import InputError
from scope_torch.evaluators.simulation.spec import load_worlds
from scope_torch.llm.prices import LLMInfo, check_llm, choose_llms, load_llms

PACKAGED = {
    name: (files("scope_torch") / "data" / name).read_text(encoding="utf-8")
    for name in ("llms.toml", "worlds.toml", "recorded_like_worlds.toml")
}
LLM = '[[llm]]\nname = "a"\ninput_usd_per_mtok = 1\noutput_usd_per_mtok = 2.5\n'


def error_of(read, tmp_path, text: str | bytes) -> str:
    """The error message for a file with this text; checks that it names the file in one line."""
    path = tmp_path / "own.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError) as caught:
        read(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_the_packaged_list_is_the_papers():
    """23 LLMs, and four prices of tab:llm-costs in USD per million tokens."""
    llms = load_llms()
    assert len(llms) == 23
    assert next(iter(llms)) == "GPT-5.2"
    for name, price in {
        "GPT-5.2": (1.75, 14.0),
        "Gemini 2.5 Flash-Lite": (0.1, 0.4),
        "Claude Haiku 4.5": (1.0, 5.0),
        "Mistral-Nemo": (0.02, 0.04),
    }.items():
        assert (llms[name].input_usd_per_mtok, llms[name].output_usd_per_mtok) == price
    for llm in llms.values():
        assert llm.mmlu_pro is None or 25 < llm.mmlu_pro < 100
        assert llm.gpqa is None or 0.2 < llm.gpqa < 1
    unscored = [llm.name for llm in llms.values() if llm.mmlu_pro is None]
    assert unscored == ["Claude Haiku 3", "Mistral-Nemo"]


def test_a_list_of_ones_own(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text("version = 1\n" + LLM + 'note = "new"\n' + LLM.replace('"a"', '"b"'))
    llms = load_llms(str(path))
    assert list(llms) == ["a", "b"]
    assert llms["a"].output_usd_per_mtok == 2.5
    assert llms["a"].mmlu_pro is None
    path.write_text("\ufeff" + path.read_text())  # as some editors of Windows write it
    assert load_llms(path) == llms
    assert choose_llms(llms, None) == list(llms.values())
    assert [llm.name for llm in choose_llms(llms, ["b", "a"])] == ["b", "a"]
    with pytest.raises(InputError, match=r"no price is known for LLM 'c'; there are \['a', 'b'\]"):
        choose_llms(llms, ["a", "c"])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (LLM + LLM, "{'name': 'a',"),
        (LLM.replace("2.5", "-2.5"), "-2.5"),
        (LLM.replace("= 1", "= -0.001"), "-0.001"),
        (LLM.replace("2.5", "nan"), "nan"),
        (LLM.replace("2.5", "inf"), "inf"),
        (LLM.replace("2.5", '"2.5 USD"'), "2.5 USD"),
        (LLM.replace("output_usd_per_mtok = 2.5", ""), "output_usd_per_mtok"),
        (LLM.replace('name = "a"', ""), "a name of its own"),
        (LLM + 'mmlu_pro = "good"\n', "scores, if any, that are numbers"),
        (LLM + "gpqa = nan\n", "scores, if any, that are numbers"),
        (LLM.replace("[[llm]]", "[llm]"), "a name of its own"),
        ("llm = [3]", "the entry 3"),
        (LLM.replace('"a"', "3"), "a name of its own"),
        (LLM.replace('"a"', '""'), "a name of its own"),
        (LLM.replace("2.5", "true"), "output_usd_per_mtok (USD, at least 0)"),
        (LLM + "cached_input_usd_per_mtok = -0.1\n", "cached_input_usd_per_mtok, if any, in USD"),
        (LLM + "cached_input_usd_per_mtok = inf\n", "cached_input_usd_per_mtok, if any, in USD"),
        (LLM + 'cached_input_usd_per_mtok = "0"\n', "cached_input_usd_per_mtok, if any, in USD"),
        (LLM + 'prompting = "zero_shot"\n', "prompting to be one of ['chat', 'few_shot']"),
        (LLM + "prompting = []\n", "prompting to be one of ['chat', 'few_shot']"),
        (
            LLM + 'max_tokens_key = "max_new_tokens"\n',
            "max_tokens_key to be one of ['max_tokens', 'max_completion_tokens']",
        ),
        (LLM + 'takes_temperature = "no"\n', "takes_temperature to be true or false"),
        (LLM + "takes_temperature = 1\n", "takes_temperature to be true or false"),
        (LLM + "model = 3\n", "model, if any, that is text"),
        (LLM + 'model = ""\n', "model, if any, that is text"),
        (LLM + "reasoning_effort = 3\n", "reasoning_effort, if any, that is text"),
    ],
)
def test_entries_of_a_price_list_that_are_refused(text, named, tmp_path):
    assert named in error_of(load_llms, tmp_path, "version = 1\n" + text)


def test_how_an_llm_is_called(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(
        "version = 1\n"
        + LLM
        + """cached_input_usd_per_mtok = 0
model = "org/a-2026"
prompting = "few_shot"
max_tokens_key = "max_completion_tokens"
takes_temperature = false
reasoning_effort = "low"
"""
        + LLM.replace('"a"', '"b"')
    )
    llms = load_llms(path)
    assert llms["a"] == LLMInfo(
        "a", 1, 2.5, None, None, 0, "org/a-2026", "few_shot", "max_completion_tokens", False, "low"
    )
    assert llms["b"] == LLMInfo("b", 1, 2.5)
    assert llms["b"].cached_input_usd_per_mtok is None
    assert (llms["b"].prompting, llms["b"].max_tokens_key) == ("chat", "max_tokens")


def test_llms_that_come_from_elsewhere():
    check_llm(LLMInfo("a", 1, 2.5))
    with pytest.raises(InputError, match=r"^LLMInfo\(name='a', .* needs prompting to be one of"):
        check_llm(LLMInfo("a", 1, 2.5, prompting="zero_shot"))


@pytest.mark.parametrize(("read", "version"), [(load_llms, 1), (load_worlds, 2)])
@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("version = 3\n", "is of version 3, this program reads version {}; start again from"),
        ("", "is of version None, this program reads version {}"),
        ("version = \n", "cannot read"),
        ("version = 1\n[[", "cannot read"),
        (b"version = 1 # \xff", "cannot read"),
    ],
)
def test_files_that_are_refused(read, version, text, named, tmp_path):
    assert named.format(version) in error_of(read, tmp_path, text)
    with pytest.raises(InputError, match="cannot read"):
        read(tmp_path)  # a directory
    with pytest.raises(InputError, match="cannot read"):
        read(tmp_path / "nowhere.toml")


def test_the_packaged_worlds():
    worlds = load_worlds()
    shape = {
        name: (len(w.modules), w.num_queries, w.num_test_queries) for name, w in worlds.items()
    }
    assert shape == {
        "text_to_sql": (4, 500, 1534),
        "data_transformation": (5, 102, 710),
        "data_imputation": (3, 156, 86),
        "entity_resolution": (3, 2293, 2293),
    }
    cost = {name: world.reference_cost_usd for name, world in worlds.items()}
    assert list(cost.values()) == [0.0245, 0.00452, 0.00434, 0.00591]
    assert [world.reference_quality for world in worlds.values()] == [0.34, 0.37, 0.74, 0.85]
    assert worlds["text_to_sql"].parents == ((), (0,), (0, 1), (2,))
    assert worlds["data_transformation"].parents == ((), (), (0, 1), (), (2, 3))
    assert worlds["data_imputation"].parents == ((), (0,), (1,))
    assert worlds["entity_resolution"].parents == ((), (), (0, 1))


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("chance = 0.15\n", "", "[text_to_sql]: missing ['chance'], unknown []"),
        ("chance = 0.15", "chance = 0.15\nluck = 1", "[text_to_sql]: missing [], unknown ['luck']"),
        ("mismatch = 0.15\n", "", "missing ['mismatch']"),
        (", burden = 0.8", "", "[text_to_sql] modules: missing ['burden'], unknown []"),
        ("burden = 0.8", "burden = 0.8, load = 1", "unknown ['load']"),
        ('"DIN-SQL"\n', '"DIN-SQL"\nmodules = [3]\n[x]\n', "modules: 3 is not a table of"),
        ("[text_to_sql]\n", "extra = 3\n[text_to_sql]\n", "unknown ['extra']"),
        ("version = 2\n", "version = 2\nextra = 3\n", "[extra]: 3 is not a table"),
        ('family = "bottleneck"', 'family = "other"', "family='other' must be one of ["),
        (
            'reference_split = "test"',
            'reference_split = "dev"',
            "must be one of ['search', 'test']",
        ),
        ("num_queries = 500", 'num_queries = "500"', "num_queries='500' must be of type int"),
        ("num_queries = 500", "num_queries = 500.5", "num_queries=500.5 must be of type int"),
        ("fit = 0.25", 'fit = "strong"', "fit='strong' must be of type float"),
        ("burden = 0.8", "burden = [0.8]", "burden=[0.8] must be of type float"),
        (
            'parents = ["schema_linking"]',
            'parents = ["generation"]',
            "module 'decomposition' has parents ['generation'], but only ['schema_linking'] come",
        ),
        ('parents = ["schema_linking"]', 'parents = ["decomposition"]', "come before it"),
        ('parents = ["schema_linking"]', 'parents = ["schema"]', "has parents ['schema']"),
    ],
)
def test_world_files_that_are_refused(old, new, named, tmp_path):
    text = PACKAGED["worlds.toml"]
    assert old in text
    assert named in error_of(load_worlds, tmp_path, text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("effort = 0.055\n", "", "[text_to_sql]: missing ['effort'], unknown []; give each of"),
        ("failing = 0.073", "failings = 0.073", "missing ['failing'], unknown ['failings']"),
        ("longest_tail = 0.8", "longest_tail = true", "longest_tail=True must be of type float"),
        ('"recorded_like"', '"additive"', "missing [], unknown ['effort', 'failing', 'failing_p"),
    ],
)
def test_files_of_worlds_like_the_recordings_that_are_refused(old, new, named, tmp_path):
    text = PACKAGED["recorded_like_worlds.toml"]
    assert old in text
    assert named in error_of(load_worlds, tmp_path, text.replace(old, new, 1))


def test_whole_numbers_are_numbers(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(PACKAGED["worlds.toml"].replace("chance = 0.15", "chance = 1", 1))
    assert load_worlds(path)["text_to_sql"].chance == 1
    assert load_worlds(path)["data_imputation"] == load_worlds()["data_imputation"]


def test_an_unknown_key_is_refused_with_the_one_that_was_meant(tmp_path):
    path = tmp_path / "prices.toml"
    entry = "version = 1\n" + LLM
    path.write_text(entry + 'note = "x"\nspeed_source = "y"\nsource = "z"\n')
    assert load_llms(path)["a"].output_usd_per_mtok == 2.5
    for wrong, told in (
        (
            "cached_usd_per_mtok = 0.1",
            "'a' has the unknown key 'cached_usd_per_mtok'; did you mean ",
        ),
        ("zzz = 1", "'a' has the unknown key 'zzz'; Keys for remarks are"),
        ("[[llms]]", "has the unknown key 'llms'; did you mean llm?"),
        ("[prices]", "has the unknown key 'prices'"),
    ):
        assert told in error_of(load_llms, tmp_path, f"{entry}{wrong}")
