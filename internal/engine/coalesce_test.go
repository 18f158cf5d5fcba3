package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/lanes"
	"github.com/holdpoint/holdpoint/internal/store"
)

// statements records what reached the store and answers each claim as won, unless it is told otherwise.
type statements struct {
	mu      sync.Mutex
	batches [][]store.Claim
	gate    chan struct{} // nil: answer at once; else one receive lets one statement through
	fail    func([]store.Claim) error
}

func (s *statements) run(ctx context.Context, claims []store.Claim) ([]store.ClaimResult, error) {
	s.mu.Lock()
	s.batches = append(s.batches, claims)
	s.mu.Unlock()
	if s.gate != nil {
		select {
		case <-s.gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if s.fail != nil {
		if err := s.fail(claims); err != nil {
			return nil, err
		}
	}
	now := time.Unix(1000, 0)
	results := make([]store.ClaimResult, len(claims))
	for i, c := range claims {
		results[i] = store.ClaimResult{Outcome: holdpoint.Claimed, Now: now, Run: holdpoint.Run{ID: c.RunID, Key: c.Key},
			Lease: &holdpoint.Lease{Owner: c.Owner, Version: 1, ExpiresAt: now.Add(time.Minute)}}
	}
	return results, nil
}

func claimOf(key, fingerprint, owner string, explicit bool) store.Claim {
	return store.Claim{Tenant: "t", Scope: "s", Workflow: "w", Key: key, KeyHMAC: key, Fingerprint: fingerprint, Owner: owner, OwnerExplicit: explicit}
}

// ask claims in the background once the flusher is busy, so that everything asked meets in one later statement.
func ask(c *coalescer, claims ...store.Claim) func() ([]store.ClaimResult, []error) {
	var results []store.ClaimResult
	var errs []error
	done := make(chan struct{})
	go func() {
		results, errs = c.claim(context.Background(), claims)
		close(done)
	}()
	return func() ([]store.ClaimResult, []error) { <-done; return results, errs }
}

// gathered runs fn while a statement is blocked and nobody's patience is over, then lets everything through.
func gathered(t *testing.T, s *statements, fn func(c *coalescer) func()) {
	synctest.Test(t, func(t *testing.T) {
		s.gate = make(chan struct{})
		c := newCoalescer(s.run)
		block := ask(c, claimOf("block", "f", "o", false))
		synctest.Wait()
		check := fn(c)
		synctest.Wait()
		close(s.gate)
		_, errs := block()
		require.NoError(t, errs[0])
		check()
	})
}

func TestCoalescerAnswersFollowersFromTheLeadersRow(t *testing.T) {
	s := &statements{}
	gathered(t, s, func(c *coalescer) func() {
		var calls []func() ([]store.ClaimResult, []error)
		for range 10 {
			calls = append(calls, ask(c, claimOf("k", "f", newID(), false)))
		}
		return func() {
			won := 0
			for _, call := range calls {
				r, errs := call()
				require.NoError(t, errs[0])
				if r[0].Outcome == holdpoint.Claimed {
					won++
					continue
				}
				require.Equal(t, holdpoint.Busy, r[0].Outcome)
				require.Nil(t, r[0].Lease)
				require.Equal(t, time.Minute, r[0].RetryAfter)
			}
			require.Equal(t, 1, won)
			require.Len(t, s.batches, 2)
			require.Len(t, s.batches[1], 1, "one row for ten callers")
			require.Equal(t, 9, s.batches[1][0].Extra)
		}
	})
}

func TestCoalescerSendsWhatWaitsTooLongBesideABlockedStatement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &statements{gate: make(chan struct{})}
		c := newCoalescer(s.run)
		calls := []func() ([]store.ClaimResult, []error){}
		for i := range 2 + maxBeside {
			calls = append(calls, ask(c, claimOf(fmt.Sprint(i), "f", "o", false)))
			time.Sleep(2 * lanes.Patience)
		}
		synctest.Wait()
		require.Len(t, s.batches, 1+maxBeside, "no more at once, or a locked row takes every connection")
		close(s.gate)
		for _, call := range calls {
			_, errs := call()
			require.NoError(t, errs[0])
		}
		synctest.Wait()
		require.Len(t, s.batches, 2+maxBeside)
	})
}

