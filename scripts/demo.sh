#!/usr/bin/env bash
# The whole pipeline on this machine, for YOLOv2: from cores to a table and a page, in minutes.
set -euo pipefail
folder=${1:-demo}
mkdir -p "$folder"
cd "$folder"

step() { printf '\n\033[1m%s\033[0m\n' "$*" >&2; "$@"; }

step codl devices
step codl soc detect --serial local --name host
# A dataset that is there is kept: only what is missing is measured.
step codl collect --soc host --serial local --ops yolov2 --shares 0.2,0.4,0.6,0.8,1 \
    --resume -o lat_datasets
step codl train --soc host --json > train.json
step codl search yolov2 --soc host -o plan.json
step codl eval --soc host --serial local --models yolov2 \
    --strategies cpu,gpu,mulayer,codl-paper,codl,ideal --seconds 15 -o eval.json
step codl report eval.json train.json -o report.html

printf '\nLeft in %s:\n' "$folder" >&2
ls -d lat_datasets predictors plan.json eval.json report.html >&2
