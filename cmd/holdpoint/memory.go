package main

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// quietTime is how long nothing must have needed a collection before memory goes back to the system.
const quietTime = 10 * time.Second

// giveBack returns what nothing uses any more to the system whenever the process has been quiet for quietTime, until ctx
// ends. The collector alone would keep what a start or some log-ins needed for minutes; a busy process is left to it.
func giveBack(ctx context.Context, collections func() uint64, free func()) {
	tick := time.NewTicker(quietTime)
	defer tick.Stop()
	last := collections()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if collections() == last {
			free()
		}
		last = collections()
	}
}

// collections counts the collections of this process.
func collections() uint64 {
	s := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// free collects and returns all free memory to the system: a few milliseconds for the heap of a quiet server.
func free() { debug.FreeOSMemory() }
