package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// workCalls are all verbs that need a live lease.
func (f *fixture) workCalls() map[string]func(context.Context, store.Fence) error {
	return map[string]func(context.Context, store.Fence) error{
		"RenewLease": func(ctx context.Context, fence store.Fence) error {
			_, err := f.RenewLease(ctx, fence, time.Minute)
			return err
		},
		"BeginStep": func(ctx context.Context, fence store.Fence) error {
			_, err := f.BeginStep(ctx, fence, store.StepBegin{Name: "s", Who: machine})
			return err
		},
		"FinishStep": func(ctx context.Context, fence store.Fence) error {
			_, err := f.FinishStep(ctx, fence, store.StepFinish{Name: "s", Who: machine})
			return err
		},
		"RejectDraft": func(ctx context.Context, fence store.Fence) error {
			_, err := f.RejectDraft(ctx, fence, store.DraftRejection{Class: holdpoint.ClassSchema, Who: machine})
			return err
		},
		"HoldDraft": func(ctx context.Context, fence store.Fence) error {
			_, _, err := f.HoldDraft(ctx, f.newDraft(fence, 1, "mail"))
			return err
		},
		"EndWork": func(ctx context.Context, fence store.Fence) error {
			_, err := f.EndWork(ctx, fence, store.WorkEnd{State: holdpoint.RunCompleted, Who: machine})
			return err
		},
	}
}

// testFences is every work call with every fence that does not hold: nothing may change.
func testFences(t *testing.T, open func(testing.TB, func() time.Time) store.Store) {
	f := newFixture(t, open)
	for name := range f.workCalls() {
		t.Run(name, func(t *testing.T) {
			f := f.on(t)
			call := func(fence store.Fence) error { return f.workCalls()[name](t.Context(), fence) }
			fence := f.work(name)
			unchanged := f.record(fence.RunID)
			for what, c := range map[string]struct {
				spoil func(*store.Fence)
				code  holdpoint.Code
			}{
				"another owner":     {func(x *store.Fence) { x.Owner = uuid.NewString() }, holdpoint.CodeLeaseLost},
				"an older version":  {func(x *store.Fence) { x.Version-- }, holdpoint.CodeLeaseLost},
				"a later version":   {func(x *store.Fence) { x.Version++ }, holdpoint.CodeLeaseLost},
				"another execution": {func(x *store.Fence) { x.ExecutionID = "exec-2" }, holdpoint.CodeLeaseOtherExecution},
				"no execution":      {func(x *store.Fence) { x.ExecutionID = "" }, holdpoint.CodeLeaseOtherExecution},
				"no such run":       {func(x *store.Fence) { x.RunID = uuid.NewString() }, holdpoint.CodeNotFound},
				"another tenant":    {func(x *store.Fence) { x.Tenant = "other" }, holdpoint.CodeNotFound},
			} {
				spoiled := fence
				c.spoil(&spoiled)
				e := requireCode(t, c.code, call(spoiled))
				require.NotContains(t, e.Error(), "payload", what)
			}
			require.Equal(t, unchanged, f.record(fence.RunID))

			f.advance(time.Minute)
			requireCode(t, holdpoint.CodeLeaseLost, call(fence)) // expired, though nobody has taken it yet
			f.claimed(newClaim(f.tenant, name))
			requireCode(t, holdpoint.CodeLeaseLost, call(fence))
			require.EqualValues(t, 2, f.record(fence.RunID).Run.Version)
		})
	}
	t.Run("a claim without an execution binds none", func(t *testing.T) {
		f := f.on(t)
		c := newClaim(f.tenant, "unbound")
		c.ExecutionID = ""
		fence, _ := f.claimed(c)
		fence.ExecutionID = "exec-9"
		_, err := f.RenewLease(t.Context(), fence, time.Minute)
		require.NoError(t, err)
	})
}

