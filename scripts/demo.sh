#!/usr/bin/env bash
# The whole pipeline on this machine, for YOLOv2: from cores to a table and a page, in minutes.
set -euo pipefail
folder=${1:-demo}
mkdir -p "$folder"
cd "$folder"

step() { printf '\n\033[1m%s\033[0m\n' "$*" >&2; "$@"; }

step codl devices
step codl soc detect --serial local --name host
# The measurements that a predictor learns most from, within the budget; added to a dataset that is there.
step codl collect --soc host --serial local --models yolov2 --resume --budget 60s \
    --datasets lat_datasets
# The predictors of the strategies below; without --no-evaluate it says how accurate they are.
step codl train --soc host --predictor codl --predictor codl_linear --predictor flops_linear \
    --no-evaluate --json > train.json
step codl search yolov2 --soc host -o plan.json
step codl eval --soc host --serial local --models yolov2 \
    --strategies cpu,gpu,mulayer,codl-paper,codl --time 10s -o eval.json
step codl report eval.json -o report.html

printf '\nLeft in %s:\n' "$folder" >&2
ls -d lat_datasets predictors plan.json eval.json report.html >&2
