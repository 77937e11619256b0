"""The caches of real frameworks, on and off, as docs/howto/unchanged-application.md shows them.

Each runs in a process of its own, because a cache is kept for the process or on disk.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
from integration.doc_pages import DOCS
from long_runs import among_others
from serve.fake_upstream import Say

PAGE = DOCS / "howto/unchanged-application.md"

SEARCH = """
import json, sys, types
import scope_torch as st
from scope_torch.serve.current import base_url
from serve.fake_upstream import prices

sys.modules.setdefault("soundfile", types.ModuleType("soundfile"))  # LiteLLM reads its cache by it
{app}

questions = [(f"What is {{i}} + {{i}}?", str(2 * i)) for i in range(6)]
try:
    result = st.select(
        app, models={{"answer": ["tiny", "medium", "large"]}}, dataset=questions,
        metric=st.metrics.exact_match, reference="large", max_quality_loss=0.1, budget_usd=1,
        endpoint=st.Endpoint(sys.argv[1], prices=prices()), on_error="zero",
    )
    print(json.dumps(result.choice))
except st.InputError as error:
    print(json.dumps(str(error)))
"""
DSPY = """
import dspy
{before}
def app(question):
    lm = dspy.LM("openai/scope/answer", api_base=base_url(), api_key="-"{setting})
    with dspy.context(lm=lm):
        return dspy.Predict("question -> answer")(question=question).answer
"""
LANGCHAIN = """
from langchain_core.caches import InMemoryCache
from langchain_core.globals import set_llm_cache
from langchain_openai import ChatOpenAI
import httpx, os
from scope_torch.serve.current import headers
set_llm_cache(InMemoryCache())
{before}
class Here(httpx.Auth):  # one client for all queries, as the key of the cache has its address
    def auth_flow(self, request):
        request.url = httpx.URL(base_url() + "/chat/completions")
        yield request
llm = ChatOpenAI(model="scope/answer", base_url="http://127.0.0.1:1/v1", api_key="-",
                 http_client=httpx.Client(auth=Here()){setting})
def app(question):
    return llm.invoke(question).content
"""
LITELLM = """
import litellm
from litellm.caching.caching import Cache
litellm.cache = Cache()
{before}
def app(question):
    reply = litellm.completion(
        "openai/scope/answer", [{{"role": "user", "content": question}}],
        api_base=base_url(), api_key="-"{setting},
    )
    return reply.choices[0].message.content
"""
# The package, the application, and two ways to switch its cache off; none for its default.
CACHES = {
    "dspy": (DSPY, [
        {"setting": ", cache=False"},
        {"before": "dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)"},
    ]),
    "langchain_openai": (LANGCHAIN, [
        {"setting": ", cache=False"}, {"before": "set_llm_cache(None)"},
    ]),
    "litellm": (LITELLM, [
        {"setting": ", caching=False"}, {"before": "litellm.cache = None"},
    ]),
}  # fmt: skip


def answer(request: dict) -> Say:
    """`tiny` is always wrong, the others are right; in the fields of DSPy if it asks for them."""
    said = json.dumps(request["messages"])
    number = int(said.rpartition("What is ")[2].split()[0])
    right = "0" if request["model"] == "tiny" else str(2 * number)
    if "[[ ##" in said:
        return Say(f"[[ ## answer ## ]]\n{right}\n\n[[ ## completed ## ]]")
    return Say(right)


def found(app: str, upstream, tmp_path) -> dict | str:
    """The choice, or the error in the place of it."""
    folders = [
        os.environ.get("SCOPE_AGENTS", ""),
        os.fspath(DOCS.parent),
        str(DOCS.parent / "tests"),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "HOME": str(tmp_path)}
    environment |= {"DSPY_CACHEDIR": str(tmp_path), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run(
        [sys.executable, "-c", SEARCH.format(app=app), upstream.url],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("package", ["dspy", *map(among_others, sorted(set(CACHES) - {"dspy"}))])
def test_a_cache_that_is_on_and_off(package, upstream, tmp_path, monkeypatch):
    """Today's fault: `tiny`, which is always wrong, was certified with the answers of `large`."""
    if folder := os.environ.get("SCOPE_AGENTS"):
        monkeypatch.syspath_prepend(folder)
    if find_spec(package) is None:
        pytest.skip(f"needs {package}")
    upstream.answer = answer
    template, ways_out = CACHES[package]
    told = found(template.format(before="", setting=""), upstream, tmp_path)
    assert "answered without a request to the endpoint" in told
    for way in ways_out:
        assert all(part.strip(", ") in PAGE.read_text() for part in way.values())
        app = template.format(**{"before": "", "setting": "", **way})
        assert found(app, upstream, tmp_path) == {"answer": "medium"}
