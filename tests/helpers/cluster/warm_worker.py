"""Ray's workers as forks of a warm process, in place of Ray's own ``setup_worker.py``.

That one imports Ray only to start another Python, which imports Ray, Hopfleet and PyTorch: seconds of processor time
for each actor. What it prepares beside environment variables is left to it. A fork imports Ray itself, since Ray looks
at the environment when it is imported. The agents of nodes, which are no workers, start in the same way.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
RAY_OWN = "_private/workers/setup_worker.py"


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--serialized-runtime-env-context", default="{}")
    parser.add_argument("--language")
    known, command = parser.parse_known_args(words)
    context = json.loads(known.serialized_runtime_env_context)
    variables = context.pop("env_vars", {})
    if context.get("command_prefix") or context.get("py_executable", sys.executable) != sys.executable:
        own = next(parent for parent in Path(command[0]).parents if parent.name == "ray") / RAY_OWN
        os.execv(sys.executable, [sys.executable, str(own), *words])
    sys.path.insert(0, str(ROOT))
    from tests.helpers.warm import Popen

    sys.exit(Popen([sys.executable, *command], env={**os.environ, **variables}).wait())


if __name__ == "__main__":
    main(sys.argv[1:])
