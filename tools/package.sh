#!/bin/sh
# Installs the wheel as the README says into a clean environment, and runs the demo and the README's Python example there:
# tools/package.sh [FOLDER], where FOLDER has wheel and sdist; they are built if it is left out.
set -eu
here=$(pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
quiet="--quiet --disable-pip-version-check"

dist=$(mkdir -p "${1:-$folder/dist}" && cd "${1:-$folder/dist}" && pwd)
[ $# -gt 0 ] || sh tools/build.sh "$dist"
wheel=$(echo "$dist"/*.whl)
sdist=$(echo "$dist"/*.tar.gz)

# The sdist is whole: a wheel made from it holds the same files as the one made here.
mkdir "$folder/again" "$folder/source"
tar -xzf "$sdist" -C "$folder/source" --strip-components 1
(cd "$folder/source" && sh tools/build.sh "$folder/again")
"$python" - "$wheel" "$folder"/again/*.whl <<'PY'
import re, sys, zipfile
first, second = (sorted(zipfile.ZipFile(path).namelist()) for path in sys.argv[1:])
assert first == second, set(first) ^ set(second)
needed = ("py.typed", "demo/fashion.onnx", "demo/pictures.npz", "report/templates/report.html", "service/page/index.html",
          "classifiers/presets/hf.toml")
assert all(f"looktwice/{name}" in first for name in needed), first
strangers = [name for name in first if not name.startswith(("looktwice/", "looktwice-"))]
assert not strangers, strangers
print(f"{len(first)} files in the wheel")
wheel = zipfile.ZipFile(sys.argv[1])
metadata = wheel.read(next(name for name in first if name.endswith("/METADATA"))).decode()
relative = re.findall(r"\]\((?!https?:|#)[^)]+\)", metadata)
assert not relative and "](https://" in metadata, f"links that lead nowhere on a package index: {relative}"
PY

"$python" -m venv "$folder/clean"
# shellcheck disable=SC2086
"$folder/clean/bin/pip" install $quiet "$wheel[onnx,serve]"
mkdir "$folder/elsewhere"
cd "$folder/elsewhere"
"$folder/clean/bin/looktwice" --version
"$folder/clean/bin/looktwice" demo -o demo > demo.txt
tail -n 5 demo.txt
test -s demo/profile.json
"$folder/clean/bin/python" "$here/tools/readme_example.py" "$here/README.md"
