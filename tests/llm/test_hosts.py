"""Which key goes to which host: the usual one to exactly this host, over https, and to no other."""

import pytest
from llm.fake_endpoint import only_loopback  # noqa: F401
from serve.fake_upstream import FakeUpstream, prices
from serve.serve_cases import CHOICE, PATHS, body_of, post

import scope_torch as st
from scope_torch.cli import serve
from scope_torch.errors import InputError
from scope_torch.llm.hosts import key_env_of
from scope_torch.serve import endpoint as module_of_endpoint

KEYS = ["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENROUTER_API_KEY", "DEEPSEEK_API_KEY",
        "MISTRAL_API_KEY", "GROQ_API_KEY", "TOGETHER_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY",
        "XAI_API_KEY", "FIREWORKS_API_KEY"]  # fmt: skip


@pytest.fixture(autouse=True)
def no_key_of_this_machine(monkeypatch):
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://api.openai.com/v1", "OPENAI_API_KEY"),
        ("https://API.OpenAI.com:443/v1", "OPENAI_API_KEY"),
        ("https://api.anthropic.com/v1", "ANTHROPIC_API_KEY"),
        ("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
        ("https://api.deepseek.com", "DEEPSEEK_API_KEY"),
        ("https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
        ("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
        ("https://api.together.xyz/v1", "TOGETHER_API_KEY"),
        ("https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY"),
        ("https://api.x.ai/v1", "XAI_API_KEY"),
        ("https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    ],
)
def test_a_well_known_host(url, name, monkeypatch):
    with pytest.raises(InputError, match=rf"\${name} is not set; .*api_key_env=") as caught:
        key_env_of(url)
    assert "\n" not in str(caught.value)
    monkeypatch.setenv(name, "sk-of-the-host")
    assert key_env_of(url) == name


@pytest.mark.parametrize(
    "url",
    [
        "http://api.openai.com/v1",  # everybody on the way could read it
        "https://api.openai.com:8443/v1",
        "https://api.openai.com.example.org/v1",
        "https://api.openai.com./v1",
        "https://eu.api.openai.com/v1",
        "https://openai.com/v1",
        "https://example.org/api.openai.com/v1",
        "https://localhost/v1",
        "http://127.0.0.1:8000/v1",
    ],
)
def test_another_host_gets_no_key(url, monkeypatch):
    for name in KEYS:
        monkeypatch.setenv(name, "sk-of-the-host")
    assert key_env_of(url) is None


def test_googles_own_order(monkeypatch):
    for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.setenv(name, "AIza-of-the-host")
        assert key_env_of("https://generativelanguage.googleapis.com/v1beta/openai") == name


def test_it_is_sent_and_an_own_setting_goes_first(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-host")
    monkeypatch.setenv("MY_KEY", "sk-of-my-own")
    monkeypatch.setattr(module_of_endpoint, "key_env_of", lambda _: "OPENAI_API_KEY")
    for name, sent in (
        (None, "Bearer sk-of-the-host"),
        ("MY_KEY", "Bearer sk-of-my-own"),
        ("", None),
    ):
        with (
            FakeUpstream() as upstream,
            st.Endpoint(upstream.url, prices=prices(), api_key_env=name) as endpoint,
            endpoint.query(CHOICE) as query,
        ):
            assert post(f"{query.base_url}{PATHS[0]}", body_of(PATHS[0])).status == 200
            assert upstream.headers[0].get("authorization") == sent


def test_a_missing_key_is_told_before_the_first_call(tmp_path, capsys):
    calls = []
    with pytest.raises(InputError, match=r"\$OPENAI_API_KEY is not set; .*api_key_env="):
        st.select(
            lambda question: calls.append(question),
            models={"answer": ["GPT-5-nano", "GPT-5.2"]},
            dataset=[("2 + 2?", "4")] * 5,
            metric=st.metrics.exact_match,
            reference="GPT-5.2",
            max_quality_loss=0.1,
            budget_usd=1,
            endpoint="https://api.openai.com/v1",
        )
    assert calls == []
    (tmp_path / "models.json").write_text('{"version": 1, "models": {"answer": "GPT-5-nano"}}')
    models = ["--models", str(tmp_path / "models.json")]
    with pytest.raises(SystemExit) as ended:
        serve.main([*models, "--base-url", "https://api.openai.com/v1"])
    assert ended.value.code == 2
    assert "$OPENAI_API_KEY is not set" in capsys.readouterr().err
