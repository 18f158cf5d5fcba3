package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// testClaimRaces is claims that meet, on the database's own clock.
func testClaimRaces(t *testing.T, open func(testing.TB, func() time.Time) store.Store) {
	s := open(t, nil)
	createTenant(t, s, "acme")
	Races(t, s)
}

// Races lets claims of tenant acme meet, spread over several stores of one database.
func Races(t *testing.T, stores ...store.Store) {
	t.Run("one key", func(t *testing.T) {
		const n = 200
		key := uuid.NewString()
		results := together(t, n, func(ctx context.Context, i int) (store.ClaimResult, error) {
			all, err := stores[i%len(stores)].ClaimRuns(ctx, []store.Claim{newClaim("acme", key)})
			if err != nil {
				return store.ClaimResult{}, err
			}
			return all[0], nil
		})
		winners := slices.DeleteFunc(slices.Clone(results), func(r store.ClaimResult) bool { return r.Outcome != holdpoint.Claimed })
		require.Len(t, winners, 1, "exactly one lease")
		counted := map[int]bool{}
		for _, r := range results {
			require.Equal(t, winners[0].Run.ID, r.Run.ID)
			if r.Outcome != holdpoint.Claimed {
				require.Equal(t, holdpoint.Busy, r.Outcome)
				require.Positive(t, r.RetryAfter)
				require.False(t, counted[r.Run.Duplicates], "two deliveries were counted as one")
				counted[r.Run.Duplicates] = true
			}
		}
		rec, err := stores[0].Record(t.Context(), "acme", winners[0].Run.ID)
		require.NoError(t, err)
		require.Equal(t, n-1, rec.Run.Duplicates)
		require.EqualValues(t, 1, rec.Run.Version)
		events, err := stores[0].Events(t.Context(), "acme", rec.Run.ID)
		require.NoError(t, err)
		require.Len(t, events, 1+20)
		for i, e := range events {
			require.EqualValues(t, i+1, e.Seq)
		}
	})
	t.Run("recovery", func(t *testing.T) {
		c := newClaim("acme", uuid.NewString())
		c.Lease = time.Microsecond // over before anyone can claim again
		first, err := stores[0].ClaimRuns(t.Context(), []store.Claim{c})
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			now, err := stores[0].Now(t.Context())
			return err == nil && now.After(first[0].Lease.ExpiresAt)
		}, 5*time.Second, time.Millisecond)
		results := together(t, 50, func(ctx context.Context, i int) (store.ClaimResult, error) {
			again := newClaim("acme", c.Key)
			all, err := stores[i%len(stores)].ClaimRuns(ctx, []store.Claim{again})
			if err != nil {
				return store.ClaimResult{}, err
			}
			return all[0], nil
		})
		claimed := 0
		for _, r := range results {
			if r.Outcome == holdpoint.Claimed {
				claimed++
				require.Equal(t, "expired_lease", r.RecoveredFrom)
				require.EqualValues(t, 2, r.Lease.Version)
			}
		}
		require.Equal(t, 1, claimed, "exactly one takes over")
	})
	t.Run("batches that share keys", func(t *testing.T) {
		const keys, batches = 40, 6
		prefix := uuid.NewString()
		won := make([]int, keys)
		var mu sync.Mutex
		together(t, batches, func(ctx context.Context, i int) (struct{}, error) {
			claims := make([]store.Claim, keys)
			for k := range claims {
				claims[k] = newClaim("acme", fmt.Sprint(prefix, (k*7+i*11)%keys)) // every batch in another order
			}
			results, err := stores[i%len(stores)].ClaimRuns(ctx, claims)
			if err != nil {
				return struct{}{}, err
			}
			mu.Lock()
			defer mu.Unlock()
			for k, r := range results {
				if r.Outcome == holdpoint.Claimed {
					won[(k*7+i*11)%keys]++
				}
			}
			return struct{}{}, nil
		})
		for k, n := range won {
			require.Equal(t, 1, n, "key %d", k)
		}
	})
	t.Run("sweeps and replacements meet claims", func(t *testing.T) { raceSweeps(t, stores) })
	t.Run("a renewal meets a take-over", func(t *testing.T) {
		c := newClaim("acme", uuid.NewString())
		c.Lease = 20 * time.Millisecond
		all, err := stores[0].ClaimRuns(t.Context(), []store.Claim{c})
		require.NoError(t, err)
		fence := store.Fence{Tenant: "acme", RunID: c.RunID, Owner: c.Owner, Version: all[0].Lease.Version, ExecutionID: c.ExecutionID}
		together(t, 8, func(ctx context.Context, i int) (struct{}, error) {
			for range 10 {
				if i%2 == 0 {
					_, _ = stores[i%len(stores)].RenewLease(ctx, fence, time.Minute) // lost or not, as it comes
				} else if _, err := stores[i%len(stores)].ClaimRuns(ctx, []store.Claim{newClaim("acme", c.Key)}); err != nil {
					return struct{}{}, err
				}
			}
			return struct{}{}, nil
		})
		rec, err := stores[0].Record(t.Context(), "acme", c.RunID)
		require.NoError(t, err)
		_, err = stores[0].RenewLease(t.Context(), fence, time.Minute)
		if rec.Run.Version == 1 {
			require.NoError(t, err)
			require.Equal(t, c.Owner, rec.Run.LeaseOwner)
		} else {
			require.EqualValues(t, 2, rec.Run.Version)
			requireCode(t, holdpoint.CodeLeaseLost, err)
		}
	})
}

