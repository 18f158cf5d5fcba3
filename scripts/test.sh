#!/usr/bin/env bash
# `make test`: installs what is missing, then checks and tests everything, on SQLite and on PostgreSQL. It stops at the
# first stage that fails; the times of the last run stay in .tmp/test-times.
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/stages.sh

finish() {
	local status=$?
	mkdir -p .tmp
	summary test | tee .tmp/test-times
	exit "$status"
}
trap finish EXIT

set -e
for part in deps format vet layout build race fuzz; do
	stage "$part" make -s "$part"
done
