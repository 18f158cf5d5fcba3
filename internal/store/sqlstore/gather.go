package sqlstore

import (
	"context"
	"slices"
	"time"

	"github.com/holdpoint/holdpoint/internal/lanes"
)

// gather turns concurrent calls of one verb into batches, each one transaction (group commit). A read begins after every
// call that it answers.
type gather[T, R any] struct {
	verb  string
	run   func(context.Context, []T) ([]R, []error) // answers and refusals in the order of the calls; no answers: all failed
	apart func(T) any                               // calls of one key never share a batch; nil: all may
	most  int                                       // calls of one batch
	lanes lanes.Lanes
	queue []*call[T, R]
}

// newGather makes a gather of batches of which so many may be on their way at once.
func newGather[T, R any](verb string, most, atOnce int, apart func(T) any, run func(context.Context, []T) ([]R, []error)) *gather[T, R] {
	g := &gather[T, R]{verb: verb, run: run, apart: apart, most: most, lanes: lanes.Lanes{Beside: atOnce - 1, Bound: batchTime}}
	g.lanes.Next = func() func(context.Context) {
		batch := g.next()
		if len(batch) == 0 {
			return nil
		}
		return func(ctx context.Context) { g.batch(ctx, batch) }
	}
	return g
}

// call is one caller's. It is answered once.
type call[T, R any] struct {
	in   T
	done chan struct{}
	out  R
	err  error
}

// batchTime bounds a batch. Fail closed: its callers get unavailable, and may call again.
const batchTime = 15 * time.Second

// do waits for the answer to one call. If ctx ends first the caller leaves; a call that was on its way may have been done,
// as after a lost answer, and none of the others notices.
func (g *gather[T, R]) do(ctx context.Context, in T) (R, error) {
	c := &call[T, R]{in: in, done: make(chan struct{})}
	g.lanes.Add(func() { g.queue = append(g.queue, c) })
	select {
	case <-c.done:
		return c.out, c.err
	case <-ctx.Done():
		g.leave(c)
		var none R
		return none, unavailable(g.verb, ctx.Err())
	}
}

// leave takes a call out of the queue if it is not on its way yet.
func (g *gather[T, R]) leave(c *call[T, R]) {
	g.lanes.Lock(func() {
		g.queue = slices.DeleteFunc(g.queue, func(q *call[T, R]) bool { return q == c })
	})
}

// next takes the calls of the next batch from the queue. Of calls that must be apart, the later ones wait.
func (g *gather[T, R]) next() []*call[T, R] {
	var batch, rest []*call[T, R]
	taken := map[any]bool{}
	for _, c := range g.queue {
		fits := len(batch) < g.most
		if fits && g.apart != nil {
			key := g.apart(c.in)
			fits = !taken[key]
			taken[key] = true
		}
		if fits {
			batch = append(batch, c)
		} else {
			rest = append(rest, c)
		}
	}
	g.queue = rest
	return batch
}

// batch runs some calls in one transaction. What breaks the whole transaction splits it, so that it reaches only the calls
// that cause it; every verb that is gathered answers a repetition with what stands, in case it had committed.
func (g *gather[T, R]) batch(ctx context.Context, calls []*call[T, R]) {
	in := make([]T, len(calls))
	for i, c := range calls {
		in[i] = c.in
	}
	out, errs := g.run(ctx, in)
	if out == nil && len(calls) > 1 && ctx.Err() == nil {
		g.batch(ctx, calls[:len(calls)/2])
		g.batch(ctx, calls[len(calls)/2:])
		return
	}
	for i, c := range calls {
		if c.err = errs[i]; c.err == nil {
			c.out = out[i]
		}
		close(c.done)
	}
}

// together runs fn over all calls in one transaction; what it returns is every call's.
func together[T, R any](s *Store, verb string, fn func(ctx context.Context, t *tx, in []T, out []R, refused []error) error) func(context.Context, []T) ([]R, []error) {
	return func(ctx context.Context, in []T) ([]R, []error) {
		var out []R
		var refused []error
		err := s.do(ctx, verb, func(t *tx) error {
			out, refused = make([]R, len(in)), make([]error, len(in))
			return fn(ctx, t, in, out, refused)
		})
		if err != nil {
			refused = make([]error, len(in))
			for i := range refused {
				refused[i] = err
			}
			return nil, refused
		}
		return out, refused
	}
}

// readTogether makes a gather of reads: fn reads what it finds of some keys, and missing says that one was not there.
func readTogether[K comparable, R any](verb string, missing func(K) error, fn func(ctx context.Context, keys []K, found map[K]R) error) *gather[K, R] {
	return newGather(verb, 256, 4, nil, func(ctx context.Context, in []K) ([]R, []error) {
		keys := slices.Clone(in)
		found := make(map[K]R, len(in))
		seen := make(map[K]bool, len(in))
		keys = slices.DeleteFunc(keys, func(k K) bool { again := seen[k]; seen[k] = true; return again })
		refused := make([]error, len(in))
		if err := readErr(verb, fn(ctx, keys, found), nil); err != nil {
			for i := range refused {
				refused[i] = err
			}
			return nil, refused
		}
		out := make([]R, len(in))
		for i, k := range in {
			r, ok := found[k]
			if !ok {
				refused[i] = missing(k)
			}
			out[i] = r
		}
		return out, refused
	})
}
