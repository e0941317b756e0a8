#!/bin/sh
# Makes a virtual environment and installs this project into it with a dependency group: tools/venv.sh .venv dev
# LOCK=requirements-dev.lock installs the very versions that are named there.
set -eu
folder=$1
group=$2
python=${PYTHON:-python3}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "looktwice needs Python 3.11 or newer; '$python' is $("$python" --version). Set PYTHON=/path/to/python3.11." >&2
  exit 1
}
if ! "$python" -m venv "$folder" 2>/dev/null; then
  echo "This Python cannot make virtual environments yet; installing Debian's python3-venv ..."
  as_root=$([ "$(id -u)" = 0 ] || echo sudo)
  $as_root apt-get update -qq && $as_root apt-get install -y -qq python3-venv
  "$python" -m venv "$folder"
fi
install="$folder/bin/python -m pip install --quiet --disable-pip-version-check"
$install 'pip>=25.1' # the first that knows dependency groups
$install ${LOCK:+--constraint "$LOCK"} --editable . --group "$group"
touch "$folder/.installed-$group"
