#!/usr/bin/env bash
# Installs what the tests need beside Go and Node.js, and only what is missing: PostgreSQL's server and pgbench,
# PgBouncer, Chromium, jq and curl as Debian packages, Mailpit from the Go module proxy, webhook payloads from npm.
# Says nothing and takes well under a second when all of it is there. Where packages cannot be installed (not root, no
# apt-get), it names what is missing and exits with 1.
set -euo pipefail
cd "$(dirname "$0")/.."

mailpit=v1.33.1

has_postgres() {
	command -v initdb >/dev/null && command -v pgbench >/dev/null && return
	local bin
	for bin in /usr/lib/postgresql/*/bin; do
		if [[ -x $bin/initdb && -x $bin/postgres && -x $bin/pgbench ]]; then return; fi
	done
	return 1
}
has_pgbouncer() { command -v pgbouncer >/dev/null || [[ -x /usr/sbin/pgbouncer ]]; }
has_chromium() { command -v chromium >/dev/null || command -v google-chrome >/dev/null; }

missing=()
has_postgres || missing+=(postgresql)
has_pgbouncer || missing+=(pgbouncer)
has_chromium || missing+=(chromium)
for tool in jq curl; do # the README's quick start
	command -v "$tool" >/dev/null || missing+=("$tool")
done

if ((${#missing[@]})); then
	if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
		echo "deps: missing packages: ${missing[*]}" >&2
		echo "deps: install them, on Debian with: sudo apt-get install ${missing[*]}" >&2
		exit 1
	fi
	echo "deps: installing ${missing[*]}"
	log=$(mktemp)
	apt() {
		DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 "$@" >>"$log" 2>&1 </dev/null || {
			tail -n 30 "$log" >&2
			echo "deps: apt-get $1 failed; missing packages: ${missing[*]}" >&2
			exit 1
		}
	}
	apt update
	apt install --no-install-recommends "${missing[@]}"
	rm -f "$log"
fi

for tool in go node npm; do
	command -v "$tool" >/dev/null || { echo "deps: $tool is missing; install it first" >&2; exit 1; }
done

stamp=.cache/bin/mailpit.$mailpit
if [[ ! -x .cache/bin/mailpit || ! -e $stamp ]]; then
	echo "deps: building mailpit $mailpit"
	mkdir -p .cache/bin
	rm -f .cache/bin/mailpit.v*
	GOBIN=$PWD/.cache/bin GOFLAGS=-buildvcs=false go install "github.com/axllent/mailpit@$mailpit"
	touch "$stamp"
fi

scripts/octokit.sh
