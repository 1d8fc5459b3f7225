#!/usr/bin/env bash
# Install what the tests of the page need where it is missing: Debian's Chromium, for which this must run as root, and
# axe-core, where npm is, into build/. axe-core (MPL-2.0) is for tests alone, and no part of Hopfleet.
set -euo pipefail
cd "$(dirname "$0")/.."
if command -v npm >/dev/null 2>&1 && [ ! -e build/node_modules/axe-core ]; then
  mkdir -p build
  npm install --prefix build --no-save --no-package-lock --no-audit --no-fund --silent axe-core@4 || echo "axe-core is not installed" >&2
fi
if command -v chromium chromium-browser google-chrome >/dev/null 2>&1; then
  exit 0
fi
apt-get update -qq
apt-get install --yes --no-install-recommends -qq chromium
