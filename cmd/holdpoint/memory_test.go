package main

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMemoryGoesBackWhenTheServerIsQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var cycles, freed atomic.Uint64
		go giveBack(ctx, cycles.Load, func() {
			freed.Add(1)
			cycles.Add(1) // to free is to collect
		})
		synctest.Wait()
		pass := func() {
			time.Sleep(quietTime)
			synctest.Wait()
		}
		for range 3 {
			cycles.Add(5)
			pass()
			require.Zero(t, freed.Load(), "a busy server is left to its collector")
		}
		for n := range uint64(3) {
			pass()
			require.Equal(t, n+1, freed.Load(), "a server stays quiet although it frees")
		}
		stop()
		pass()
		require.EqualValues(t, 3, freed.Load())
	})
	before := collections()
	runtime.GC()
	require.Greater(t, collections(), before)
}
