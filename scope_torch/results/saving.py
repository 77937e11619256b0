"""Files with the LLM of each module: for the application, for `scope-torch serve`, for LiteLLM.

| name | content |
| --- | --- |
| `*.json` | `version`, `models` (LLM by module), what the choice rests on, `fallbacks` if asked |
| `*.yaml`, `*.yml` | the same |
| `.env`, `*.env` | a line for each module, such as `SCOPE_PLANNER=medium` |
| `litellm*.yaml` | `model_list` of a LiteLLM proxy or Router, with a model `scope/planner` |

The name of a variable in `.env` is `SCOPE_` and the module in capitals, with `_` for all but
ASCII letters and digits. The comment above it has the module's own name, which `load_models` reads.
An LLM with a quote, `$` or `\\` in its name is refused there: readers of such files differ.

For LiteLLM `claude...` and `gemini...` get their provider in front, names with a provider that it
knows stay, and all others get `openai/`, which is any endpoint of this kind. No file holds keys.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scope_torch.errors import InputError, cannot_write
from scope_torch.factors import LLM, choice_of, variable_of
from scope_torch.files import make_folder, write_atomically
from scope_torch.observation import unique_keys

VERSION = 1
_NAMES = '"models.json", "models.yaml", ".env", "litellm.yaml" or "report.html"'
_OF_OTHERS = "holds something else; choose another name, or move it away"
_MODULE = "# module "
# Names with one of these in front are known to LiteLLM as they are.
_PROVIDERS = (
    "anthropic azure azure_ai bedrock cerebras cohere deepinfra deepseek fireworks_ai gemini groq "
    "hosted_vllm huggingface mistral nvidia_nim ollama ollama_chat openai openrouter perplexity "
    "replicate sambanova together_ai vertex_ai vllm watsonx xai"
)
_BUDGET = "budget_tokens"
_PARAMS = {"effort": "reasoning_effort", "thinking_tokens": _BUDGET}
_PARAMS |= {name: name for name in ("temperature", "top_p", "max_tokens")}
_FAMILIES = {"claude": "anthropic", "gemini": "gemini"}


def save_models(
    path: Path | str, models: Mapping[str, str], facts: Mapping[str, Any], *, private: bool = False
) -> Path:
    """Writes the LLM of each module, in one step: readers see the old file or the new one.

    Other lines of a `.env` file stay.

    Args:
        path: Its name says the form, see the table of this module.
        models: The LLM of each module.
        facts: Further entries of the JSON or YAML file.
        private: Whether only its owner may read it.

    Returns:
        The path.

    Raises:
        InputError: If the name says no form, the modules cannot be told apart as variables, or the
            file cannot be written, or holds something else.

    Examples:
        >>> path = save_models("models.json", {"planner": "medium"}, {"certified": True})
        >>> print(path.read_text())
        {
          "version": 1,
          "models": {
            "planner": "medium"
          },
          "certified": true
        }
        <BLANKLINE>
        >>> print(save_models(".env", {"planner": "medium"}, {}).read_text())
        # module "planner"
        SCOPE_PLANNER=medium
        <BLANKLINE>
    """
    path = Path(path)
    content = {"version": VERSION, "models": dict(models), **facts}
    text = _form(path)(content)
    if (before := _text_before(path)).strip():
        if _is_env(path):
            text = _lines_of_others(before, text) + text
        elif not _is_ours(path, before):
            raise InputError(f"{path} {_OF_OTHERS}")
    make_folder(path.parent)
    write_atomically(path, text, private=private)
    return path


def load_models(path: Path | str) -> dict[str, str]:
    """The LLM of each module, from a file that `RunResult.save` has written.

    Args:
        path: A `*.json`, `*.yaml`, `.env` or `litellm*.yaml` file; the LLMs of the last have
            LiteLLM's names, with the provider in front.

    Raises:
        InputError: If the file cannot be read, or is none of these.

    Examples:
        >>> load_models(save_models("models.yaml", {"planner": "medium"}, {}))
        {'planner': 'medium'}
    """
    return load_chain(path)[0]


def load_chain(path: Path | str) -> list[dict[str, str]]:
    """The LLM of each module as chosen, and then of each of its fallbacks.

    Args:
        path: As for `load_models`.

    Raises:
        InputError: Likewise, or if a fallback has other modules.

    Examples:
        >>> facts = {"fallbacks": [{"models": {"planner": "large"}, "basis": "reference"}]}
        >>> load_chain(save_models("models.json", {"planner": "medium"}, facts))
        [{'planner': 'medium'}, {'planner': 'large'}]
    """
    path = Path(path)
    _form(path)
    text = _text_of(path)
    mend = "write it with result.save()"
    try:
        chain = [_from_env(text)] if _is_env(path) else _from_content(_parsed(path, text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} gives no LLM for each module ({error}); {mend}") from error
    for number, models in enumerate(chain):
        named = all(isinstance(v, str) and v for pair in models.items() for v in pair)
        if not (models and named and models.keys() == chain[0].keys()):
            where = f" in fallback {number}" if number else ""
            raise InputError(f"{path} gives no LLM for each module{where}; {mend}")
    return [{module: choice_of(llm) for module, llm in models.items()} for models in chain]


def _text_before(path: Path) -> str:
    """What a file holds that is written now; "" if there is none."""
    try:
        # With its own ends of lines.
        return path.read_bytes().decode("utf-8-sig") if path.exists() else ""
    except UnicodeDecodeError as error:
        raise InputError(f"{path} {_OF_OTHERS}") from error
    except OSError as error:
        raise cannot_write(path, error) from error


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # as editors of Windows write it
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}; write it with result.save()") from error


def _is_ours(path: Path, text: str) -> bool:
    """Whether a JSON or YAML file is one that `save_models` has written."""
    try:
        content = _parsed(path, text)
        if _form(path) is _litellm:
            names = [entry["model_name"] for entry in content["model_list"]]
            return content.keys() == {"model_list"} and all(n.startswith("scope/") for n in names)
        return bool(_from_content(content))
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def _lines_of_others(before: str, text: str) -> str:
    """The lines of a `.env` file that are neither ours nor about a variable of the new text."""
    names = {line.partition("=")[0] for line in text.splitlines() if not line.startswith("#")}
    kept: list[str] = []
    is_named = False  # by the comment above
    # Not splitlines(), which also splits at characters that may be part of a value.
    for line in before.removesuffix("\n").split("\n"):
        name = line.partition("=")[0].removeprefix("export ").strip()
        if not (line.startswith(_MODULE) or name in names or (is_named and _is_variable(line))):
            kept.append(line)
        is_named = line.startswith(_MODULE)
    return "".join(f"{line}\n" for line in kept)


def _is_variable(line: str) -> bool:
    return line.startswith("SCOPE_")


def _form(path: Path) -> Callable[[Mapping[str, Any]], str]:
    """What makes the text of a file with this name."""
    if _is_env(path):
        return _env
    if path.suffix == ".json":
        return _json
    if path.suffix in (".yaml", ".yml"):
        return _litellm if path.name.startswith("litellm") else _yaml
    raise InputError(f"{path.name!r} says no form of file; name it {_NAMES}")


def names_models(path: Path | str) -> bool:
    """Whether a file of this name could be one that `load_models` reads."""
    return _is_env(Path(path)) or Path(path).suffix in (".json", ".yaml", ".yml")


def holds_fallbacks(path: Path | str) -> bool:
    """Whether a file of this name is JSON or YAML of one's own."""
    return Path(path).suffix in (".json", ".yaml", ".yml") and _form(Path(path)) is not _litellm


