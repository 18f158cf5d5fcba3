package engine

import (
	"context"
	"slices"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/lanes"
	"github.com/holdpoint/holdpoint/internal/store"
)

// The bounds of a claim statement.
const (
	maxBatch     = 256
	maxBeside    = 5                // statements beside the first: a locked row does not delay every other claim
	claimTimeout = 15 * time.Second // fail closed: the callers get unavailable and may claim again
)

// coalescer turns concurrent claims into multi-row statements.
type coalescer struct {
	run   func(context.Context, []store.Claim) ([]store.ClaimResult, error)
	lanes lanes.Lanes
	queue []*waiting
}

// waiting is one caller's claim. Its answer is delivered once.
type waiting struct {
	claim  store.Claim
	call   *int // identity of the client call: claims of one batch request share it
	done   chan struct{}
	result store.ClaimResult
	err    error
}

func newCoalescer(run func(context.Context, []store.Claim) ([]store.ClaimResult, error)) *coalescer {
	c := &coalescer{run: run, lanes: lanes.Lanes{Beside: maxBeside, Bound: claimTimeout}}
	c.lanes.Next = func() func(context.Context) {
		batch := c.gather()
		if len(batch) == 0 {
			return nil
		}
		return func(ctx context.Context) { c.work(ctx, batch) }
	}
	return c
}

// claim waits for the answers to claims of one client call, in their order. If ctx ends first the caller leaves with its
// error; claims that were already on their way stand, as after a lost answer.
func (c *coalescer) claim(ctx context.Context, claims []store.Claim) ([]store.ClaimResult, []error) {
	call := new(int)
	all := make([]*waiting, len(claims))
	for i := range claims {
		all[i] = &waiting{claim: claims[i], call: call, done: make(chan struct{})}
	}
	c.lanes.Add(func() { c.queue = append(c.queue, all...) })
	results, errs := make([]store.ClaimResult, len(claims)), make([]error, len(claims))
	for i, w := range all {
		select {
		case <-w.done:
			results[i], errs[i] = w.result, w.err
		case <-ctx.Done():
			c.leave(w)
			errs[i] = holdpoint.Errorf(holdpoint.CodeUnavailable, "the caller went away before the claim was answered; claim again").Wrap(ctx.Err())
		}
	}
	return results, errs
}

// leave takes a claim out of the queue if it is not on its way yet.
func (c *coalescer) leave(w *waiting) {
	c.lanes.Lock(func() {
		c.queue = slices.DeleteFunc(c.queue, func(q *waiting) bool { return q == w })
	})
}

// group is one row of the statement: a leader and those whose answer follows from the leader's committed row.
type group struct {
	leader    *waiting
	followers []*waiting
}

// gather takes up to maxBatch unique keys from the queue. A claim joins a group if its answer follows from the leader's;
// otherwise it waits for the next statement.
func (c *coalescer) gather() []*group {
	type key struct{ tenant, scope, hmac string }
	groups := map[key]*group{}
	var batch []*group
	rest := c.queue[:0:0]
	for _, w := range c.queue {
		k := key{w.claim.Tenant, w.claim.Scope, w.claim.KeyHMAC}
		g := groups[k]
		switch {
		case g == nil && len(batch) < maxBatch:
			g = &group{leader: w}
			groups[k] = g
			batch = append(batch, g)
		case g != nil && follows(g.leader.claim, w.claim):
			g.followers = append(g.followers, w)
		default:
			rest = append(rest, w)
		}
	}
	c.queue = rest
	return batch
}

// follows reports whether b's answer follows from a's: the same content, and no owner of its own that may hold the lease.
func follows(a, b store.Claim) bool {
	return a.Fingerprint == b.Fingerprint && a.FingerprintRule == b.FingerprintRule && a.Workflow == b.Workflow &&
		(!b.OwnerExplicit || a.OwnerExplicit && a.Owner == b.Owner && a.ExecutionID == b.ExecutionID)
}

// work runs one statement; an error splits the batch so that it reaches only the claims that cause it.
func (c *coalescer) work(ctx context.Context, batch []*group) {
	claims := make([]store.Claim, len(batch))
	for i, g := range batch {
		claims[i] = g.leader.claim
		claims[i].Extra = len(g.followers)
	}
	results, err := c.run(ctx, claims)
	switch {
	case err == nil:
		for i, g := range batch {
			g.answer(results[i])
		}
	case len(batch) > 1 && ctx.Err() == nil:
		// The statement may have committed before its answer was lost. Nobody else has these owners, so a lease that
		// carries one of them is this claim's.
		for _, g := range batch {
			g.leader.claim.OwnerExplicit = true
		}
		c.work(ctx, batch[:len(batch)/2])
		c.work(ctx, batch[len(batch)/2:])
	default:
		for _, g := range batch {
			for _, w := range append(g.followers, g.leader) {
				w.err = err
				close(w.done)
			}
		}
	}
}

// answer delivers the leader's result and what follows from it.
func (g *group) answer(r store.ClaimResult) {
	g.leader.result = r
	close(g.leader.done)
	for _, w := range g.followers {
		w.result = r
		w.result.RecoveredFrom, w.result.Repeated = "", false
		if r.Outcome == holdpoint.Claimed && !r.RuleDiffers {
			if w.claim.OwnerExplicit && w.call != g.leader.call {
				w.result.Repeated = true // the same owner asked twice: the second call is the first one's lost answer
			} else {
				w.result.Outcome, w.result.Lease = holdpoint.Busy, nil
				w.result.RetryAfter = r.Lease.ExpiresAt.Sub(r.Now)
			}
		}
		close(w.done)
	}
}
