package dispatch

import (
	"sync"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/policy"
)

// growEvery is how many accepted requests in a row earn a target one more request at once.
const growEvery = 20

// targets keeps one slow, failing or throttling provider from taking all places of the send loop, and lets the flow to a
// provider that has failed ramp up again.
type targets struct {
	mu      sync.Mutex
	free    int
	starved bool // nothing was leased for want of places
	known   map[string]*target
}

type target struct {
	busy     int
	limit    int       // requests at once that policy allows
	allowed  int       // requests at once now: halved by a failure that says so, one more after growEvery successes
	accepted int       // successes in a row since allowed last changed
	until    time.Time // throttled: nothing to this provider before then
	passed   bool      // its effects were passed over for want of places
}

func newTargets(places int) *targets { return &targets{free: places, known: map[string]*target{}} }

// aLease is how many effects one lease may bring while nothing is known of their providers.
const aLease = 16

// room gives how many effects may be leased and the providers to pass over: those at their limit and those that asked to
// wait. A lease may bring effects of one provider alone; what that one has no place for would have to be given back, so
// a lease is no larger than the most places that one provider is known to have, nor than a quarter of all, which keeps the
// others alive.
func (t *targets) room() (int, []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var full []string
	now, most := time.Now(), aLease
	for name, x := range t.known {
		if x.busy >= x.allowed || now.Before(x.until) {
			full = append(full, name)
			x.passed = true
		} else if most = max(most, x.allowed-x.busy); x.busy == 0 && x.allowed == x.limit {
			delete(t.known, name) // nothing to remember
		}
	}
	t.starved = t.free == 0
	return min((t.free+3)/4, most), full
}

// take gives a place at a provider, or false if it is at its limit: one lease may bring more than it has room for.
func (t *targets) take(provider string, limit int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	limit = max(1, limit)
	x := t.known[provider]
	if x == nil {
		x = &target{limit: limit, allowed: limit}
		t.known[provider] = x
	}
	if x.limit != limit { // another connector of the same provider, or another policy
		x.limit, x.allowed = limit, min(x.allowed, limit)
	}
	if x.busy >= x.allowed || time.Now().Before(x.until) {
		x.passed = true
		return false
	}
	x.busy++
	t.free--
	return true
}

// give gives a provider's place back: its request is over. It reports whether somebody was passed over for the place.
func (t *targets) give(provider string) (wanted bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.known[provider]
	x.busy--
	wanted, x.passed = x.passed, false
	return wanted
}

// end gives a place of the send loop back: the effect is settled. It reports whether a lease waited for the place.
func (t *targets) end() (wanted bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free++
	wanted, t.starved = t.starved, false
	return wanted
}

// learn adapts the flow to what a request met: a pause that the provider asked for holds the whole target and not one row;
// a failure for which the matrix says so, or a provider that cannot be reached, halves what goes out at once; successes
// let it grow again.
func (t *targets) learn(provider string, o holdpoint.Outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.known[provider]
	if x == nil {
		return
	}
	if o.Result == holdpoint.Accepted {
		if x.accepted++; x.accepted >= growEvery && x.allowed < x.limit {
			x.allowed, x.accepted = x.allowed+1, 0
		}
		return
	}
	concurrency := policy.Row(o.Class).Concurrency
	switch {
	case concurrency == policy.ConcurrencyReduce, concurrency == policy.ConcurrencyGate, o.Class == holdpoint.ClassConnect:
		x.allowed, x.accepted = max(1, x.allowed/2), 0
	}
	if o.Class == holdpoint.ClassThrottled && o.RetryAfter > 0 {
		x.until = time.Now().Add(o.RetryAfter)
	}
}
