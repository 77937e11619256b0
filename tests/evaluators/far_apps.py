"""Applications that other processes import; each writes a line for each of its calls."""

import os
import random
import signal
import time
from pathlib import Path

import httpx

from scope_torch.serve.current import base_url

PRICE = {"nano": 1e-4, "mini": 4e-4, "pro": 1e-2}  # USD of a call
SKILL = {"nano": 0.6, "mini": 0.99, "pro": 1.0}


def log(folder, line):
    with open(Path(folder) / "calls.txt", "a") as file:
        file.write(line + "\n")


def calls(folder):
    """(process, models, input) of each call."""
    path = Path(folder) / "calls.txt"
    return [line.split(" | ") for line in path.read_text().splitlines()] if path.exists() else []


class App:
    """Two modules; an input in capitals is the right answer.

    The process that runs its call number `kills_at` is killed in it, once.
    """

    def __init__(self, folder, kills_at=None):
        self.folder, self.kills_at = str(folder), kills_at

    def __call__(self, models, text):
        log(self.folder, f"{os.getpid()} | {' '.join(models.values())} | {text}")
        if self.kills_at is not None and len(calls(self.folder)) >= self.kills_at:
            try:
                (Path(self.folder) / "killed").touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        luck = random.Random(f"{sorted(models.items())} {text}")
        is_right = all(luck.random() < SKILL[llm] for llm in models.values())
        return text.upper() if is_right else text, sum(PRICE[llm] for llm in models.values())


def in_capitals(expected, output):
    return float(expected == output)


class Odd(Exception):
    """Pickled, it could not be made again."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")
        self.cost_usd = 0.25


def raises_odd(models, text):
    raise Odd("this", "that")


def returns_a_lock(models, text):
    import threading

    return threading.Lock(), 0.01


def always_killed(models, text):
    os.kill(os.getpid(), signal.SIGKILL)


async def later(models, text):
    return text.upper(), sum(PRICE[llm] for llm in models.values())


def graded(assignment, text):
    return float(text == "a"), 0.5


def ask(module, prompt):
    body = {"model": f"scope/{module}", "messages": [{"role": "user", "content": prompt}]}
    # Without TLS there is nothing to verify; the certificates would be read for every call.
    reply = httpx.post(f"{base_url()}/chat/completions", json=body, timeout=60, verify=False)
    reply.raise_for_status()
    return reply.json()["choices"][0]["message"]["content"]


def answers(question):
    return ask("answer", question)


def judges(expected, output):
    return float(ask("judge", f"Grade {expected} {output}"))


class KilledOnce:
    """Asks in the place of `function`; once it is killed after its call number `at` has asked."""

    def __init__(self, function, folder, at):
        self.function, self.folder, self.at = function, str(folder), at

    def __call__(self, expected, output=None):
        given = [expected] if output is None else [expected, output]
        found = self.function(*given)
        log(self.folder, str(os.getpid()))
        if len(calls(self.folder)) == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        return found


class SlowApp(App):
    def __call__(self, models, text):
        found = super().__call__(models, text)
        time.sleep(0.2)
        return found
