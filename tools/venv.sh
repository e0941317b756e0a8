#!/bin/sh
# Makes a virtual environment and installs this project into it with a dependency group: tools/venv.sh .venv dev
# The versions are those of requirements-dev.lock, or the newest with LOCK= and where those cannot be had. It is uv that
# installs, from the index that pip is set to; where uv cannot, pip does.
set -eu
folder=$1
group=$2
lock=${LOCK-requirements-dev.lock}
python=${PYTHON:-python3}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "looktwice needs Python 3.11 or newer; '$python' is $("$python" --version). Set PYTHON=/path/to/python3.11." >&2
  exit 1
}
if ! "$python" -m venv "$folder" 2>/dev/null; then
  echo "This Python cannot make virtual environments yet; installing Debian's python3-venv ..."
  wait='-o DPkg::Lock::Timeout=300' # for tools/browser.sh, which may be at it
  as_root=$([ "$(id -u)" = 0 ] || echo sudo)
  $as_root apt-get update -qq $wait && $as_root apt-get install -y -qq $wait python3-venv
  "$python" -m venv "$folder"
fi
pip="$folder/bin/python -m pip --disable-pip-version-check"
wanted="--editable . --group $group"

setting() { # what pip is told by its files or the environment
  $pip config list | sed -n "s/^[a-z:]*\.$1='\(.*\)'$/\1/p" | tail -n 1
}
with_uv() {
  $pip install --quiet uv || return
  index=$(setting index-url)
  links=$(setting find-links)
  cert=$(setting cert)
  # shellcheck disable=SC2086
  env ${cert:+SSL_CERT_FILE="$cert"} "$folder/bin/uv" pip install --quiet --no-config --python "$folder/bin/python" ${index:+--default-index "$index"} \
    ${links:+--find-links "$links"} ${lock:+--constraint "$lock"} $wanted
}
with_pip() {
  # shellcheck disable=SC2086
  $pip install --quiet 'pip>=25.1' || return # the first that knows dependency groups
  $pip install --quiet ${lock:+--constraint "$lock"} $wanted
}
with_uv || with_pip || {
  [ "$lock" ]
  echo "The versions of $lock cannot be installed here; installing the newest ..."
  lock=
  with_uv || with_pip
}
touch "$folder/.installed-$group"
