#!/bin/sh
# Makes an environment for each model server that tests/classifiers/test_real_servers.py asks: tools/servers.sh .venv-servers
# They are apart from the product's own environment, and from each other, because their dependencies disagree.
set -eu
folder=$1
python=${PYTHON:-python3}
model="onnxruntime>=1.20 numpy pillow"
mkdir -p "$folder"

# install NAME REQUIREMENT...: nothing to do if the same was installed before
install() {
  name=$1
  shift
  wanted="$("$python" --version) $*"
  if [ "$(cat "$folder/$name/installed" 2>/dev/null || true)" = "$wanted" ]; then return; fi
  echo "installing $* ..."
  rm -rf "${folder:?}/$name"
  "$python" -m venv "$folder/$name"
  "$folder/$name/bin/python" -m pip install --quiet --disable-pip-version-check "$@" 2>"$folder/$name/log" || {
    cat "$folder/$name/log" >&2
    return 1
  }
  echo "$wanted" >"$folder/$name/installed"
}

# Side by side: half of the work is downloading.
first() {
  install mlserver mlserver==1.7.1 $model
  install litserve litserve==0.2.19 $model
}
second() {
  install bentoml bentoml==1.4.39 $model
  install kserve kserve==0.21.0 $model
}
third() {
  # Triton comes as a program for Linux on x86-64, and starts its models in a Python that must be a shared library.
  shared=$("$python" -c 'import platform, sys, sysconfig
print(sys.platform == "linux" and platform.machine() == "x86_64" and bool(sysconfig.get_config_var("Py_ENABLE_SHARED")))')
  if [ "$shared" = True ]; then install triton nvidia-pytriton==0.7.0 $model; fi
}
first &
one=$!
second &
two=$!
third &
three=$!
wait $one
wait $two
wait $three
