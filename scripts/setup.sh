#!/bin/sh
# Makes .venv ready: `scripts/setup.sh run` to serve, `scripts/setup.sh test` for the tests as well.
# Does nothing when what is installed is what pyproject.toml and constraints.txt ask for.
set -eu

cd "$(dirname "$0")/.."
what=${1:-run}
venv=.venv
log=$venv/setup.log

say() { printf '%s\n' "$*"; }
fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

case $what in
run) wanted=. ;;
test) wanted='.[test]' ;;
*) fail "usage: scripts/setup.sh run|test" ;;
esac

# What an installation depends on; the folder too, since it is an editable one.
fingerprint() { { pwd && cat pyproject.toml constraints.txt scripts/setup.sh; } | cksum; }

installed() {
    [ -x $venv/bin/python ] && [ -f "$venv/installed-$1" ] &&
        [ "$(cat "$venv/installed-$1")" = "$(fingerprint)" ]
}

suitable() {
    "$1" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14 python}; do
        if suitable "$candidate"; then
            say "$candidate"
            return
        fi
    done
    if [ -n "${PYTHON:-}" ]; then
        fail "PYTHON=$PYTHON is not a Python 3.11 or later with its venv module"
    fi
    fail "no Python 3.11 or later with its venv module was found: install one (on Debian and" \
        "Ubuntu also the package python3-venv), or name it with PYTHON=/path/to/python3"
}

# Torch alone takes about 1 GB without CUDA, and several with it.
check_disk() {
    free=$(df -Pk . | awk 'NR == 2 { print $4 }')
    if [ "$free" -lt 3000000 ]; then
        fail "not enough disk here: $((free / 1000)) MB are free in $PWD, and installing takes 3 GB"
    fi
}

# pip's log says why it failed; the usual reasons deserve a sentence.
explain() {
    if grep -qi 'no space left on device' $log; then
        fail "the disk is full: pip could not install; free some space and run this again"
    fi
    if grep -qiE 'name resolution|newconnectionerror|connection refused|network is unreachable|timed out|proxyerror' $log; then
        fail "no network: pip could not reach its package index; connect and run this again"
    fi
    tail -n 15 $log >&2
    fail "pip could not install the project; the whole log is in $log"
}

if installed "$what" || { [ "$what" = run ] && installed test; }; then
    exit 0
fi

if ! $venv/bin/python -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    check_disk
    say "Creating $venv with $($python --version)"
    "$python" -m venv --clear $venv ||
        fail "$python could not create $venv; the lines above say why"
fi
check_disk
say "Installing watermaster and its dependencies (torch is large: the first time takes minutes)"
rm -f $venv/installed-* $log
$venv/bin/python -m pip install --disable-pip-version-check --log $log \
    -c constraints.txt -e "$wanted" || explain
fingerprint >"$venv/installed-$what"
say "Installed into $venv"