func TestCoalescerTellsALostAnswerFromASecondClaimInOneBatch(t *testing.T) {
	owner := newID()
	s := &statements{}
	gathered(t, s, func(c *coalescer) func() {
		first := ask(c, claimOf("k", "f", owner, true), claimOf("k", "f", owner, true))
		synctest.Wait()
		second := ask(c, claimOf("k", "f", owner, true))
		return func() {
			r, _ := first()
			require.Equal(t, holdpoint.Claimed, r[0].Outcome)
			require.Equal(t, holdpoint.Busy, r[1].Outcome, "inside one batch")
			r, _ = second()
			require.Equal(t, holdpoint.Claimed, r[0].Outcome, "another call with the same owner is the first one's lost answer")
			require.True(t, r[0].Repeated)
		}
	})
}

func TestCoalescerKeepsOtherContentAndOtherOwnersForALaterStatement(t *testing.T) {
	s := &statements{}
	gathered(t, s, func(c *coalescer) func() {
		calls := []func() ([]store.ClaimResult, []error){ask(c, claimOf("k", "f", newID(), false))}
		synctest.Wait()
		calls = append(calls, ask(c, claimOf("k", "other", newID(), false)))
		synctest.Wait()
		calls = append(calls, ask(c, claimOf("k", "f", newID(), true)))
		return func() {
			for _, call := range calls {
				_, errs := call()
				require.NoError(t, errs[0])
			}
			rows := 0
			for _, b := range s.batches[1:] {
				seen := map[string]bool{}
				for _, x := range b {
					require.False(t, seen[x.KeyHMAC], "a key stands once in a statement")
					seen[x.KeyHMAC] = true
					rows++
				}
			}
			require.Equal(t, 3, rows)
		}
	})
}

func TestCoalescerSplitsAnErrorDownToItsCause(t *testing.T) {
	s := &statements{fail: func(claims []store.Claim) error {
		for _, c := range claims {
			if c.Key == "poison" {
				return errors.New("poison")
			}
		}
		return nil
	}}
	gathered(t, s, func(c *coalescer) func() {
		calls := map[string]func() ([]store.ClaimResult, []error){}
		for _, k := range []string{"a", "b", "poison", "c", "d"} {
			calls[k] = ask(c, claimOf(k, "f", newID(), false))
			synctest.Wait()
		}
		return func() {
			for k, call := range calls {
				_, errs := call()
				if k == "poison" {
					require.Error(t, errs[0])
				} else {
					require.NoError(t, errs[0], k)
				}
			}
		}
	})
}

func TestCoalescerCancellationReachesOnlyItsCaller(t *testing.T) {
	s := &statements{}
	gathered(t, s, func(c *coalescer) func() {
		ctx, cancel := context.WithCancel(context.Background())
		gone := make(chan error, 1)
		go func() {
			_, errs := c.claim(ctx, []store.Claim{claimOf("gone", "f", newID(), false)})
			gone <- errs[0]
		}()
		synctest.Wait()
		stays := ask(c, claimOf("stays", "f", newID(), false))
		synctest.Wait()
		cancel()
		require.ErrorIs(t, <-gone, &holdpoint.Error{Code: holdpoint.CodeUnavailable})
		return func() {
			_, errs := stays()
			require.NoError(t, errs[0])
			for _, b := range s.batches {
				for _, x := range b {
					require.NotEqual(t, "gone", x.Key, "a claim that was not on its way yet is not made")
				}
			}
		}
	})
}

// A statement may fail after it has committed. Its claims are asked again as the same claims, so that the lease that one
// of them holds by then is its own.
func TestCoalescerAsksAgainAsTheSameOwner(t *testing.T) {
	s := &statements{}
	var mu sync.Mutex
	committed := map[string]string{}
	s.fail = func(claims []store.Claim) error {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range claims {
			if owner, held := committed[c.Key]; held && (owner != c.Owner || !c.OwnerExplicit) {
				return errors.New("busy")
			}
			committed[c.Key] = c.Owner
		}
		if len(claims) > 1 {
			return errors.New("the connection was lost at the commit")
		}
		return nil
	}
	gathered(t, s, func(c *coalescer) func() {
		wait := ask(c, claimOf("a", "f", "o1", false), claimOf("b", "f", "o2", false), claimOf("c", "f", "o3", true))
		return func() {
			results, errs := wait()
			for i := range results {
				require.NoError(t, errs[i])
				require.Equal(t, holdpoint.Claimed, results[i].Outcome)
			}
		}
	})
}
