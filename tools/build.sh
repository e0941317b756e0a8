#!/bin/sh
# Builds wheel and sdist from this folder: tools/build.sh dist
set -eu
venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT
"${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check 'hatchling>=1.27' 'hatch-fancy-pypi-readme>=24.1'
"$venv/bin/python" -m hatchling build -d "$1"
