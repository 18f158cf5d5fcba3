package dispatch

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
)

// takeAll takes as many places at a provider as it gives, and gives them back.
func takeAll(t *targets, provider string) int {
	n := 0
	for t.take(provider, 8) {
		n++
	}
	for range n {
		t.give(provider)
	}
	return n
}

func TestAFailingTargetRampsUpAgain(t *testing.T) {
	x := newTargets(64)
	require.True(t, x.take("p", 8))
	for _, want := range []int{4, 2, 1, 1} {
		x.learn("p", holdpoint.Outcome{Result: holdpoint.Unclear, Class: holdpoint.ClassOverloaded})
		x.give("p")
		require.Equal(t, want, takeAll(x, "p"))
		require.True(t, x.take("p", 8))
	}
	for want := 2; want <= 8; want++ {
		for range growEvery {
			x.learn("p", holdpoint.Outcome{Result: holdpoint.Accepted})
		}
		x.give("p")
		require.Equal(t, want, takeAll(x, "p"))
		require.True(t, x.take("p", 8))
	}
	for range 2 * growEvery {
		x.learn("p", holdpoint.Outcome{Result: holdpoint.Accepted})
	}
	x.give("p")
	require.Equal(t, 8, takeAll(x, "p"), "never above what policy allows")
}

func TestWhatSaysNothingAboutTheTargetReducesNothing(t *testing.T) {
	x := newTargets(64)
	require.True(t, x.take("p", 8))
	for _, class := range []holdpoint.FailureClass{holdpoint.ClassInvalidData, holdpoint.ClassDeclined, holdpoint.ClassLocalDeadline} {
		x.learn("p", holdpoint.Outcome{Result: holdpoint.Rejected, Class: class})
	}
	x.give("p")
	require.Equal(t, 8, takeAll(x, "p"))
}

func TestAThrottledTargetWaitsAndOthersGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTargets(64)
		require.True(t, x.take("slow", 8))
		x.learn("slow", holdpoint.Outcome{Result: holdpoint.Rejected, Class: holdpoint.ClassThrottled, RetryAfter: time.Minute})
		x.give("slow")
		room, full := x.room()
		require.Equal(t, 16, room, "a quarter of the places at once")
		require.Equal(t, []string{"slow"}, full)
		require.False(t, x.take("slow", 8))
		require.True(t, x.take("other", 8))
		time.Sleep(time.Minute)
		require.True(t, x.take("slow", 8))
	})
}

// A place that comes free is worth a new lease only if effects were passed over for it.
func TestAFreePlaceIsNewsToWhoWaitsForIt(t *testing.T) {
	x := newTargets(3)
	require.True(t, x.take("p", 2))
	require.False(t, x.give("p"))
	require.False(t, x.end())
	require.True(t, x.take("p", 2))
	require.True(t, x.take("p", 2))
	require.False(t, x.take("p", 2), "at its limit")
	require.True(t, x.give("p"))
	require.False(t, x.give("p"), "told once")

	require.True(t, x.take("p", 2))
	require.True(t, x.take("p", 2))
	_, full := x.room()
	require.Equal(t, []string{"p"}, full)
	require.True(t, x.give("p"), "a lease passed it over")

	y := newTargets(1)
	require.True(t, y.take("p", 2))
	room, _ := y.room()
	require.Zero(t, room)
	require.False(t, y.give("p"), "it had room")
	require.True(t, y.end(), "a lease waited for any place")
	require.False(t, y.end())
}
