#!/usr/bin/env bash
# Install Debian's Chromium where it is missing, for the tests of the page (tests/ui/test_browser.py). Needs root.
set -euo pipefail
if command -v chromium chromium-browser google-chrome >/dev/null 2>&1; then
  exit 0
fi
apt-get update -qq
apt-get install --yes --no-install-recommends -qq chromium
