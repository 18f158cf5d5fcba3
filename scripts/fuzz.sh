#!/usr/bin/env bash
# Runs every fuzz target for 4s from its seeds and the committed corpus under testdata/fuzz; for FUZZTIME, if that is set,
# and then also from what earlier runs found interesting. FUZZ names the targets to run, all by default: FUZZTIME=10m FUZZ=FuzzCanonical scripts/fuzz.sh.
# What a run finds, it writes below testdata/fuzz; commit that file with the repair.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cache=$work/cache # a short run does not spend its time on what long ones have gathered
[[ -z ${FUZZTIME:-} ]] || cache=$(go env GOCACHE)/fuzz/$(go list -m)
limit=${FUZZLIMIT:-10m} # for each target; FUZZTIME must be shorter

# Each package is built once, with the fuzzer's instruments, and its targets run one after another.
build() {
	timeout --kill-after=10s 6m go test -c -fuzz=Fuzz -o "$work/fuzz.test" "./$1" >"$work/out" 2>&1
}

run() {
	(cd "$1" && timeout --kill-after=10s "$limit" "$work/fuzz.test" -test.run '^$' -test.fuzz "^$2\$" -test.fuzztime "${FUZZTIME:-4s}" -test.fuzzminimizetime 2s \
		-test.fuzzcachedir "$cache/$1") >"$work/out" 2>&1 </dev/null && ! grep -q 'no fuzz tests to fuzz' "$work/out"
}

built='' found=0
while IFS=: read -r file declaration; do
	name=${declaration#func } package=$(dirname "$file")
	[[ $name =~ ^(${FUZZ:-.*})$ ]] || continue
	found=$((found + 1))
	if [[ $built != "$package" ]]; then
		build "$package" || { cat "$work/out"; echo "fuzz: $package does not build" >&2; exit 1; }
		built=$package
	fi
	# The fuzzer may report its own deadline as a failure when time is up; a real finding comes back.
	if ! run "$package" "$name" && ! { grep -q 'context deadline exceeded' "$work/out" && run "$package" "$name"; }; then
		tail -n 40 "$work/out"
		echo "fuzz: $package $name failed" >&2
		exit 1
	fi
	echo "fuzz: $package $name $(grep -oE 'execs: [0-9]+' "$work/out" | tail -n 1)"
done < <(git grep -o --untracked -E '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go' | sort)
[[ $found -gt 0 ]] || { echo "fuzz: no target is called ${FUZZ:-Fuzz…}" >&2; exit 1; }
