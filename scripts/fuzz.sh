#!/usr/bin/env bash
# Runs every fuzz target for a few seconds each (FUZZTIME, default 5s), from its seeds and what earlier runs found.
set -euo pipefail
cd "$(dirname "$0")/.."

out=$(mktemp)
trap 'rm -f "$out"' EXIT

run() {
	timeout --kill-after=10s 3m go test -run '^$' -fuzz "^$2\$" -fuzztime "${FUZZTIME:-5s}" "./$1" >"$out" 2>&1 </dev/null &&
		! grep -q 'no fuzz tests to fuzz' "$out"
}

git grep -ho --untracked -E '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go' >/dev/null || { echo "fuzz: no targets"; exit 0; }
git grep -o --untracked -E '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go' | while IFS=: read -r file declaration; do
	name=${declaration#func } package=$(dirname "$file")
	# The fuzzer may report its own deadline as a failure when time is up; a real finding comes back.
	if ! run "$package" "$name" && ! { grep -q 'context deadline exceeded' "$out" && run "$package" "$name"; }; then
		tail -n 40 "$out"
		echo "fuzz: $package $name failed" >&2
		exit 1
	fi
	echo "fuzz: $package $name $(grep -oE 'execs: [0-9]+' "$out" | tail -n 1)"
done
