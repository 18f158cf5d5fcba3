package storetest

import (
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

func walkWork(f *fixture) *walked {
	w := &walked{key: newID()}
	w.fence = f.work(w.key)
	return w
}

func walkHeld(f *fixture) *walked {
	w := walkWork(f)
	_, w.approval = f.held(w.fence, "mail")
	return w
}

// walkDecided answers the question of a held run.
func walkDecided(d holdpoint.Decision) reach {
	return func(f *fixture) *walked {
		w := walkHeld(f)
		if r := f.decide(w.approval, jane, d); len(r.Effects) > 0 {
			w.effect = r.Effects[0].ID
		}
		return w
	}
}

// then goes on from where reach leads with an event that must succeed.
func (r reach) then(e event) reach {
	return func(f *fixture) *walked {
		w := r(f)
		require.NoError(f.t, e.fire(f, w), e.name)
		return w
	}
}

var (
	leaves = func(name, trigger string, to holdpoint.RunState) event {
		return event{name: name, triggers: []string{trigger}, fire: func(f *fixture, w *walked) error {
			_, err := f.EndWork(f.ctx, w.fence, store.WorkEnd{State: to, RetryIn: 10 * time.Minute, Class: holdpoint.ClassModelTimeout, Who: machine})
			return err
		}}
	}
	completes = leaves("complete", "complete", holdpoint.RunCompleted)
	fails     = leaves("fail", "fail", holdpoint.RunFailedRetryable)
	givesUp   = leaves("give up", "give_up", holdpoint.RunFailedTerminal)

	claimed = func(name string, wait time.Duration) event {
		return event{name: name, triggers: []string{"recover"}, tells: []string{"run.duplicate"}, fire: func(f *fixture, w *walked) error {
			f.advance(wait)
			if r := f.try(newClaim(f.tenant, w.key)); r.Outcome != holdpoint.Claimed {
				return holdpoint.Errorf(holdpoint.CodeBusy, "%s", r.Outcome)
			}
			return nil
		}}
	}
	holds = event{name: "hold", triggers: []string{"hold"}, fire: func(f *fixture, w *walked) error {
		_, _, err := f.HoldDraft(f.ctx, f.newDraft(w.fence, f.record(w.fence.RunID).Run.Revision+1, "mail"))
		return err
	}}
	rejects = event{name: "reject output", triggers: []string{"give_up"}, fire: func(f *fixture, w *walked) error {
		_, err := f.RejectDraft(f.ctx, w.fence, store.DraftRejection{Class: holdpoint.ClassSchema, Terminal: true, Reason: holdpoint.ReasonInvalidOutput, Who: machine})
		return err
	}}
	repairs = event{name: "repair output", tells: []string{"draft.rejected"}, fire: func(f *fixture, w *walked) error {
		_, err := f.RejectDraft(f.ctx, w.fence, store.DraftRejection{Class: holdpoint.ClassSchema, Who: machine})
		return err
	}}
	renews = event{name: "renew", tells: []string{"lease.renewed"}, fire: func(f *fixture, w *walked) error {
		_, err := f.RenewLease(f.ctx, w.fence, time.Minute)
		return err
	}}
	sweeps = event{name: "sweep", triggers: []string{"steal_cap", "budget_over", "expire"}, fire: func(f *fixture, _ *walked) error {
		f.advance(24 * time.Hour)
		_, err := f.SweepRuns(f.ctx, 1000)
		return err
	}}
	// replaces only links a run that has ended.
	replaces = event{name: "replace", triggers: []string{"replace", "invalidate"}, tells: []string{"run.replaced"}, fire: func(f *fixture, w *walked) error {
		f.advance(2 * time.Minute)
		_, _, _, err := f.ReplaceRun(f.ctx, f.replacement(w.fence.RunID, newID()))
		return err
	}}
	// cancels leaves an approval that was given as it is: what it released ends with the run.
	cancels = event{name: "cancel run", triggers: []string{"cancel", "awaiting_human:withdraw", "pending:withdraw", "settle", "pending:end", "sending:retry+end"}, fire: func(f *fixture, w *walked) error {
		_, err := f.CancelRun(f.ctx, f.tenant, w.fence.RunID, nil, operator)
		return err
	}}
	withdraws = event{name: "withdraw", triggers: []string{"withdraw", "settle", "pending:end", "sending:retry+end"}, fire: func(f *fixture, w *walked) error {
		_, err := f.WithdrawApproval(f.ctx, f.tenant, w.approval.ID, nil, operator)
		return err
	}}
	decides = func(d holdpoint.Decision) event {
		return event{name: string(d), triggers: []string{string(d)}, fire: func(f *fixture, w *walked) error {
			_, err := f.Decide(f.ctx, f.answer(w.approval, joe, d))
			return err
		}}
	}
	sends = event{name: "send", triggers: []string{"settle"}, fire: func(f *fixture, w *walked) error {
		for _, e := range f.lease(1000) {
			if e.ID == w.effect {
				f.settle(f.accepted(f.begin(e)))
			}
		}
		return nil
	}}
)

// makes is the reason of every creation: no event of the walk makes a row.
const makes = "makes the row: every way into a state begins with it"

var runTable = table[holdpoint.RunState]{
	rows: holdpoint.RunTransitions,
	states: map[holdpoint.RunState][]reach{
		holdpoint.RunProcessing:      {walkWork},
		holdpoint.RunAwaitingHuman:   {walkHeld},
		holdpoint.RunApproved:        {walkDecided(holdpoint.DecisionApprove)},
		holdpoint.RunCompleted:       {reach(walkWork).then(completes), walkDecided(holdpoint.DecisionApprove).then(sends)},
		holdpoint.RunFailedRetryable: {reach(walkWork).then(fails), walkDecided(holdpoint.DecisionSendBack)},
		holdpoint.RunFailedTerminal:  {reach(walkWork).then(givesUp), walkDecided(holdpoint.DecisionReject)},
	},
	events: runEvents,
	read: func(f *fixture, w *walked) (holdpoint.RunState, int64) {
		r, err := f.Content(f.ctx, f.tenant, w.fence.RunID)
		require.NoError(f.t, err)
		return r.Run.State, r.Run.Version
	},
	own: func(*walked, holdpoint.Event) bool { return true },
	noVerb: map[string]string{
		"/claim":              makes,
		"processing/release":  "windows and exceptions are not built yet: nothing is released without a decision",
		"awaiting_human/edit": "edits, quorums and escalations are not built yet",
	},
}

var runEvents = []event{claimed("recover", 10*time.Minute), holds, completes, fails, givesUp, rejects, repairs, renews, sweeps, replaces, cancels, withdraws, sends,
	decides(holdpoint.DecisionApprove), decides(holdpoint.DecisionReject), decides(holdpoint.DecisionSendBack)}

var approvalTable = table[holdpoint.ApprovalState]{
	rows: holdpoint.ApprovalTransitions,
	states: map[holdpoint.ApprovalState][]reach{
		holdpoint.ApprovalPending:     {walkHeld},
		holdpoint.ApprovalApproved:    {walkDecided(holdpoint.DecisionApprove)},
		holdpoint.ApprovalRejected:    {walkDecided(holdpoint.DecisionReject)},
		holdpoint.ApprovalSentBack:    {walkDecided(holdpoint.DecisionSendBack)},
		holdpoint.ApprovalExpired:     {reach(walkHeld).then(sweeps)},
		holdpoint.ApprovalWithdrawn:   {reach(walkHeld).then(withdraws)},
		holdpoint.ApprovalInvalidated: {reach(walkHeld).then(replaces)},
	},
	events: runEvents,
	read: func(f *fixture, w *walked) (holdpoint.ApprovalState, int64) {
		a, err := f.ApprovalByID(f.ctx, f.tenant, w.approval.ID)
		require.NoError(f.t, err)
		return a.State, a.Version
	},
	own: func(w *walked, e holdpoint.Event) bool { return e.Data["approval_id"] == w.approval.ID },
	noVerb: map[string]string{
		"/create":      makes,
		"pending/edit": "edits are not built yet",
	},
}

// walkStep begins a step.
func walkStep(sideEffect bool) reach {
	return func(f *fixture) *walked {
		w := walkWork(f)
		_, err := f.BeginStep(f.ctx, w.fence, store.StepBegin{Name: "s", SideEffect: sideEffect, Who: machine})
		require.NoError(f.t, err)
		return w
	}
}

var (
	begins = event{name: "begin after a take-over", triggers: []string{"begin", "lose"}, fire: func(f *fixture, w *walked) error {
		f.advance(2 * time.Minute)
		w.fence, _ = f.claimed(newClaim(f.tenant, w.key))
		_, err := f.BeginStep(f.ctx, w.fence, store.StepBegin{Name: "s", Who: machine})
		return err
	}}
	ends = func(name string, class holdpoint.FailureClass) event {
		return event{name: name, triggers: []string{name}, fire: func(f *fixture, w *walked) error {
			f.advance(time.Second)
			_, err := f.FinishStep(f.ctx, w.fence, store.StepFinish{Name: "s", ResultHash: newID(), Class: class, Who: machine})
			return err
		}}
	}
	resolves = func(trigger string, done bool) event {
		return event{name: trigger, triggers: []string{trigger}, fire: func(f *fixture, w *walked) error {
			f.advance(time.Second)
			_, err := f.ResolveStep(f.ctx, store.StepResolve{Tenant: f.tenant, RunID: w.fence.RunID, Name: "s", Done: done, ResultHash: "h", Who: operator})
			return err
		}}
	}
)

var stepTable = table[holdpoint.StepState]{
	rows: holdpoint.StepTransitions,
	states: map[holdpoint.StepState][]reach{
		holdpoint.StepRunning:   {walkStep(false), walkStep(true)},
		holdpoint.StepCompleted: {walkStep(false).then(ends("finish", ""))},
		holdpoint.StepFailed:    {walkStep(false).then(ends("fail", holdpoint.ClassModelTimeout))},
		holdpoint.StepUncertain: {walkStep(true).then(begins)},
		holdpoint.StepPending:   {walkStep(true).then(begins).then(resolves("resolve_not_done", false))},
	},
	events: []event{begins, ends("finish", ""), ends("fail", holdpoint.ClassModelTimeout), resolves("resolve_done", true), resolves("resolve_not_done", false)},
	read: func(f *fixture, w *walked) (holdpoint.StepState, int64) {
		s := f.record(w.fence.RunID).Steps[0]
		return s.State, s.UpdatedAt.UnixMicro()
	},
	own:    func(_ *walked, e holdpoint.Event) bool { return strings.HasPrefix(e.Type, "step.") },
	noVerb: map[string]string{"/begin": makes},
}
