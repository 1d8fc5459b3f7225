#!/usr/bin/env bash
# Make an environment with JupyterLab, for the last test of tests/ui/test_jupyter.py, and print its folder. The kernel
# finds Hopfleet and its packages in .venv, which must be there.
set -euo pipefail
cd "$(dirname "$0")/.."
place=$PWD/build/jupyter
if [ ! -x "$place/bin/jupyter-lab" ]; then
  .venv/bin/python -m venv --without-pip "$place" >&2
  .venv/bin/pip --python "$place/bin/python" install --quiet --no-compile jupyterlab >&2
fi
"$place/bin/python" - "$PWD" <<'CODE'
import subprocess, sys, sysconfig
from pathlib import Path

found = subprocess.check_output([f"{sys.argv[1]}/.venv/bin/python", "-c", "import site; print(*site.getsitepackages(), sep='\\n')"])
Path(sysconfig.get_path("purelib"), "hopfleet.pth").write_text(f"{sys.argv[1]}/src\n{found.decode()}")
CODE
echo "$place"
