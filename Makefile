# Each target has a limit of its own, so that nothing hangs. Tools that are built land in .cache/bin, results in bin/.

SHELL := /bin/bash
.DEFAULT_GOAL := build
limit = timeout --kill-after=30s

golangci_version := v2.15.0
golangci := .cache/bin/golangci-lint-$(golangci_version)

.PHONY: sim demo build test lint e2e crash kill deps format vet layout race fuzz generated clean

## The main job in front of your eyes: deliveries, duplicates, an approval page, a provider that stalls.
demo: build
	@bin/holdpoint demo $(ARGS)

## One static binary, bin/holdpoint.
build:
	@CGO_ENABLED=0 $(limit) 10m go build -trimpath -o bin/holdpoint ./cmd/holdpoint

## Installs what is missing, then checks and tests everything on both databases. Prints the time of each stage.
test:
	@scripts/test.sh

## Linters beyond gofmt and go vet. The first call builds the linter (about 4 CPU minutes).
lint: format vet $(golangci)
	@$(limit) 8m $(golangci) run ./...

## The real binary and the real browser.
e2e: build
	@HOLDPOINT_BIN=$(CURDIR)/bin/holdpoint $(limit) 8m scripts/testservices.sh run \
		go test -tags e2e -count=1 -timeout 7m ./e2e/...

## kill -9 at every point of docs/failure-modes.md, on both databases: what stands, who acts.
crash: build
	@$(limit) 4m go test -tags killpoints -count=1 ./internal/killpoint
	@HOLDPOINT_BIN=$(CURDIR)/bin/holdpoint $(limit) 20m scripts/testservices.sh run \
		go test -tags e2e,kill -count=1 -parallel 5 -timeout 19m -run '^TestCrash|^TestFailureModes' ./e2e

## kill -9 under load, CYCLES times, from SEED, on STORE (sqlite, postgres or both); CI runs CYCLES=50.
CYCLES ?= 500
STORE ?= both
kill: build
	@CYCLES=$(CYCLES) STORE=$(STORE) SEED=$(SEED) HOLDPOINT_BIN=$(CURDIR)/bin/holdpoint $(limit) 150m scripts/testservices.sh run \
		go test -tags e2e,kill -count=1 -parallel 2 -v -timeout 145m -run '^TestKill$$' ./e2e

## The whole application with fake people, workflows and providers, from SEEDS seeds of STEPS steps each.
SEEDS ?= 2000
STEPS ?= 40
sim:
	@HOLDPOINT_SIM_SEEDS=$(SEEDS) HOLDPOINT_SIM_STEPS=$(STEPS) $(limit) 6h \
		go test -count=1 -timeout 0 -v -run '^TestSeeds$$' ./internal/simtest

## Holdpoint beside pgbench, DBOS, River and a store without a past: RUNS=5 DB=both ONLY=claims,run,dispatch,size,footprint
bench: build
	@cd bench && HOLDPOINT_BIN=$(CURDIR)/bin/holdpoint RUNS=$(or $(RUNS),5) DB=$(or $(DB),both) ONLY=$(ONLY) \
		$(limit) 4h go run .

## That every measurement works, with tiny counts. The figures mean nothing.
bench-smoke: build
	@cd bench && test -z "$$(gofmt -l .)" && $(limit) 8m go vet . && HOLDPOINT_BIN=$(CURDIR)/bin/holdpoint RUNS=1 DB=both ONLY= \
		WINDOW=1s WARM=1s LANES=8 BACKLOG=100 SIZE=2000 STARTS=1 LOGINS=3 DECISIONS=10 QUIET=1s $(limit) 8m go run .

# The parts of `make test`, in its order.

deps:
	@$(limit) 15m scripts/deps.sh

format:
	@found=$$($(limit) 1m gofmt -l *.go */) && \
		if [[ -n $$found ]]; then printf 'gofmt these files:\n%s\n' "$$found"; exit 1; fi

vet:
	@$(limit) 10m go vet ./...

layout:
	@$(limit) 3m go test -count=1 -run '^TestLayout' .

race:
	@$(limit) 18m scripts/testservices.sh run \
		go test -race -shuffle=on -count=1 -vet=off -timeout 12m $$(go list ./... | grep -v /e2e)

fuzz:
	@$(limit) 8m scripts/fuzz.sh

# What is generated is as committed, and go.mod lists what is used.
generated:
	@$(limit) 3m scripts/generated.sh

$(golangci):
	@mkdir -p .cache/bin/build
	@GOBIN=$(CURDIR)/.cache/bin/build GOFLAGS=-buildvcs=false $(limit) 10m \
		go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(golangci_version)
	@mv .cache/bin/build/golangci-lint $@

clean:
	rm -rf bin .tmp
