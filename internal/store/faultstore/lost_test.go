package faultstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/client"
	"github.com/holdpoint/holdpoint/internal/store/faultstore"
)

// Whoever lets Holdpoint name the owner cannot tell a lease that a lost answer spoke of from another's: it runs out first.
func TestAClaimWithoutOwnerWaitsForTheLeaseOfItsLostAnswer(t *testing.T) {
	w := newWorld(t, nil)
	r := claimOf("reply", "k")
	r.Owner = ""
	w.faults.Inject(faultstore.Fault{Verb: "ClaimRuns", Kind: faultstore.After})
	a := ask(w, w.claims(r))
	require.Equal(t, 1, w.unanswered)
	require.Equal(t, holdpoint.Busy, a.Outcome)
	require.Positive(t, a.RetryAfter)
	w.pass(a.RetryAfter)
	a = ask(w, w.claims(r))
	require.Equal(t, holdpoint.Claimed, a.Outcome, "%+v", a)
	require.Equal(t, "expired_lease", a.RecoveredFrom)
	require.Equal(t, w.find("k").ID, a.Run.ID)
}

// A begin whose answer is lost may have been another thread of the same owner: its step is in progress until the lease
// runs out. After that it is begun again, or, where it writes somewhere, a person says what became of it.
func TestAStepWhoseBeginningWasNotAnsweredIsNotBegunTwice(t *testing.T) {
	for _, writes := range []bool{false, true} {
		w := newWorld(t, nil)
		begin := func() client.StepAnswer {
			a := ask(w, w.claims(claimOf("reply", "k")))
			require.Equal(t, holdpoint.Claimed, a.Outcome, "%+v", a)
			return ask(w, func(ctx context.Context) (client.StepAnswer, error) {
				return w.machine.BeginStep(ctx, a.Run.ID, "pay", client.StepRequest{Work: client.Work{Owner: a.Lease.Owner, Version: a.Lease.Version}, SideEffect: writes})
			})
		}
		w.faults.Inject(faultstore.Fault{Verb: "BeginStep", Kind: faultstore.After})
		s := begin()
		require.Equal(t, 1, w.unanswered)
		require.Equal(t, "in_progress", s.Outcome)
		require.Positive(t, s.RetryAfter)
		w.pass(10 * time.Minute)
		s = begin()
		if !writes {
			require.Equal(t, "run", s.Outcome)
			continue
		}
		require.Equal(t, "uncertain", s.Outcome)
		_, err := w.ops.ResolveStep(t.Context(), w.runOf("k"), "pay", client.StepResolution{Verdict: "not_done", Reason: "nothing arrived there"})
		require.NoError(t, err)
		w.pass(10 * time.Minute)
		require.Equal(t, "run", begin().Outcome)
	}

	w := newWorld(t, nil)
	a := ask(w, w.claims(claimOf("reply", "k")))
	w.faults.Inject(faultstore.Fault{Verb: "BeginStep", Kind: faultstore.Before})
	s := ask(w, func(ctx context.Context) (client.StepAnswer, error) {
		return w.machine.BeginStep(ctx, a.Run.ID, "pay", client.StepRequest{Work: client.Work{Owner: a.Lease.Owner, Version: a.Lease.Version}, SideEffect: true})
	})
	require.Equal(t, 1, w.unanswered)
	require.Equal(t, "run", s.Outcome)
}
