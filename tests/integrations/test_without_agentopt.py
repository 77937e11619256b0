"""The package where agentopt-py is not installed."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_package_imports_no_agentopt_and_the_selector_says_what_to_install():
    code = (
        "import scope_torch, sys; scope_torch.select; print('agentopt' in sys.modules)\n"
        "sys.modules['agentopt'] = None\n"
        "import scope_torch.integrations.agentopt as module\n"
        "module.ScopeSelector()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
    assert done.stderr.splitlines()[-1] == (
        "ImportError: ScopeSelector needs agentopt-py: pip install 'scope-torch[peers]'"
    )
