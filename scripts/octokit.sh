#!/usr/bin/env bash
# Fetches genuine GitHub webhook payloads, npm @octokit/webhooks-examples, into .cache/octokit/package, where
# testenv.OctokitExamples reads them. Only the pinned version with the pinned digest is taken, and no script of the
# package runs. Says nothing when it is there already.
set -euo pipefail
cd "$(dirname "$0")/.."

name=@octokit/webhooks-examples
version=7.6.1
integrity=sha512-De6U3XB6O3DtCa7bKgCMzTHdeopqqZ6SNivMYJnK65ierKL1AnNIA0tkRYCRS7lwGT792d+Ps1WbfHlso6MynQ==

stamp=.cache/octokit/$version
[[ -e $stamp ]] && exit 0

echo "octokit: fetching $name $version"
mkdir -p .cache
work=$(mktemp -d .cache/octokit.XXXXXX)
trap 'rm -rf "$work"' EXIT

npm pack --silent --ignore-scripts --pack-destination "$work" "$name@$version" </dev/null >/dev/null
archive=$(echo "$work"/*.tgz)
found=sha512-$(node -e '
	const bytes = require("fs").readFileSync(process.argv[1]);
	process.stdout.write(require("crypto").createHash("sha512").update(bytes).digest("base64"));
' "$archive")
if [[ $found != "$integrity" ]]; then
	echo "octokit: $name $version has digest $found, expected $integrity" >&2
	exit 1
fi
tar -xzf "$archive" -C "$work" --no-same-owner
[[ -s $work/package/api.github.com/index.json ]] || { echo "octokit: the package holds no payloads" >&2; exit 1; }
rm "$archive"
touch "$work/$version"
chmod 755 "$work"
rm -rf .cache/octokit
mv "$work" .cache/octokit
