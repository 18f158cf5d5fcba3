#!/usr/bin/env bash
# Generates what is generated and fails when that changes a file, or when go.mod and go.sum are not as tidy as
# `go mod tidy` leaves them. What is uncommitted before counts as given.
set -euo pipefail
cd "$(dirname "$0")/.."

tree() { git status --porcelain --untracked-files=all && git diff; }

before=$(tree)
go generate ./...
after=$(tree)
if [[ $before != "$after" ]]; then
	echo "generated: these files are not as generated; run go generate ./... and commit them" >&2
	git status --short >&2
	git --no-pager diff --stat >&2
	exit 1
fi
go mod tidy -diff
(cd bench && go mod tidy -diff)
