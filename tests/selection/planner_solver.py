"""An application of two modules as somebody may have it: it knows nothing of this package."""

import os
import sys

from openai import OpenAI

PLANNER = os.environ.get("PLANNER_MODEL", "large")
SOLVER = os.environ.get("SOLVER_MODEL", "large")


def ask(client, model, prompt):
    messages = [{"role": "user", "content": prompt}]
    reply = client.chat.completions.create(model=model, messages=messages, max_tokens=100)
    return reply.choices[0].message.content, reply.usage


def plan_and_solve(client, question, planner=PLANNER, solver=SOLVER):
    plan, planned = ask(client, planner, f"Plan: {question}")
    answer, solved = ask(client, solver, f"Solve: {question} By: {plan}")
    return answer, planned, solved


if __name__ == "__main__":
    print(plan_and_solve(OpenAI(), sys.argv[1])[0])