// testWork is what an owner does to its run, and each call once more after a lost answer.
func testWork(t *testing.T, open func(testing.TB, func() time.Time) store.Store) {
	t.Run("renewal", func(t *testing.T) {
		f := newFixture(t, open)
		fence := f.work("k")
		f.advance(50 * time.Second)
		got, err := f.RenewLease(f.ctx, fence, 2*time.Minute)
		require.NoError(t, err)
		require.Equal(t, holdpoint.Lease{Owner: fence.Owner, Version: 1, ExpiresAt: f.now().Add(2 * time.Minute), CapAt: start.Add(10 * time.Minute)}, got)
		again, err := f.RenewLease(f.ctx, fence, time.Second)
		require.NoError(t, err)
		require.Equal(t, got, again, "a renewal never shortens")
		for range 6 {
			f.advance(100 * time.Second)
			got, err = f.RenewLease(f.ctx, fence, 2*time.Minute)
			if err != nil {
				break
			}
			require.False(t, got.ExpiresAt.After(got.CapAt), "never past the cap")
		}
		requireCode(t, holdpoint.CodeLeaseLost, err)
		require.Equal(t, "expired_lease", f.try(newClaim(f.tenant, "k")).RecoveredFrom)
		require.Equal(t, 7, count(f.kinds(fence.RunID), "lease.renewed"))
	})
	t.Run("rejected drafts", func(t *testing.T) {
		f := newFixture(t, open)
		fence := f.work("k")
		reject := func(call string) (holdpoint.Run, error) {
			fence := fence
			fence.Call = call
			return f.RejectDraft(f.ctx, fence, store.DraftRejection{Class: holdpoint.ClassSchema, Codes: []string{"required /amount"}, Who: machine,
				Model: holdpoint.Model{Name: "m"}})
		}
		for i, call := range []string{"a", "a", "b", "b", "b"} {
			run, err := reject(call)
			require.NoError(t, err)
			require.Equal(t, []int{1, 1, 2, 2, 2}[i], run.Repairs, "an identical call is counted once")
			require.Equal(t, holdpoint.RunProcessing, run.State)
			require.EqualValues(t, 1, run.Version)
		}
		require.Equal(t, []string{"run.claimed", "draft.rejected", "draft.rejected"}, f.kinds(fence.RunID))
		require.EqualValues(t, 2, f.eventsOf(fence.RunID)[2].Data["repairs"])

		last := fence
		last.Call = "c"
		for range 2 {
			run, err := f.RejectDraft(f.ctx, last, store.DraftRejection{Class: holdpoint.ClassSchema, Terminal: true, Reason: holdpoint.ReasonInvalidOutput,
				Messages: []store.Message{f.newMessage(fence.RunID)}, Who: machine})
			require.NoError(t, err)
			require.Equal(t, holdpoint.RunFailedTerminal, run.State)
			require.Equal(t, holdpoint.ReasonInvalidOutput, run.Reason)
			require.Equal(t, holdpoint.ClassSchema, run.FailureClass)
			require.EqualValues(t, 2, run.Version)
			require.NotNil(t, run.EndedAt)
		}
		require.Len(t, f.record(fence.RunID).Messages, 1)
		_, err := reject("d")
		requireCode(t, holdpoint.CodeLeaseLost, err)
	})
	t.Run("held draft", func(t *testing.T) {
		f := newFixture(t, open)
		fence := f.work("k")
		f.advance(5 * time.Second)
		fence.Call = "draft"
		d := f.newDraft(fence, 1, "mail", "note")
		d.Effects[1].After, d.Effects[1].Reversible = []string{"mail"}, &holdpoint.Reversible{By: "delete", Within: holdpoint.Duration(time.Hour)}
		run, approval, err := f.HoldDraft(f.ctx, d)
		require.NoError(t, err)
		require.Equal(t, holdpoint.RunAwaitingHuman, run.State)
		require.EqualValues(t, 2, run.Version)
		require.Equal(t, 1, run.Revision)
		require.Nil(t, run.LeaseExpiresAt)
		want := d.Approval
		want.Tenant, want.RunID, want.State, want.Version = f.tenant, fence.RunID, holdpoint.ApprovalPending, 1
		want.CreatedAt, want.ApproveBy = f.now(), f.now().Add(24*time.Hour)
		require.Equal(t, want, approval)

		rec := f.record(fence.RunID)
		require.Equal(t, run, rec.Run)
		require.Equal(t, []holdpoint.Approval{approval}, rec.Approvals)
		require.Len(t, rec.Drafts, 1)
		require.Equal(t, "output-hash", rec.Drafts[0].OutputHash)
		require.Equal(t, []byte("output"), rec.Drafts[0].Output)
		require.Equal(t, d.Effects, rec.Planned)
		require.Empty(t, rec.Effects, "nothing is released")
		require.Len(t, rec.Challenges, 1)
		require.Equal(t, approval.ApproveBy, rec.Challenges[0].ExpiresAt)
		require.Len(t, rec.Messages, 1)
		require.Equal(t, []string{"run.claimed", "draft.accepted", "approval.created", "challenge.created"}, f.kinds(fence.RunID))
		require.Equal(t, "approve_before_act", f.eventsOf(fence.RunID)[1].Data["gate"])

		f.advance(2 * time.Minute) // long after the lease would have expired
		again := f.newDraft(fence, 1, "mail", "note")
		sameRun, sameApproval, err := f.HoldDraft(f.ctx, again)
		require.NoError(t, err)
		require.Equal(t, run, sameRun)
		require.Equal(t, approval, sameApproval, "a repeated draft answers what stands")
		require.Equal(t, rec.Approvals, f.record(fence.RunID).Approvals)
		other := fence
		other.Call = "another draft"
		_, _, err = f.HoldDraft(f.ctx, f.newDraft(other, 2, "mail"))
		requireCode(t, holdpoint.CodeLeaseLost, err)
	})
	t.Run("a draft is the next revision", func(t *testing.T) {
		f := newFixture(t, open)
		fence := f.work("k")
		_, _, err := f.HoldDraft(f.ctx, f.newDraft(fence, 2, "mail"))
		requireCode(t, holdpoint.CodeNotAllowedNow, err)
		require.Equal(t, holdpoint.RunProcessing, f.record(fence.RunID).Run.State, "a refused draft leaves nothing behind")
		require.Empty(t, f.record(fence.RunID).Drafts)
	})
	t.Run("a draft without effects or challenges", func(t *testing.T) {
		f := newFixture(t, open)
		d := f.newDraft(f.work("k"), 1)
		d.Challenges, d.Messages, d.Approval.Roles, d.Approval.Allowed = nil, nil, nil, nil
		_, approval, err := f.HoldDraft(f.ctx, d)
		require.NoError(t, err)
		stored, err := f.ApprovalByID(f.ctx, f.tenant, approval.ID)
		require.NoError(t, err)
		require.Equal(t, approval, stored)
	})
	t.Run("ends", func(t *testing.T) {
		f := newFixture(t, open)
		for _, c := range []struct {
			name  string
			end   store.WorkEnd
			state holdpoint.RunState
			kind  string
		}{
			{"completed", store.WorkEnd{State: holdpoint.RunCompleted, Result: []byte("result")}, holdpoint.RunCompleted, "run.completed"},
			{"terminal", store.WorkEnd{State: holdpoint.RunFailedTerminal, Reason: holdpoint.ReasonQuarantine, Class: holdpoint.ClassInvalidData, Text: []byte("text")},
				holdpoint.RunFailedTerminal, "run.failed"},
			{"retryable", store.WorkEnd{State: holdpoint.RunFailedRetryable, Class: holdpoint.ClassModelTimeout, RetryIn: time.Minute, Text: []byte("text")},
				holdpoint.RunFailedRetryable, "run.failed"},
		} {
			fence := f.work(c.name)
			fence.Call, c.end.Who = "end "+c.name, machine
			c.end.Messages = []store.Message{f.newMessage(fence.RunID)}
			run, err := f.EndWork(f.ctx, fence, c.end)
			require.NoError(t, err)
			require.Equal(t, []any{c.state, c.end.Reason, c.end.Class}, []any{run.State, run.Reason, run.FailureClass})
			require.EqualValues(t, 2, run.Version)
			require.Equal(t, c.state.Terminal(), run.EndedAt != nil)
			require.Nil(t, run.LeaseExpiresAt)
			rec := f.record(fence.RunID)
			require.Equal(t, c.end.Result, rec.Result)
			require.Equal(t, c.end.Text, rec.FailText)
			again, err := f.EndWork(f.ctx, fence, c.end)
			require.NoError(t, err)
			require.Equal(t, run, again, "a repeated end answers what stands")
			require.Equal(t, []string{"run.claimed", c.kind}, f.kinds(fence.RunID))
			require.Len(t, f.record(fence.RunID).Messages, 1)
			fence.Call = "something else"
			_, err = f.EndWork(f.ctx, fence, c.end)
			requireCode(t, holdpoint.CodeLeaseLost, err)
		}
		require.Equal(t, f.now().Add(time.Minute), *f.try(newClaim(f.tenant, "retryable")).Run.RetryAt)

		fence := f.work("strange")
		_, err := f.EndWork(f.ctx, fence, store.WorkEnd{State: holdpoint.RunApproved, Who: machine})
		requireCode(t, holdpoint.CodeInvalidRequest, err)
	})
	t.Run("a repeated end is forgotten with the next claim", func(t *testing.T) {
		f := newFixture(t, open)
		c := newClaim(f.tenant, "k")
		c.OwnerExplicit = true
		fence, _ := f.claimed(c)
		fence.Call = "fail"
		end := store.WorkEnd{State: holdpoint.RunFailedRetryable, Who: machine}
		_, err := f.EndWork(f.ctx, fence, end)
		require.NoError(t, err)
		f.claimed(c) // the same owner
		_, err = f.EndWork(f.ctx, fence, end)
		requireCode(t, holdpoint.CodeLeaseLost, err)
	})
	t.Run("a failure with no attempt left is final", func(t *testing.T) {
		f := newFixture(t, open)
		fence := f.work("attempts")
		for range 2 {
			_, err := f.EndWork(f.ctx, fence, store.WorkEnd{State: holdpoint.RunFailedRetryable, Who: machine})
			require.NoError(t, err)
			fence, _ = f.claimed(newClaim(f.tenant, "attempts"))
		}
		run, err := f.EndWork(f.ctx, fence, store.WorkEnd{State: holdpoint.RunFailedRetryable, Who: machine})
		require.NoError(t, err)
		require.Equal(t, []any{holdpoint.RunFailedTerminal, holdpoint.ReasonBudget}, []any{run.State, run.Reason})

		fence = f.work("time")
		run, err = f.EndWork(f.ctx, fence, store.WorkEnd{State: holdpoint.RunFailedRetryable, RetryIn: time.Hour, Who: machine})
		require.NoError(t, err)
		require.Equal(t, []any{holdpoint.RunFailedTerminal, holdpoint.ReasonBudget}, []any{run.State, run.Reason}, "the retry would come after the budget")
		require.Nil(t, run.RetryAt)
	})
}
