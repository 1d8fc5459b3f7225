#!/usr/bin/env bash
# Install the Redis in which tests keep the state of a Ray head, where it is missing; this must run as root. Debian's
# redis-tools brings the program without a service that would start; called by its other name, it is the server.
set -euo pipefail
cd "$(dirname "$0")/.."
if command -v redis-server >/dev/null 2>&1; then
  exit 0
fi
if ! command -v redis-check-rdb >/dev/null 2>&1; then
  apt-get update -qq
  apt-get install --yes --no-install-recommends -qq redis-tools
fi
mkdir -p build/redis
ln -sf "$(command -v redis-check-rdb)" build/redis/redis-server
build/redis/redis-server --version
