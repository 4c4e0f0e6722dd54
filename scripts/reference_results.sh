#!/usr/bin/env bash
# The result files of docs/results, made anew: scripts/reference_results.sh SOC [option of soc detect ...]
#
#   scripts/reference_results.sh host                     # this machine
#   scripts/reference_results.sh h200 --opencl-device nvidia     # one with a GPU
#
# Nothing else should run meanwhile, and it takes about half an hour. It needs the libraries of
# `codl[peers]` too. Datasets, predictors and bundles lie in demo/reference; `make docs` renders the
# tables afterwards.
set -euo pipefail
name=${1:?name a SoC, such as host}
shift
root=$(cd "$(dirname "$0")/.." && pwd)
results=$root/docs/results
mkdir -p "$results" "$root/demo/reference"
cd "$root/demo/reference"

step() { printf '\n\033[1m%s\033[0m\n' "$*" >&2; "$@"; }
codl() { step python -c 'from codl.cli import main; main()' "$@"; }
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}

measured=retinaface,yolov2,vgg16,posenet,fast_style_transfer,mobilenet_v2,resnet50
strategies=cpu,gpu,mulayer,codl-paper,codl

codl soc detect --serial local --name "$name" "$@"
step python "$root/scripts/conformance.py" --soc "$name" \
    -o "$results/conformance-$name.json"
step python "$root/scripts/validate_models.py" --soc "$name" --ways gpu \
    -o "$results/validate-$name.json"
codl collect --soc "$name" --budget 5m --json > "$results/collect-$name.json"
codl train --soc "$name" --json > "$results/train-$name.json"
codl eval --soc "$name" --models "$measured" --strategies "$strategies" --peers ort,ncnn,openvino --time 3s \
    --no-timelines -o "$results/eval-$name.json"
codl eval --soc "$name" --models alexnet,mobilenet_v1,resnet50_v2,bert,matmul,op_chain \
    --strategies cpu,gpu,codl --time 2s \
    --no-timelines -o "$results/eval-unmeasured-$name.json"
codl eval --soc "$name" --models mobilenet_v2 --batch 4 --strategies cpu,gpu,codl --time 4s \
    --no-timelines -o "$results/eval-batch-$name.json"
# README's picture, of a plan and its timeline.
codl eval --soc "$name" --models yolov2 --strategies cpu,gpu,codl --time 5s \
    -o "$results/eval-split-$name.json"
for model in mobilenet_v2 yolov2 vgg16; do
    codl package "$model" --soc "$name" -o "$model.codl" --json \
        > "$results/package-$model-$name.json"
done
