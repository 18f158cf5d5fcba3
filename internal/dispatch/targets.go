package dispatch

import (
	"sync"
	"time"

	"github.com/holdpoint/holdpoint"
)

// targets keeps one slow or throttling provider from taking all places of the send loop.
type targets struct {
	mu    sync.Mutex
	free  int
	known map[string]*target
}

type target struct {
	busy, limit int
	until       time.Time // throttled: nothing to this provider before then
}

func newTargets(places int) *targets { return &targets{free: places, known: map[string]*target{}} }

// room gives the number of free places and the providers to pass over: those at their limit and those that asked to wait.
func (t *targets) room() (int, []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var full []string
	now := time.Now()
	for name, x := range t.known {
		if x.busy >= x.limit || now.Before(x.until) {
			full = append(full, name)
		} else if x.busy == 0 && x.until.IsZero() {
			delete(t.known, name)
		}
	}
	// A lease may bring several effects of one provider; at most a quarter of the places at once keeps others alive.
	return (t.free + 3) / 4, full
}

// take gives a place at a provider, or false if it is at its limit: one lease may bring more than it has room for.
func (t *targets) take(provider string, limit int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.known[provider]
	if x == nil {
		x = &target{}
		t.known[provider] = x
	}
	if x.limit = max(1, limit); x.busy >= x.limit {
		return false
	}
	x.busy++
	t.free--
	return true
}

func (t *targets) give(provider string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known[provider].busy--
	t.free++
}

// learn notes that a provider asked for a pause: the whole target waits, not one row.
func (t *targets) learn(provider string, o holdpoint.Outcome) {
	if o.Class != holdpoint.ClassThrottled || o.RetryAfter <= 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if x := t.known[provider]; x != nil {
		x.until = time.Now().Add(o.RetryAfter)
	}
}
