#!/usr/bin/env bash
# Everything that needs a GPU, from a checkout with the extra `dev`: figures and logs go into a folder, part by part.
#   tools/gpu_check.sh [FOLDER]          (gpu-check by default)
cd "$(dirname "$0")/.." || exit 1
folder=${1:-gpu-check}
mkdir -p "$folder"
part() { # NAME COMMAND...: one part, at most seven minutes; a failure ends no other part
    name=$1; shift
    timeout 420 python3 -m "$@" -o "$folder/$name.json" > "$folder/$name.log" 2>&1
    echo "$name: exit status $?, $folder/$name.log"
}
bench=(sira_cli bench --device cuda --overwrite --max-new-tokens 32,64)
for dtype in float32 bfloat16; do part "gpu-conformance-$dtype" tools.gpu_conformance --dtype $dtype; done
part gpu-llava-1.5-7b "${bench[@]}" --shape llava-1.5-7b --method sira,vcd --runs 8
part gpu-llava-1.5-7b-batch-8 "${bench[@]}" --shape llava-1.5-7b --method sira,vcd -b 8 --runs 5
part gpu-qwen2.5-vl-7b "${bench[@]}" --shape qwen2.5-vl-7b --method sira,vcd -b 1,8 --image-tokens 1300 --runs 3
part gpu-qwen3.5-9b "${bench[@]}" --shape qwen3.5-9b --method sira --image-tokens 609 --runs 3
part gpu-gemma4-26b-a4b "${bench[@]}" --shape gemma4-26b-a4b --method sira --runs 3
