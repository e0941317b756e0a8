#!/bin/sh
# Makes a Chromium available for the tests of the page, from Debian's packages: tools/browser.sh
# Where that is not possible it says so and is content: those tests are then skipped, with the reason.
for name in "${CHROMIUM:-}" chromium chromium-browser google-chrome; do
  if [ -n "$name" ] && command -v "$name" >/dev/null 2>&1; then exit 0; fi
done
if ! command -v apt-get >/dev/null 2>&1; then
  echo "There is no Chromium, and no apt-get to install it with: the tests of the page will be skipped." >&2
  exit 0
fi
as_root=
if [ "$(id -u)" != 0 ]; then
  as_root="sudo -n"
  if ! $as_root true 2>/dev/null; then
    echo "There is no Chromium, and no right to install it: the tests of the page will be skipped." >&2
    exit 0
  fi
fi
echo "installing Debian's chromium ..."
log=$(mktemp)
if ! { $as_root apt-get update -qq -o DPkg::Lock::Timeout=300 && $as_root apt-get install -y -qq -o DPkg::Lock::Timeout=300 --no-install-recommends chromium; } >"$log" 2>&1; then
  tail -n 5 "$log" >&2
  echo "Chromium could not be installed: the tests of the page will be skipped." >&2
fi
rm -f "$log"
exit 0
