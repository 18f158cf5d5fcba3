package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// testClaims is every answer to a claim, one claim at a time.
func testClaims(t *testing.T, open func(testing.TB, func() time.Time) store.Store) {
	t.Run("new key", func(t *testing.T) {
		f := newFixture(t, open)
		c := newClaim(f.tenant, "k")
		c.Operation = &holdpoint.Operation{Source: "shop", Record: "4711", Action: "refund"}
		r := f.try(c)
		require.Equal(t, holdpoint.Claimed, r.Outcome)
		require.Empty(t, r.RecoveredFrom)
		require.False(t, r.Repeated)
		require.Equal(t, c.RunID, r.Run.ID)
		require.Equal(t, &holdpoint.Lease{Owner: c.Owner, Version: 1, ExpiresAt: start.Add(time.Minute), CapAt: start.Add(10 * time.Minute)}, r.Lease)
		require.Equal(t, start, r.Now)
		require.Equal(t, start.Add(time.Hour), *r.Run.BudgetUntil)
		require.Equal(t, holdpoint.RunProcessing, r.Run.State)
		require.Equal(t, c.Operation, r.Run.Operation)
		require.Equal(t, c.Ignore, r.Run.Ignore)
		require.Equal(t, []int{1, 1, 0, 0}, []int{r.Run.Attempts, r.Run.Round, r.Run.Steals, r.Run.Duplicates})
		require.Equal(t, []string{"run.claimed"}, f.kinds(c.RunID))
		require.Equal(t, []byte("payload"), f.record(c.RunID).Payload)
	})
	t.Run("lease never passes the cap", func(t *testing.T) {
		f := newFixture(t, open)
		c := newClaim(f.tenant, "k")
		c.Lease = time.Hour
		r := f.try(c)
		require.Equal(t, r.Lease.CapAt, r.Lease.ExpiresAt)
	})
	t.Run("live lease elsewhere is busy", func(t *testing.T) {
		f := newFixture(t, open)
		fence := f.work("k")
		f.advance(20 * time.Second)
		r := f.try(newClaim(f.tenant, "k"))
		require.Equal(t, holdpoint.Busy, r.Outcome)
		require.Equal(t, 40*time.Second, r.RetryAfter)
		require.Nil(t, r.Lease)
		require.Equal(t, fence.RunID, r.Run.ID)
		require.Equal(t, 1, r.Run.Duplicates)
		require.EqualValues(t, 1, r.Run.Version)
		require.Equal(t, []string{"run.claimed", "run.duplicate"}, f.kinds(fence.RunID))
	})
	t.Run("states that answer duplicate", func(t *testing.T) {
		f := newFixture(t, open)
		for state, leave := range map[holdpoint.RunState]func(store.Fence){
			holdpoint.RunAwaitingHuman: func(fence store.Fence) { f.held(fence, "mail") },
			holdpoint.RunCompleted: func(fence store.Fence) {
				_, err := f.EndWork(f.ctx, fence, store.WorkEnd{State: holdpoint.RunCompleted, Result: []byte("r"), Who: machine})
				require.NoError(t, err)
			},
			holdpoint.RunFailedTerminal: func(fence store.Fence) {
				_, err := f.EndWork(f.ctx, fence, store.WorkEnd{State: holdpoint.RunFailedTerminal, Reason: holdpoint.ReasonQuarantine, Who: machine})
				require.NoError(t, err)
			},
		} {
			fence := f.work(string(state))
			leave(fence)
			r := f.try(newClaim(f.tenant, string(state)))
			require.Equal(t, holdpoint.Duplicate, r.Outcome, state)
			require.Equal(t, state, r.Run.State)
			require.Equal(t, fence.RunID, r.Run.ID)
			require.Nil(t, r.Lease)
		}
	})
	t.Run("mismatch changes nothing and is counted", func(t *testing.T) {
		f := newFixture(t, open)
		fence := f.work("k")
		before := f.record(fence.RunID).Run
		f.advance(2 * time.Minute) // even an expired lease is not taken over with another payload
		c := newClaim(f.tenant, "k")
		c.Fingerprint = "other"
		for i := 1; i <= 22; i++ {
			r := f.try(c)
			require.Equal(t, holdpoint.Mismatch, r.Outcome)
			require.Equal(t, i, r.Run.Mismatches)
		}
		after := f.record(fence.RunID).Run
		after.Mismatches = before.Mismatches
		require.Equal(t, before, after)
		require.Equal(t, 20, count(f.kinds(fence.RunID), "run.mismatch"))
	})
	t.Run("another fingerprint rule decides nothing", func(t *testing.T) {
		f := newFixture(t, open)
		fence := f.work("k")
		before := f.record(fence.RunID).Run
		for _, fingerprint := range []string{"fp-k", "other"} {
			c := newClaim(f.tenant, "k")
			c.Fingerprint, c.FingerprintRule, c.Ignore = fingerprint, "rule-2", nil
			r := f.try(c)
			require.True(t, r.RuleDiffers)
			require.Equal(t, []string{"/sent_at"}, r.Run.Ignore, "the caller recomputes under the run's own rule")
		}
		require.Equal(t, before, f.record(fence.RunID).Run)
		require.Equal(t, []string{"run.claimed"}, f.kinds(fence.RunID))
	})
	t.Run("keys of other tenants and scopes are other runs", func(t *testing.T) {
		f := newFixture(t, open)
		createTenant(t, f.Store, "other")
		f.work("k")
		c := newClaim("other", "k")
		f.claimed(c)
		c = newClaim(f.tenant, "k")
		c.Scope = "second"
		f.claimed(c)
	})
	t.Run("expired lease is taken over", func(t *testing.T) {
		f := newFixture(t, open)
		first := f.work("k")
		f.advance(time.Minute) // to the instant of expiry: the lease is over at it
		c := newClaim(f.tenant, "k")
		c.ExecutionID, c.PolicyHash, c.DeliveryID, c.Extra = "exec-2", "policy-2", "delivery-2", 2
		r := f.try(c)
		require.Equal(t, holdpoint.Claimed, r.Outcome)
		require.Equal(t, "expired_lease", r.RecoveredFrom)
		require.Equal(t, first.RunID, r.Run.ID)
		require.Equal(t, &holdpoint.Lease{Owner: c.Owner, Version: 2, ExpiresAt: f.now().Add(time.Minute), CapAt: f.now().Add(10 * time.Minute)}, r.Lease)
		require.Equal(t, []int{2, 1, 1, 2}, []int{r.Run.Attempts, r.Run.Round, r.Run.Steals, r.Run.Duplicates})
		require.Equal(t, []string{"exec-2", "policy-2", "delivery-2"}, []string{r.Run.ExecutionID, r.Run.PolicyHash, r.Run.DeliveryID})
		require.Equal(t, holdpoint.ReasonExpiredLease, r.Run.Reason)
		require.Equal(t, start.Add(time.Hour), *r.Run.BudgetUntil, "the budget of the round stays")
		require.Equal(t, []string{"run.claimed", "run.claimed", "run.stolen", "run.duplicate", "run.duplicate"}, f.kinds(r.Run.ID))
		_, err := f.RenewLease(f.ctx, first, time.Minute)
		requireCode(t, holdpoint.CodeLeaseLost, err)
	})
	t.Run("retry time", func(t *testing.T) {
		f := newFixture(t, open)
		fence := f.work("k")
		_, err := f.EndWork(f.ctx, fence, store.WorkEnd{State: holdpoint.RunFailedRetryable, Class: holdpoint.ClassModelTimeout, RetryIn: 30 * time.Second, Who: machine})
		require.NoError(t, err)
		f.advance(10 * time.Second)
		r := f.try(newClaim(f.tenant, "k"))
		require.Equal(t, holdpoint.Busy, r.Outcome)
		require.Equal(t, 20*time.Second, r.RetryAfter)
		f.advance(20 * time.Second)
		r = f.try(newClaim(f.tenant, "k"))
		require.Equal(t, holdpoint.Claimed, r.Outcome)
		require.Equal(t, "failed_retryable", r.RecoveredFrom)
		require.Equal(t, holdpoint.ReasonRetryDue, r.Run.Reason)
		require.Empty(t, r.Run.FailureClass)
		require.Nil(t, r.Run.RetryAt)
		require.EqualValues(t, 3, r.Run.Version)
		require.Equal(t, []int{2, 0}, []int{r.Run.Attempts, r.Run.Steals})
	})
	t.Run("steal cap", func(t *testing.T) {
		f := newFixture(t, open)
		fence := f.work("k")
		for range 2 {
			f.advance(time.Minute)
			require.Equal(t, "expired_lease", f.try(newClaim(f.tenant, "k")).RecoveredFrom)
		}
		f.advance(time.Minute)
		r := f.try(newClaim(f.tenant, "k"))
		require.Equal(t, holdpoint.Busy, r.Outcome)
		require.Equal(t, time.Second, r.RetryAfter)
		swept, err := f.SweepRuns(f.ctx, 10)
		require.NoError(t, err)
		require.Len(t, swept, 1)
		require.Equal(t, "run.failed", swept[0].What)
		require.Equal(t, holdpoint.ReasonSteals, swept[0].Run.Reason)
		r = f.try(newClaim(f.tenant, "k"))
		require.Equal(t, holdpoint.Duplicate, r.Outcome)
		require.Equal(t, holdpoint.RunFailedTerminal, r.Run.State)
		require.Equal(t, 2, count(f.kinds(fence.RunID), "run.stolen"))
	})
	t.Run("budget over", func(t *testing.T) {
		f := newFixture(t, open)
		f.work("k")
		f.advance(time.Hour)
		r := f.try(newClaim(f.tenant, "k"))
		require.Equal(t, holdpoint.Busy, r.Outcome)
		require.Equal(t, time.Second, r.RetryAfter)
	})
	t.Run("lost answer", func(t *testing.T) {
		f := newFixture(t, open)
		c := newClaim(f.tenant, "k")
		c.OwnerExplicit = true
		first := f.try(c)
		f.advance(10 * time.Second)
		for _, id := range []string{c.RunID, uuid.NewString()} { // the caller may propose the same id, or another
			again := c
			again.RunID, again.Extra = id, 0
			r := f.try(again)
			require.Equal(t, holdpoint.Claimed, r.Outcome)
			require.True(t, r.Repeated)
			require.Empty(t, r.RecoveredFrom)
			require.Equal(t, first.Lease, r.Lease)
			require.Equal(t, first.Run, r.Run)
		}
		require.Equal(t, []string{"run.claimed"}, f.kinds(c.RunID))

		other := c
		other.ExecutionID = "exec-2"
		require.Equal(t, holdpoint.Busy, f.try(other).Outcome, "the lease is bound to its execution")
		other = c
		other.OwnerExplicit = false
		require.Equal(t, holdpoint.Busy, f.try(other).Outcome, "an owner that the caller did not choose repeats nothing")
		again := c
		again.Extra = 3
		r := f.try(again)
		require.True(t, r.Repeated)
		require.Equal(t, 5, r.Run.Duplicates, "those that wait for the same answer are duplicates")

		f.advance(time.Minute)
		r = f.try(c)
		require.False(t, r.Repeated)
		require.Equal(t, "expired_lease", r.RecoveredFrom, "an expired lease is not repeated but taken over")
		require.EqualValues(t, 2, r.Lease.Version)
	})
	t.Run("claim by the id of the run", func(t *testing.T) {
		f := newFixture(t, open)
		c := newClaim(f.tenant, "k")
		f.claimed(c)
		again := newClaim(f.tenant, "k")
		again.RunID, again.ExecutionID = c.RunID, "exec-2"
		require.Equal(t, holdpoint.Busy, f.try(again).Outcome)
		f.advance(time.Minute)
		r := f.try(again)
		require.Equal(t, "expired_lease", r.RecoveredFrom)
		require.Equal(t, "exec-2", r.Run.ExecutionID)
	})
	t.Run("duplicates become events: the first twenty and the last", func(t *testing.T) {
		f := newFixture(t, open)
		c := newClaim(f.tenant, "k")
		c.Extra = 7
		f.claimed(c)
		require.Equal(t, 7, count(f.kinds(c.RunID), "run.duplicate"))
		again := newClaim(f.tenant, "k")
		again.Extra = 17
		require.Equal(t, 25, f.try(again).Run.Duplicates)
		require.Equal(t, 26, f.try(newClaim(f.tenant, "k")).Run.Duplicates)
		require.Equal(t, 20, count(f.kinds(c.RunID), "run.duplicate"))

		_, err := f.SweepRuns(f.ctx, 10)
		require.NoError(t, err)
		require.Equal(t, 20, count(f.kinds(c.RunID), "run.duplicate"), "the run is not quiet yet")
		for range 2 {
			f.advance(time.Minute)
			_, err = f.SweepRuns(f.ctx, 10)
			require.NoError(t, err)
		}
		require.Equal(t, 21, count(f.kinds(c.RunID), "run.duplicate"))
		for _, e := range f.eventsOf(c.RunID) {
			if e.Type == "run.duplicate" && e.Data["last"] == true {
				require.EqualValues(t, 26, e.Data["number"])
			}
		}
	})
	t.Run("batch", func(t *testing.T) {
		f := newFixture(t, open)
		const n = 500
		claims := make([]store.Claim, n)
		for i := range claims {
			claims[i] = newClaim(f.tenant, fmt.Sprint("k", (i*271)%n)) // in no order
		}
		results, err := f.ClaimRuns(f.ctx, claims)
		require.NoError(t, err)
		require.Len(t, results, n)
		for i, r := range results {
			require.Equal(t, holdpoint.Claimed, r.Outcome)
			require.Equal(t, claims[i].RunID, r.Run.ID, "results are in the order of the claims")
			require.Equal(t, claims[i].Owner, r.Lease.Owner)
		}
		f.advance(time.Second)
		claims[7] = newClaim(f.tenant, "fresh")
		claims[9].Fingerprint = "other"
		claims[11].OwnerExplicit = true
		for i := range claims {
			claims[i].RunID = uuid.NewString()
		}
		results, err = f.ClaimRuns(f.ctx, claims)
		require.NoError(t, err)
		for i, r := range results {
			want := holdpoint.Busy
			switch i {
			case 7, 11:
				want = holdpoint.Claimed
			case 9:
				want = holdpoint.Mismatch
			}
			require.Equal(t, want, r.Outcome, i)
		}
		require.True(t, results[11].Repeated)
	})
	t.Run("no claims", func(t *testing.T) {
		f := newFixture(t, open)
		results, err := f.ClaimRuns(f.ctx, nil)
		require.NoError(t, err)
		require.Empty(t, results)
	})
	t.Run("work durations", func(t *testing.T) {
		f := newFixture(t, open)
		for i := 1; i <= 3; i++ {
			fence := f.work(fmt.Sprint("k", i))
			f.advance(time.Duration(i) * time.Second)
			f.held(fence, "mail")
		}
		fence := f.work("failed")
		_, err := f.EndWork(f.ctx, fence, store.WorkEnd{State: holdpoint.RunFailedTerminal, Who: machine})
		require.NoError(t, err)
		got, err := f.WorkDurations(f.ctx, f.tenant, "refund", 2)
		require.NoError(t, err)
		require.Equal(t, []time.Duration{3 * time.Second, 2 * time.Second}, got)
		got, err = f.WorkDurations(f.ctx, f.tenant, "none", 2)
		require.NoError(t, err)
		require.Empty(t, got)
	})
}
