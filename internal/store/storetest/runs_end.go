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

var operator = holdpoint.Who{Kind: "person", ID: "p1", How: "session"}

// replacement corrects a run under a new key.
func (f *fixture) replacement(oldRun, key string) store.Replacement {
	c := newClaim(f.tenant, key)
	c.ExecutionID, c.Owner = "", ""
	return store.Replacement{Tenant: f.tenant, OldRunID: oldRun, New: c, ReasonText: []byte("sealed"), Who: operator}
}

func testReplacements(t *testing.T, open func(testing.TB, func() time.Time) store.Store) {
	f := newFixture(t, open)
	t.Run("of a run that waits for a person", func(t *testing.T) {
		f := f.on(t)
		fence := f.work("a")
		_, approval := f.held(fence, "mail")
		p := f.replacement(fence.RunID, "a-new")
		before, after, created, err := f.ReplaceRun(f.ctx, p)
		require.NoError(t, err)
		require.True(t, created)
		require.Equal(t, []any{holdpoint.RunFailedTerminal, holdpoint.ReasonReplaced, p.New.RunID}, []any{before.State, before.Reason, before.ReplacedBy})
		require.Equal(t, []any{holdpoint.RunFailedRetryable, fence.RunID, p.New.RunID}, []any{after.State, after.Replaces, after.ID})
		require.Equal(t, []int{0, 1}, []int{after.Attempts, after.Round})
		require.Equal(t, before, f.record(before.ID).Run)
		require.Equal(t, after, f.record(after.ID).Run)
		rec := f.record(fence.RunID)
		require.Equal(t, holdpoint.ApprovalInvalidated, rec.Approvals[0].State)
		require.Equal(t, approval.Version+1, rec.Approvals[0].Version)
		require.NotNil(t, rec.Challenges[0].RevokedAt)
		require.Subset(t, f.kinds(before.ID), []string{"approval.invalidated", "run.replaced"})
		require.Equal(t, []string{"run.linked"}, f.kinds(after.ID))

		p.New.RunID = uuid.NewString() // the call again, after a lost answer
		sameBefore, sameAfter, created, err := f.ReplaceRun(f.ctx, p)
		require.NoError(t, err)
		require.False(t, created)
		require.Equal(t, []holdpoint.Run{before, after}, []holdpoint.Run{sameBefore, sameAfter})

		r := f.try(newClaim(f.tenant, "a-new"))
		require.Equal(t, holdpoint.Claimed, r.Outcome, "any execution can claim it at once")
		require.Equal(t, []int{1, 0}, []int{r.Run.Attempts, r.Run.Steals})
		require.Equal(t, "exec-1", r.Run.ExecutionID)

		_, _, _, err = f.ReplaceRun(f.ctx, f.replacement(fence.RunID, "a-newer"))
		requireCode(t, holdpoint.CodeNotAllowedNow, err)
		require.Equal(t, holdpoint.Claimed, f.try(newClaim(f.tenant, "a-newer")).Outcome, "a refused replacement makes no run")
	})
	t.Run("of a finished run, by a run that exists", func(t *testing.T) {
		f := f.on(t)
		fence, other := f.work("b"), f.work("b-new")
		end, err := f.EndWork(f.ctx, fence, store.WorkEnd{State: holdpoint.RunCompleted, Who: machine})
		require.NoError(t, err)
		before, after, created, err := f.ReplaceRun(f.ctx, f.replacement(fence.RunID, "b-new"))
		require.NoError(t, err)
		require.False(t, created)
		require.Equal(t, []any{end.State, end.Version, end.Reason}, []any{before.State, before.Version, before.Reason}, "what has ended stays as it is")
		require.Equal(t, []any{other.RunID, holdpoint.RunProcessing}, []any{after.ID, after.State})

		another := f.work("b-2")
		_, err = f.EndWork(f.ctx, another, store.WorkEnd{State: holdpoint.RunCompleted, Who: machine})
		require.NoError(t, err)
		_, _, _, err = f.ReplaceRun(f.ctx, f.replacement(another.RunID, "b-new"))
		requireCode(t, holdpoint.CodeNotAllowedNow, err) // it corrects b already
		_, _, _, err = f.ReplaceRun(f.ctx, f.replacement(another.RunID, "b"))
		requireCode(t, holdpoint.CodeNotAllowedNow, err) // no circles
		_, _, _, err = f.ReplaceRun(f.ctx, f.replacement(another.RunID, "b-2"))
		requireCode(t, holdpoint.CodeNotAllowedNow, err) // not by itself
		p := f.replacement(another.RunID, "b-3")
		f.work("b-3")
		p.New.Fingerprint = "other"
		_, _, _, err = f.ReplaceRun(f.ctx, p)
		requireCode(t, holdpoint.CodeMismatch, err)
		require.Empty(t, f.record(another.RunID).Run.ReplacedBy)
	})
	t.Run("of a run at work", func(t *testing.T) {
		f := f.on(t)
		fence := f.work("c")
		_, _, _, err := f.ReplaceRun(f.ctx, f.replacement(fence.RunID, "c-new"))
		requireCode(t, holdpoint.CodeNotAllowedNow, err)
		f.advance(time.Minute)
		before, _, _, err := f.ReplaceRun(f.ctx, f.replacement(fence.RunID, "c-new"))
		require.NoError(t, err)
		require.Equal(t, holdpoint.ReasonReplaced, before.Reason)
		_, err = f.RenewLease(f.ctx, fence, time.Minute)
		requireCode(t, holdpoint.CodeLeaseLost, err)
		require.Equal(t, holdpoint.Duplicate, f.try(newClaim(f.tenant, "c")).Outcome)
	})
	t.Run("of a run that waits for its retry", func(t *testing.T) {
		f := f.on(t)
		fence := f.work("d")
		_, err := f.EndWork(f.ctx, fence, store.WorkEnd{State: holdpoint.RunFailedRetryable, Who: machine})
		require.NoError(t, err)
		before, _, _, err := f.ReplaceRun(f.ctx, f.replacement(fence.RunID, "d-new"))
		require.NoError(t, err)
		require.Equal(t, []any{holdpoint.RunFailedTerminal, holdpoint.ReasonReplaced}, []any{before.State, before.Reason})
	})
	t.Run("of no run", func(t *testing.T) {
		f := f.on(t)
		_, _, _, err := f.ReplaceRun(f.ctx, f.replacement(uuid.NewString(), "e-new"))
		requireCode(t, holdpoint.CodeNotFound, err)
	})
}

