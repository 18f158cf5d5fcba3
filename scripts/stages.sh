# Sourced by scripts that run stages. `stage NAME COMMAND…` runs a command and records its time and whether it passed;
# `summary TITLE` prints one line for each stage and a last line for all of them, and returns 1 when any failed.

stage_names=()
stage_lines=()
stage_failed=()
stages_began=$SECONDS

stage() {
	local name=$1 began=$SECONDS status=0
	shift
	echo "== $name"
	"$@" </dev/null || status=$?
	stage_names+=("$name")
	if ((status == 0)); then
		stage_lines+=("$(printf '   %-16s passed %5ds' "$name" $((SECONDS - began)))")
	else
		stage_lines+=("$(printf '   %-16s FAILED %5ds (exit %d)' "$name" $((SECONDS - began)) "$status")")
		stage_failed+=("$name")
	fi
	return "$status"
}

summary() {
	echo "== $1"
	((${#stage_lines[@]})) && printf '%s\n' "${stage_lines[@]}"
	if ((${#stage_failed[@]})); then
		echo "$1: failed in ${stage_failed[*]}, after $((SECONDS - stages_began))s"
		return 1
	fi
	echo "$1: ${#stage_names[@]} stages passed in $((SECONDS - stages_began))s"
}
