"""An unchanged application: Google's client, with a stream."""

import sys

from google import genai

client = genai.Client()


def ask(module, text):
    chunks = client.models.generate_content_stream(model=f"scope/{module}", contents=text)
    return "".join(chunk.text for chunk in chunks)


plan = ask("planner", f"Plan the answer to: {sys.argv[1]}")
print(ask("solver", f"{sys.argv[1]} Plan: {plan}"))