def _is_env(path: Path) -> bool:
    return path.name == ".env" or path.suffix == ".env"


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _yaml(content: Mapping[str, Any]) -> str:
    import yaml

    plain = json.loads(json.dumps(content))  # it knows no texts of other types
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


def _env(content: Mapping[str, Any]) -> str:
    lines: list[str] = []
    names: dict[str, str] = {}
    for module, llm in content["models"].items():
        name = variable_of(module)
        if name in names:
            raise InputError(
                f"modules {names[name]!r} and {module!r} would both be {name}; save a *.json file"
            )
        # A shell, python-dotenv and Docker read these in different ways.
        if not llm.isprintable() or any(char in llm for char in "'\"`$\\"):
            raise InputError(f"llm {llm!r} has characters that .env cannot hold; save a *.json")
        names[name] = module
        lines += [f"{_MODULE}{json.dumps(module)}", f"{name}={shlex.quote(llm)}"]
    return "\n".join(lines) + "\n"


def _litellm(content: Mapping[str, Any]) -> str:
    import yaml

    model_list = [
        {"model_name": f"scope/{module}", "litellm_params": _params(LLM.parse(llm))}
        for module, llm in content["models"].items()
    ]
    note = (
        "# openai/ stands for any endpoint of this kind: set OPENAI_API_BASE and OPENAI_API_KEY.\n"
    )
    return note + yaml.safe_dump({"model_list": model_list}, sort_keys=False, allow_unicode=True)


