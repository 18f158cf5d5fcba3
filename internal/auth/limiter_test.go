package auth

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLimiterBurstAndRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(6, 3, 100)
		for range 3 {
			ok, wait := l.Allow("ana")
			require.True(t, ok)
			require.Zero(t, wait)
		}
		ok, wait := l.Allow("ana")
		require.False(t, ok)
		require.Equal(t, 10*time.Second, wait)
		ok, _ = l.Allow("bo")
		require.True(t, ok, "keys are independent")

		time.Sleep(wait - time.Nanosecond)
		ok, _ = l.Allow("ana")
		require.False(t, ok)
		time.Sleep(time.Nanosecond)
		ok, _ = l.Allow("ana")
		require.True(t, ok, "retryAfter is exact, and refused attempts took nothing")
		ok, _ = l.Allow("ana")
		require.False(t, ok)

		time.Sleep(time.Hour)
		for i := range 4 {
			ok, _ = l.Allow("ana")
			require.Equal(t, i < 3, ok, "the burst comes back and does not grow")
		}
	})
}

func TestLimiterIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 50
		l := NewLimiter(1, 2, size)
		l.Allow("ana")
		l.Allow("ana")
		allowed := 0
		for i := range 10 * size {
			if ok, _ := l.Allow(fmt.Sprint("guess ", i)); ok {
				allowed++
			}
			require.LessOrEqual(t, len(l.whole), size)
		}
		require.Equal(t, size-1+2, allowed, "keys that find no place share one allowance")
		ok, _ := l.Allow("ana")
		require.False(t, ok, "a flood of names frees nobody")

		time.Sleep(3 * time.Minute)
		for range 2 {
			ok, _ = l.Allow("late")
			require.True(t, ok, "places come back")
		}
		require.Len(t, l.whole, 1)
	})
}

func TestLimiterUnderConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(60, 5, 10)
		var allowed atomic.Int32
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if ok, _ := l.Allow("ana"); ok {
					allowed.Add(1)
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 5, allowed.Load())
	})
}

func TestLimiterWithoutRoomIsStrict(t *testing.T) {
	l := NewLimiter(0, 0, 0)
	ok, _ := l.Allow("ana")
	require.True(t, ok)
	ok, wait := l.Allow("ana")
	require.False(t, ok)
	require.InDelta(t, time.Minute, wait, float64(time.Second))
}

func TestLimiterKeys(t *testing.T) {
	require.Equal(t, AccountKey("ana@acme.example"), AccountKey(" Ana@ACME.example "))
	require.NotEqual(t, AccountKey("ana@acme.example"), AccountKey("bo@acme.example"))

	require.Equal(t, AddressKey("192.0.2.7:4711"), AddressKey("192.0.2.7"))
	require.Equal(t, AddressKey("192.0.2.7:4711"), AddressKey("[::ffff:192.0.2.7]:80"))
	require.NotEqual(t, AddressKey("192.0.2.7:1"), AddressKey("192.0.2.8:1"))
	require.Equal(t, AddressKey("[2001:db8:1:2::1]:80"), AddressKey("2001:db8:1:2:ffff::9"), "one /64 is one subscriber")
	require.NotEqual(t, AddressKey("2001:db8:1:2::1"), AddressKey("2001:db8:1:3::1"))
	require.Equal(t, AddressKey("fe80::1%eth0"), AddressKey("fe80::1"))
	require.Equal(t, AddressKey("@"), AddressKey(strings.Repeat("x", 100)))
}
