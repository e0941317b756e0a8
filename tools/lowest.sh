#!/bin/sh
# Makes an environment with the oldest libraries that this project allows: tools/lowest.sh .venv-lowest
set -eu
folder=$1
extras="aws onnx parquet postgres serve sklearn"
python=${PYTHON:-python3}

[ -x "$folder/bin/python" ] || "$python" -m venv "$folder"
# shellcheck disable=SC2086
"$folder/bin/python" tools/lowest.py $extras > "$folder/constraints.txt"
cat "$folder/constraints.txt"
LOCK="$folder/constraints.txt" sh tools/venv.sh "$folder" lowest
