"""An unchanged application: Anthropic, with a stream."""

import sys

from anthropic import Anthropic

client = Anthropic()


def ask(module, text):
    messages = [{"role": "user", "content": text}]
    with client.messages.stream(
        model=f"scope/{module}", max_tokens=500, messages=messages
    ) as stream:
        return "".join(stream.text_stream)


plan = ask("planner", f"Plan the answer to: {sys.argv[1]}")
print(ask("solver", f"{sys.argv[1]} Plan: {plan}"))
