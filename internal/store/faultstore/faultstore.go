// Package faultstore puts faults between a caller and its store, for tests: a verb that fails before its transaction
// commits, one that commits and whose answer is lost, one that is slow. Every verb of store.Store passes through the same
// plan; only Wake and Close go straight to the store below.
//
//	s := faultstore.New(real)
//	s.Inject(faultstore.Fault{Verb: "ClaimRuns", Kind: faultstore.After})       // the next claim commits; its caller learns nothing
//	s.Inject(faultstore.Fault{Verb: "Ping", Kind: faultstore.Before, Times: -1}) // the store is away until Lift
//	s.Random(seed, 0.01)                                                        // one call in a hundred, the same ones for the same seed
package faultstore

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

//go:generate go run gen.go

// Kind says what becomes of a call that meets a fault.
type Kind string

// The kinds.
const (
	Before Kind = "before commit" // nothing happened, and the caller gets unavailable
	After  Kind = "after commit"  // the verb ran to its end, and the caller gets unavailable all the same
	Slow   Kind = "slow"          // the verb runs after Delay and its answer arrives
)

// Kinds are all kinds.
var Kinds = []Kind{Before, After, Slow}

// ErrInjected is the cause of every error that this package makes.
var ErrInjected = errors.New("injected fault")

// Fault meets calls of one verb. Calls are counted from the moment of Inject.
type Fault struct {
	Verb  string        // a method of store.Store; "" is any of them
	Kind  Kind          // what happens
	Nth   int           // the first call that it meets; 0 is the next one, as is 1
	Times int           // how many calls in a row it meets from there; 0 is one, negative is all until Lift
	Delay time.Duration // waited before anything else, for as long as the call's context lasts
}

// Met is one call that met a fault.
type Met struct {
	Verb string
	Call int // the number of the call of this verb since New, from 1
	Kind Kind
}

// Store is a store.Store with faults. It is safe for concurrent use.
type Store struct {
	inner store.Store

	mu     sync.Mutex
	calls  map[string]int
	faults []*planned
	share  float64
	seed   uint64
	kinds  []Kind
	met    []Met
}

// planned is a fault that waits, with the calls that it has seen.
type planned struct {
	Fault
	seen int
}

var _ store.Store = (*Store)(nil)

// New gives a store that is inner until a fault is planned.
func New(inner store.Store) *Store { return &Store{inner: inner, calls: map[string]int{}} }

// Inject plans faults beside those planned before. A call meets the first one that fits.
func (s *Store) Inject(faults ...Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range faults {
		f.Nth, f.Times = max(1, f.Nth), cmp.Or(f.Times, 1)
		s.faults = append(s.faults, &planned{Fault: f})
	}
}

// Random lets a share (0 to 1) of all calls meet one of kinds, Before or After if none is named, until Lift. Whether the
// nth call of a verb meets one, and which, follows from seed alone, however goroutines interleave. Slow takes no time here.
func (s *Store) Random(seed uint64, share float64, kinds ...Kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(kinds) == 0 {
		kinds = []Kind{Before, After}
	}
	s.seed, s.share, s.kinds = seed, share, slices.Clone(kinds)
}

// Lift takes all faults away.
func (s *Store) Lift() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults, s.share = nil, 0
}

// Calls gives how often each verb was called since New.
func (s *Store) Calls() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[string]int, len(s.calls))
	for verb, n := range s.calls {
		out[verb] = n
	}
	return out
}

// Met gives the calls that met a fault since New, in their order.
func (s *Store) Met() []Met {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.met)
}

// Wake implements store.Store; it meets no fault.
func (s *Store) Wake() <-chan string { return s.inner.Wake() }

// Close implements store.Store; it meets no fault.
func (s *Store) Close() error { return s.inner.Close() }

// next counts a call and gives the fault that it meets, the zero Fault if none.
func (s *Store) next(verb string) Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[verb]++
	var meets Fault
	for _, p := range s.faults {
		if p.Verb != "" && p.Verb != verb {
			continue
		}
		p.seen++
		if meets.Kind == "" && p.seen >= p.Nth && (p.Times < 0 || p.seen < p.Nth+p.Times) {
			meets = p.Fault
		}
	}
	if meets.Kind == "" && s.share > 0 {
		if draw := s.draw(verb, s.calls[verb]); float64(draw>>32) < s.share*math.Exp2(32) {
			meets.Kind = s.kinds[int(draw&math.MaxUint32)%len(s.kinds)]
		}
	}
	if meets.Kind != "" {
		s.met = append(s.met, Met{Verb: verb, Call: s.calls[verb], Kind: meets.Kind})
	}
	return meets
}

// draw gives the number that belongs to the nth call of a verb.
func (s *Store) draw(verb string, n int) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(verb)) // never fails
	_ = binary.Write(h, binary.LittleEndian, [2]uint64{s.seed, uint64(n)})
	x := h.Sum64() // FNV leaves its high bits alike; this mixes them
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// meet reports whether a verb is to run, and gives the error that its caller gets whatever comes of it, nil if none.
func (s *Store) meet(ctx context.Context, verb string) (run bool, lost error) {
	f := s.next(verb)
	if f.Delay > 0 {
		timer := time.NewTimer(f.Delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return false, unanswered(verb, ctx.Err())
		}
	}
	if f.Kind == Before || f.Kind == After {
		return f.Kind == After, unanswered(verb, ErrInjected)
	}
	return true, nil
}

// unanswered is what a store says that cannot be reached or whose answer is lost.
func unanswered(verb string, cause error) error {
	return holdpoint.Errorf(holdpoint.CodeUnavailable, "the store did not answer %s; repeat the call", verb).Wrap(cause)
}

// none passes a verb that answers nothing but an error through the plan; one, two and three those with results, which are
// zero when the answer is lost.
func none(ctx context.Context, s *Store, verb string, run func() error) error {
	_, err := one(ctx, s, verb, func() (struct{}, error) { return struct{}{}, run() })
	return err
}

func one[A any](ctx context.Context, s *Store, verb string, run func() (A, error)) (A, error) {
	a, _, err := two(ctx, s, verb, func() (A, struct{}, error) { a, err := run(); return a, struct{}{}, err })
	return a, err
}

func two[A, B any](ctx context.Context, s *Store, verb string, run func() (A, B, error)) (A, B, error) {
	a, b, _, err := three(ctx, s, verb, func() (A, B, struct{}, error) { a, b, err := run(); return a, b, struct{}{}, err })
	return a, b, err
}

func three[A, B, C any](ctx context.Context, s *Store, verb string, run func() (A, B, C, error)) (A, B, C, error) {
	runs, lost := s.meet(ctx, verb)
	var (
		a   A
		b   B
		c   C
		err error
	)
	if runs {
		a, b, c, err = run()
	}
	if lost != nil {
		return *new(A), *new(B), *new(C), lost
	}
	return a, b, c, err
}