// raceSweeps lets claims of runs that expire at once, sweeps and replacements meet: none waits for another for ever, and
// the evidence of each run stays whole.
func raceSweeps(t *testing.T, stores []store.Store) {
	const keys = 12
	prefix := uuid.NewString()
	together(t, 9, func(ctx context.Context, i int) (struct{}, error) {
		s := stores[i%len(stores)]
		for round := range 6 {
			claims := make([]store.Claim, keys)
			for k := range claims {
				claims[k] = newClaim("acme", fmt.Sprint(prefix, (k*5+i+round)%keys))
				claims[k].Lease, claims[k].StealCap = time.Microsecond, 3
			}
			switch i % 3 {
			case 0:
				if _, err := s.SweepRuns(ctx, 5); err != nil {
					return struct{}{}, err
				}
			case 1:
				if _, err := s.ClaimRuns(ctx, claims); err != nil {
					return struct{}{}, err
				}
			default:
				results, err := s.ClaimRuns(ctx, claims[:2])
				if err != nil {
					return struct{}{}, err
				}
				_, _, _, err = s.ReplaceRun(ctx, store.Replacement{Tenant: "acme", OldRunID: results[0].Run.ID, New: claims[2], Who: machine})
				var refused *holdpoint.Error
				if err != nil && !(errors.As(err, &refused) && refused.Code == holdpoint.CodeNotAllowedNow) {
					return struct{}{}, err
				}
			}
		}
		return struct{}{}, nil
	})
	for k := range keys {
		results, err := stores[0].ClaimRuns(t.Context(), []store.Claim{newClaim("acme", fmt.Sprint(prefix, k))})
		require.NoError(t, err)
		run := results[0].Run
		require.LessOrEqual(t, run.Steals, 3)
		events, err := stores[0].Events(t.Context(), "acme", run.ID)
		require.NoError(t, err)
		moves := map[int64]int{}
		for i, e := range events {
			require.EqualValues(t, i+1, e.Seq)
			if e.Type == "run.claimed" || e.Type == "run.failed" {
				moves[int64(e.Data["version"].(float64))]++
			}
		}
		for version, n := range moves {
			require.Equal(t, 1, n, "version %d was reached twice", version)
		}
		if run.ReplacedBy != "" {
			rec, err := stores[0].Record(t.Context(), "acme", run.ReplacedBy)
			require.NoError(t, err)
			require.Equal(t, run.ID, rec.Run.Replaces, "a correction is linked both ways")
		}
	}
}

// together runs n calls at once and gives their answers; none may fail.
func together[T any](t *testing.T, n int, call func(ctx context.Context, i int) (T, error)) []T {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	answers, errs := make([]T, n), make([]error, n)
	gate := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-gate
			answers[i], errs[i] = call(ctx, i)
		})
	}
	close(gate)
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	return answers
}
