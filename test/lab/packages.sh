#!/usr/bin/env bash
# Installs the Debian packages of packages.txt, and those named as arguments, that are missing, and has apt know the package
# of the guest's kernel, which is downloaded but not installed. Prints nothing when nothing is to be done.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

command -v dpkg-query >/dev/null || {
  echo "this machine has no dpkg: install the equivalents of these packages by hand: $(sed '/^#/d' packages.txt | xargs)" >&2
  exit 1
}
missing=()
while read -r package; do
  [[ -z $package || $package == \#* ]] && continue
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $status == installed ]] || missing+=("$package")
done < <(cat packages.txt && printf '%s\n' "$@")
apt_knows_kernel() { [[ $(apt-cache show linux-image-amd64 2>/dev/null) ]]; }
if ((${#missing[@]} == 0)); then
  apt_knows_kernel || ((EUID != 0)) || apt-get -qq update
  exit 0
fi

if ((EUID != 0)); then
  echo "missing packages: as root, run: apt-get install --no-install-recommends ${missing[*]}" >&2
  exit 1
fi
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null || {
  echo "apt-get could not install: ${missing[*]}" >&2
  exit 1
}
