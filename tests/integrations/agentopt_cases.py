"""Questions, LLMs that know more of them the dearer they are, and arguments of a selector."""

import random

# As in AgentOpt's list, which lacks o1; the published price of gpt-4o-mini is less than half.
USD_PER_MTOK = {"gpt-4o-mini": (0.4, 1.6), "gpt-4o": (2.5, 10.0), "o1": (15.0, 60.0)}
LLMS = list(USD_PER_MTOK)
SKILL = {"gpt-4o-mini": 0.7, "gpt-4o": 0.97, "o1": 1.0}
DATASET = [(f"question {i}", "yes") for i in range(40)]
PRICE_OF_O1 = {"o1": {"input_price": 15.0, "output_price": 60.0}}


def answer_of(llm, text):
    return "yes" if random.Random(f"{llm} {text}").random() < SKILL[llm] else "no"


def answer(request):
    return answer_of(request["model"], request["messages"][0]["content"])


def arguments(agent, **more):
    """Of a selector."""
    import agentopt

    given = {
        "agent": agent,
        "models": {"planner": LLMS, "solver": LLMS},
        "eval_fn": lambda expected, actual: expected == actual,
        "dataset": DATASET,
        "tracker": agentopt.LLMTracker(cache=False),
        "model_prices": PRICE_OF_O1,
    }
    return given | more


def facts(results):
    return [(one.model_name, one.accuracy, one.price, one.is_best) for one in results]
