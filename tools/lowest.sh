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
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check --constraint "$folder/constraints.txt" \
  --editable ".[lowest-test]"
touch "$folder/.installed-lowest"