def _params(choice: LLM) -> dict[str, Any]:
    """What LiteLLM sends, docs.litellm.ai/docs/completion/input and /reasoning_content."""
    params: dict[str, Any] = {"model": _of_litellm(choice.llm)}
    for factor, value in choice.factors.items():
        if factor not in _PARAMS:
            raise InputError(
                f"{str(choice)!r}: LiteLLM knows no {factor}, which is the application's own; save "
                "a *.json file"
            )
        params[_PARAMS[factor]] = value
    budget = params.pop(_BUDGET, None)
    if budget is not None:
        kind = {"type": "enabled", "budget_tokens": budget}
        params["thinking"] = kind if budget else {"type": "disabled"}
    return params


def _choice(params: Mapping[str, Any]) -> str:
    """The inverse of `_params`."""
    told = dict(params)
    if "thinking" in told:
        told[_BUDGET] = told["thinking"].get("budget_tokens", 0)
    factors = {factor: told[key] for factor, key in _PARAMS.items() if key in told}
    return LLM(params["model"], **factors)


def _of_litellm(llm: str) -> str:
    """The name with its provider in front."""
    provider, separator, _ = llm.partition("/")
    if separator and provider in _PROVIDERS.split():
        return llm
    families = [p for start, p in _FAMILIES.items() if llm.startswith(start)]
    return f"{(families or ['openai'])[0]}/{llm}"


def _parsed(path: Path, text: str) -> Any:
    if path.suffix == ".json":
        return json.loads(text, object_pairs_hook=unique_keys)
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


def _from_content(content: Any) -> list[dict[str, str]]:
    if "model_list" in content:
        names = (
            (entry["model_name"].removeprefix("scope/"), _choice(entry["litellm_params"]))
            for entry in content["model_list"]
        )
        return [dict(names)]
    if content.get("version") != VERSION:
        raise ValueError(f"version={content.get('version')!r} must be {VERSION}")
    chain = [content, *content.get("fallbacks", ())]
    return [dict(one["models"]) for one in chain]


def _from_env(text: str) -> dict[str, str]:
    models: dict[str, str] = {}
    module, lines = None, [line.removeprefix("export ") for line in text.splitlines()]
    are_named = any(line.startswith(_MODULE) for line in lines)  # others are of something else
    for line in [*lines, f"{_MODULE}null"]:  # the last one only ends the file
        if line.startswith(_MODULE):
            if module is not None:
                raise ValueError(f"no variable stands below module {module!r}")
            module = json.loads(line.removeprefix(_MODULE))
        elif _is_variable(line) and (module or not are_named):
            name, _, value = line.partition("=")
            (llm,) = shlex.split(value)
            models[module or name.removeprefix("SCOPE_").lower()] = llm
            module = None
    return models
