#!/usr/bin/env bash
# Makes a virtual environment with the first Python from 3.11 to 3.13 that it finds: scripts/environment.sh .venv
# PYTHON=/path/to/python chooses one. An environment that works already is kept.
set -euo pipefail

venv=${1:?usage: scripts/environment.sh FOLDER}
root=$(cd "$(dirname "$0")/.." && pwd)
supported='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'

fail() {
    printf 'setup: %s\n' "$@" >&2
    exit 2
}

find_python() {
    local name
    for name in ${PYTHON:-python3 python3.11 python3.12 python3.13}; do
        if "$name" -c "$supported" 2>/dev/null; then
            echo "$name"
            return
        fi
    done
}

if ! "$venv/bin/python" -c "$supported" 2>/dev/null || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    if [ -z "$python" ]; then
        fail "no Python from 3.11 to 3.13 found (tried: ${PYTHON:-python3, python3.11, python3.12, python3.13})." \
            "On Debian or Ubuntu: apt-get install python3 python3-venv. Or name one: make setup PYTHON=/path/to/python"
    fi
    version=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    # Debian and Ubuntu ship `venv` without what it needs to install pip, in a package of its own.
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        fail "$version can't make virtual environments here." "On Debian or Ubuntu: apt-get install $version-venv"
    fi
    echo "setup: $venv with $version ($(command -v "$python"))"
    "$python" -m venv --clear "$venv"
fi

# Debian's pip is older than dependency groups (25.1), so the environment gets the one that constraints.txt pins.
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint "$root/constraints.txt" --upgrade pip
