#!/usr/bin/env bash
# Starts and stops one throwaway PostgreSQL that a whole test run shares:
#
#   scripts/testservices.sh start   starts it (first stopping an earlier one) and writes .tmp/testenv.env
#   . .tmp/testenv.env              exports HOLDPOINT_TEST_POSTGRES, which internal/testenv reads
#   scripts/testservices.sh stop    stops it and removes its data
#
#   scripts/testservices.sh run COMMAND…   does all three around a command, and exits as that does
#
# It listens on loopback, on a free port, and shares nothing with a cluster of the system. Tests work without it too:
# each test binary then starts a cluster of its own, which only takes longer.
set -euo pipefail
cd "$(dirname "$0")/.."

state=.tmp/testenv.env

# as_owner runs a command as a user that PostgreSQL accepts: it refuses root.
as_owner() {
	if [[ $(id -u) == 0 ]]; then
		runuser -u "$(owner)" -- "$@"
	else
		"$@"
	fi
}
owner() { if id postgres >/dev/null 2>&1; then echo postgres; else echo nobody; fi; }

stop() {
	[[ -e $state ]] || return 0
	local dir
	dir=$(sed -n 's/^# directory //p' "$state")
	# Only a directory that start made, and only a server that still runs in it.
	if [[ $dir == */holdpoint-postgres.* && -d $dir ]]; then
		if [[ -e $dir/data/postmaster.pid ]]; then
			(cd "$dir" && as_owner "$(bin)/pg_ctl" stop -s -w -t 30 -m immediate -D "$dir/data") || true
		fi
		rm -rf "$dir"
	fi
	rm -f "$state"
}

bin() {
	local initdb
	if initdb=$(command -v initdb); then
		dirname "$initdb"
	else
		printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -n 1
	fi
}

start() {
	stop
	mkdir -p .tmp
	local base=${TMPDIR:-/tmp} dir port attempt conf=$PWD/internal/testenv/postgresql.conf
	# In memory where 4 GiB are free: durability settings stay those of production, and the run is quicker.
	if [[ -w /dev/shm ]] && (($(df --output=avail -k /dev/shm | tail -n 1) >= 4 << 20)); then base=/dev/shm; fi
	dir=$(mktemp -d "$base/holdpoint-postgres.XXXXXX")
	[[ $(id -u) == 0 ]] && chown "$(owner)" "$dir"
	echo "# directory $dir" >"$state"
	(cd "$dir" && as_owner "$(bin)/initdb" --pgdata="$dir/data" --auth=trust --username=holdpoint --no-locale \
		--encoding=UTF8 --no-sync >/dev/null)
	cat "$conf" >>"$dir/data/postgresql.conf"
	for attempt in 1 2 3; do
		port=$((20000 + RANDOM % 12000)) # below the range that outgoing connections use
		if (cd "$dir" && as_owner "$(bin)/pg_ctl" start -s -w -t 30 -D "$dir/data" -l "$dir/log" -o "-p $port" </dev/null); then
			echo "export HOLDPOINT_TEST_POSTGRES='postgres://holdpoint@127.0.0.1:$port/postgres?sslmode=disable'" >>"$state"
			return
		fi
	done
	tail -n 20 "$dir/log" >&2
	stop
	echo "testservices: PostgreSQL did not start" >&2
	exit 1
}

case ${1:-} in
start) start ;;
stop) stop ;;
run)
	shift
	state=.tmp/testenv.$$.env # its own, beside another run in this tree
	trap stop EXIT
	trap 'exit 130' INT TERM
	start
	. "$state"
	"$@"
	;;
*)
	echo "usage: scripts/testservices.sh start|stop|run COMMAND…" >&2
	exit 2
	;;
esac
