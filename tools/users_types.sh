#!/bin/sh
# Has mypy and pyright check a user's script against the installed package, both in strict mode: tools/users_types.sh .venv/bin
set -eu
bin=$(cd "$1" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp tests/support/users_script.py "$folder"
cd "$folder" # where no settings of this project are found
"$bin/mypy" --strict --config-file= --cache-dir=cache users_script.py
echo '{"typeCheckingMode": "strict"}' > pyrightconfig.json
"$bin/basedpyright" --pythonpath "$bin/python" users_script.py
