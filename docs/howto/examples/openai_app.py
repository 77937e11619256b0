"""An unchanged application: OpenAI."""

import sys

from openai import OpenAI

client = OpenAI()


def ask(module, text):
    messages = [{"role": "user", "content": text}]
    reply = client.chat.completions.create(model=f"scope/{module}", messages=messages)
    return reply.choices[0].message.content


plan = ask("planner", f"Plan the answer to: {sys.argv[1]}")
print(ask("solver", f"{sys.argv[1]} Plan: {plan}"))
