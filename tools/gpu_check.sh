#!/usr/bin/env bash
# Everything that needs a GPU, in one command of at most 40 minutes: figures and a report. `--help` names the parts.
#   tools/gpu_check.sh [-o FOLDER] [--tiny] [PART...]
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 -m tools.gpu_check "$@"