func testCancellations(t *testing.T, open func(testing.TB, func() time.Time) store.Store) {
	f := newFixture(t, open)
	cancel := func(f *fixture, id string) (holdpoint.Run, error) {
		return f.CancelRun(f.ctx, f.tenant, id, []byte("sealed"), operator)
	}
	t.Run("of a run that waits for its retry", func(t *testing.T) {
		f := f.on(t)
		fence := f.work("retry")
		_, err := cancel(f, fence.RunID)
		requireCode(t, holdpoint.CodeNotAllowedNow, err) // its owner works on it
		_, err = f.EndWork(f.ctx, fence, store.WorkEnd{State: holdpoint.RunFailedRetryable, Who: machine})
		require.NoError(t, err)
		run, err := cancel(f, fence.RunID)
		require.NoError(t, err)
		require.Equal(t, []any{holdpoint.RunFailedTerminal, holdpoint.ReasonCancelled}, []any{run.State, run.Reason})
		require.Equal(t, []string{"run.claimed", "run.failed", "run.cancelled"}, f.kinds(run.ID))
		_, err = cancel(f, fence.RunID)
		requireCode(t, holdpoint.CodeNotAllowedNow, err)
		_, err = cancel(f, uuid.NewString())
		requireCode(t, holdpoint.CodeNotFound, err)
	})
	t.Run("of a run that waits for a person", func(t *testing.T) {
		f := f.on(t)
		fence := f.work("person")
		f.held(fence, "mail")
		run, err := cancel(f, fence.RunID)
		require.NoError(t, err)
		require.Equal(t, []any{holdpoint.RunFailedTerminal, holdpoint.ReasonCancelled}, []any{run.State, run.Reason})
		rec := f.record(run.ID)
		require.Equal(t, holdpoint.ApprovalWithdrawn, rec.Approvals[0].State)
		require.NotNil(t, rec.Challenges[0].RevokedAt)
		require.Empty(t, rec.Effects)
		require.Subset(t, f.kinds(run.ID), []string{"approval.withdrawn", "run.cancelled"})
	})
	t.Run("of a run with released effects", func(t *testing.T) {
		f := f.on(t)
		fence := f.work("approved")
		_, approval := f.held(fence, "mail", "note")
		_, err := f.Decide(f.ctx, store.Decision{Tenant: f.tenant, ID: uuid.NewString(), ApprovalID: approval.ID, Digest: approval.Digest,
			Person: holdpoint.Person{ID: "p1", Tenant: f.tenant, Email: "jane@acme.example"}, Decision: holdpoint.DecisionApprove, Assurance: "link",
			How: "session", Who: operator})
		require.NoError(t, err)
		_, _, _, err = f.ReplaceRun(f.ctx, f.replacement(fence.RunID, "approved-new"))
		requireCode(t, holdpoint.CodeNotAllowedNow, err) // its effects are still open
		run, err := cancel(f, fence.RunID)
		require.NoError(t, err)
		require.Equal(t, []any{holdpoint.RunFailedTerminal, holdpoint.ReasonCancelled}, []any{run.State, run.Reason})
		effects, _, err := f.FindEffects(f.ctx, store.EffectFilter{Tenant: f.tenant, RunID: run.ID, Limit: 10})
		require.NoError(t, err)
		require.Len(t, effects, 2)
		for _, e := range effects {
			require.Equal(t, []any{holdpoint.EffectFailed, "cancelled"}, []any{e.State, e.Reason})
		}
		require.Equal(t, run, f.record(run.ID).Run)
	})
}

func testSweeps(t *testing.T, open func(testing.TB, func() time.Time) store.Store) {
	sweep := func(f *fixture, limit int) map[string][]store.Swept {
		f.t.Helper()
		all, err := f.SweepRuns(f.ctx, limit)
		require.NoError(f.t, err)
		did := map[string][]store.Swept{}
		for _, s := range all {
			did[s.What] = append(did[s.What], s)
		}
		return did
	}
	t.Run("expired approvals", func(t *testing.T) {
		f := newFixture(t, open)
		var ids []string
		for i := range 3 {
			fence := f.work(fmt.Sprint("k", i))
			f.held(fence, "mail")
			ids = append(ids, fence.RunID)
		}
		f.advance(24*time.Hour - time.Microsecond)
		require.Empty(t, sweep(f, 10))
		f.advance(time.Microsecond)
		require.Len(t, sweep(f, 2)["approval.expired"], 2, "at most limit of each kind")
		did := sweep(f, 2)["approval.expired"]
		require.Len(t, did, 1)
		require.Equal(t, holdpoint.ApprovalExpired, did[0].Approval.State)
		require.Empty(t, sweep(f, 10))
		for _, id := range ids {
			rec := f.record(id)
			require.Equal(t, []any{holdpoint.RunFailedTerminal, holdpoint.ReasonExpired}, []any{rec.Run.State, rec.Run.Reason})
			require.Equal(t, holdpoint.ApprovalExpired, rec.Approvals[0].State)
			require.NotNil(t, rec.Challenges[0].RevokedAt)
			require.Empty(t, rec.Effects)
			require.Subset(t, f.kinds(id), []string{"approval.expired", "run.failed"})
		}
		require.Equal(t, did[0].Run, f.record(did[0].Run.ID).Run)
		require.Equal(t, did[0].Approval, f.record(did[0].Run.ID).Approvals[0])
	})
	t.Run("claimable, once for each time it falls due", func(t *testing.T) {
		f := newFixture(t, open)
		fence := f.work("k")
		for range 2 {
			_, err := f.EndWork(f.ctx, fence, store.WorkEnd{State: holdpoint.RunFailedRetryable, RetryIn: time.Minute, Who: machine})
			require.NoError(t, err)
			require.Empty(t, sweep(f, 10), "not due yet")
			f.advance(time.Minute)
			did := sweep(f, 10)["run.claimable"]
			require.Len(t, did, 1)
			require.Equal(t, fence.RunID, did[0].Run.ID)
			require.Empty(t, sweep(f, 10))
			fence, _ = f.claimed(newClaim(f.tenant, "k"))
		}
		f.advance(time.Minute)
		require.Len(t, sweep(f, 10)["run.claimable"], 1, "an expired lease falls due, too")
		require.Empty(t, sweep(f, 10))
		require.Equal(t, 3, count(f.kinds(fence.RunID), "run.claimable"))
	})
	t.Run("a replacement is claimable", func(t *testing.T) {
		f := newFixture(t, open)
		fence := f.work("k")
		f.held(fence, "mail")
		_, after, _, err := f.ReplaceRun(f.ctx, f.replacement(fence.RunID, "new"))
		require.NoError(t, err)
		did := sweep(f, 10)["run.claimable"]
		require.Len(t, did, 1)
		require.Equal(t, after, did[0].Run)
	})
	t.Run("budgets", func(t *testing.T) {
		f := newFixture(t, open)
		crashed, waiting, busy := f.work("crashed"), f.work("waiting"), f.work("person")
		_, err := f.EndWork(f.ctx, waiting, store.WorkEnd{State: holdpoint.RunFailedRetryable, Class: holdpoint.ClassModelTimeout, Who: machine})
		require.NoError(t, err)
		f.held(busy, "mail")
		f.advance(time.Hour)
		did := sweep(f, 10)["run.failed"]
		require.Len(t, did, 2)
		for _, id := range []string{crashed.RunID, waiting.RunID} {
			r := f.record(id).Run
			require.Equal(t, []any{holdpoint.RunFailedTerminal, holdpoint.ReasonBudget}, []any{r.State, r.Reason})
		}
		require.Equal(t, holdpoint.RunAwaitingHuman, f.record(busy.RunID).Run.State, "budgets stand still while a person holds the run")
		require.Empty(t, sweep(f, 10))
	})
}
