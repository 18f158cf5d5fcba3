package storetest

import (
	"context"
	"slices"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// repeated finds the run that a call moved last which comes again after a lost answer, or nil.
func (m *model) repeated(f store.Fence) *modelRun {
	r := m.runs[modelRef{f.Tenant, f.RunID}]
	if r == nil || f.Call == "" || r.Run.LastCall != f.Call || r.Run.LeaseOwner != f.Owner || r.Run.Version <= f.Version ||
		r.Run.ExecutionID != "" && r.Run.ExecutionID != f.ExecutionID {
		return nil
	}
	return r
}

// work runs what a work call does under a live lease, unless it comes again.
func (m *model) work(f store.Fence, fn func(r *modelRun) error) (*modelRun, error) {
	if r := m.repeated(f); r != nil {
		return r, nil
	}
	r, err := m.owned(f)
	if err != nil {
		return nil, err
	}
	return r, m.verb(func() error { return fn(r) }, r)
}

// called remembers the call that moved a run.
func (r *modelRun) called(f store.Fence) {
	if f.Call != "" {
		r.Run.LastCall = f.Call
	}
}

// handed measures the time from claim to hand-over.
func (m *model) handed(r *modelRun) { r.worked = new(m.clock().Sub(*r.Run.ClaimedAt)) }

func (m *model) RejectDraft(_ context.Context, f store.Fence, d store.DraftRejection) (holdpoint.Run, error) {
	r, err := m.work(f, func(r *modelRun) error {
		if !d.Terminal {
			if f.Call != "" && r.Run.LastCall == f.Call {
				return nil
			}
			r.Run.Repairs++
			r.Run.LastCall = f.Call
			m.tell(r, "draft.rejected")
			m.queue(d.Messages)
			return nil
		}
		m.tell(r, "draft.rejected", "run.failed")
		m.queue(d.Messages)
		r.called(f)
		return m.turn(r, holdpoint.RunFailedTerminal, "give_up", d.Reason, d.Class)
	})
	if err != nil {
		return holdpoint.Run{}, err
	}
	return r.Run, nil
}

func (m *model) HoldDraft(_ context.Context, d store.Draft) (holdpoint.Run, holdpoint.Approval, error) {
	f, now := d.Fence, m.clock()
	r, err := m.work(f, func(r *modelRun) error {
		if d.Draft.Revision != r.Run.Revision+1 || d.Approval.Revision != d.Draft.Revision {
			return refused(holdpoint.CodeNotAllowedNow)
		}
		r.Run.Revision = d.Draft.Revision
		m.handed(r)
		r.called(f)
		draft := d.Draft
		draft.RunID, draft.CreatedAt = f.RunID, now
		r.Drafts = append(r.Drafts, store.DraftRow{Draft: draft, Output: d.Output, SourceURL: d.SourceURL})
		r.Planned = append(r.Planned, d.Effects...)
		a := d.Approval
		a.Tenant, a.RunID, a.State, a.Version, a.CreatedAt, a.ApproveBy = f.Tenant, f.RunID, holdpoint.ApprovalPending, 1, now, now.Add(d.ApproveBy)
		r.Approvals = append(r.Approvals, a)
		m.tell(r, "draft.accepted", "approval.created")
		for _, c := range d.Challenges {
			c.Tenant, c.ApprovalID, c.ExpiresAt = f.Tenant, a.ID, a.ApproveBy
			r.Challenges = append(r.Challenges, c)
			m.tell(r, "challenge.created")
		}
		m.queue(d.Messages)
		return m.turn(r, holdpoint.RunAwaitingHuman, "hold", "", "")
	})
	if err != nil {
		return holdpoint.Run{}, holdpoint.Approval{}, err
	}
	return r.Run, r.Approvals[len(r.Approvals)-1], nil
}

func (m *model) EndWork(_ context.Context, f store.Fence, e store.WorkEnd) (holdpoint.Run, error) {
	trigger := map[holdpoint.RunState]string{holdpoint.RunCompleted: "complete", holdpoint.RunFailedRetryable: "fail", holdpoint.RunFailedTerminal: "give_up"}
	if trigger[e.State] == "" {
		return holdpoint.Run{}, refused(holdpoint.CodeInvalidRequest)
	}
	r, err := m.work(f, func(r *modelRun) error {
		to, reason, retry := e.State, e.Reason, m.clock().Add(e.RetryIn)
		if to == holdpoint.RunFailedRetryable && (r.Run.Attempts >= r.Run.AttemptLimit || !retry.Before(*r.Run.BudgetUntil)) {
			to, reason = holdpoint.RunFailedTerminal, holdpoint.ReasonBudget // no attempt is left inside limit and budget
		}
		r.called(f)
		if e.Text != nil {
			r.FailText = e.Text
		}
		kind := "run.failed"
		if to == holdpoint.RunCompleted {
			kind = "run.completed"
			m.handed(r)
			if e.Result != nil {
				r.Result = e.Result
			}
		}
		if err := m.turn(r, to, trigger[to], reason, e.Class); err != nil {
			return err
		}
		if to == holdpoint.RunFailedRetryable {
			r.Run.RetryAt = new(retry)
		}
		m.tell(r, kind)
		m.queue(e.Messages)
		return nil
	})
	if err != nil {
		return holdpoint.Run{}, err
	}
	return r.Run, nil
}

// stepOf finds a step, or gives one that was never begun.
func (r *modelRun) stepOf(name string) *store.StepRow {
	if n := slices.IndexFunc(r.Steps, func(s store.StepRow) bool { return s.Name == name }); n >= 0 {
		return &r.Steps[n]
	}
	return &store.StepRow{Step: holdpoint.Step{RunID: r.Run.ID, Name: name}}
}

// turnStep makes one transition of a step.
func (m *model) turnStep(r *modelRun, s store.StepRow, to holdpoint.StepState, trigger, kind string) error {
	if !holdpoint.Allowed(holdpoint.StepTransitions, s.State, to, trigger) {
		return refused(holdpoint.CodeNotAllowedNow)
	}
	if s.State == "" {
		r.Steps = append(r.Steps, s)
	}
	s.State = to
	*r.stepOf(s.Name) = s
	m.tell(r, kind)
	return nil
}

func (m *model) BeginStep(_ context.Context, f store.Fence, b store.StepBegin) (a store.StepResult, err error) {
	r, err := m.owned(f)
	if err != nil {
		return a, err
	}
	s := *r.stepOf(b.Name)
	mine := s.LeaseVersion == f.Version
	side := s.SideEffect || b.SideEffect
	switch {
	case s.State == holdpoint.StepCompleted && s.InputHash != b.InputHash:
		return a, refused(holdpoint.CodeNotAllowedNow)
	case s.State == holdpoint.StepCompleted:
		return store.StepResult{Outcome: "done", Step: s.Step, Result: s.Result}, nil
	case s.State == holdpoint.StepUncertain:
		return store.StepResult{Outcome: "uncertain", Step: s.Step}, nil
	case s.State == holdpoint.StepRunning && mine:
		return store.StepResult{Outcome: "in_progress", Step: s.Step, RetryAfter: r.Run.LeaseExpiresAt.Sub(m.clock())}, nil
	case s.State == holdpoint.StepRunning && side: // it may have been done
		s.SideEffect, s.Result = true, nil
		err = m.turnStep(r, s, holdpoint.StepUncertain, "lose", "step.uncertain")
		return store.StepResult{Outcome: "uncertain", Step: r.stepOf(b.Name).Step}, err
	}
	s.SideEffect, s.Result, s.InputHash, s.LeaseVersion, s.Begins, s.ResultHash, s.FailureClass = side, nil, b.InputHash, f.Version, s.Begins+1, "", ""
	err = m.turnStep(r, s, holdpoint.StepRunning, "begin", "step.begun")
	return store.StepResult{Outcome: "run", Step: r.stepOf(b.Name).Step}, err
}

func (m *model) FinishStep(_ context.Context, f store.Fence, e store.StepFinish) (holdpoint.Step, error) {
	r, err := m.owned(f)
	if err != nil {
		return holdpoint.Step{}, err
	}
	to, trigger, kind := holdpoint.StepCompleted, "finish", "step.finished"
	if e.Class != "" {
		to, trigger, kind = holdpoint.StepFailed, "fail", "step.failed"
	}
	s := *r.stepOf(e.Name)
	same := s.State == to && s.ResultHash == e.ResultHash
	switch {
	case s.State == "":
		return s.Step, refused(holdpoint.CodeNotFound)
	case same && to == holdpoint.StepCompleted, same && s.LeaseVersion == f.Version && s.FailureClass == e.Class:
		return s.Step, nil
	case s.State == holdpoint.StepRunning && s.LeaseVersion != f.Version:
		return s.Step, refused(holdpoint.CodeNotAllowedNow)
	}
	s.ResultHash, s.FailureClass, s.Result = e.ResultHash, e.Class, e.Result
	err = m.turnStep(r, s, to, trigger, kind)
	return r.stepOf(e.Name).Step, err
}

func (m *model) ResolveStep(_ context.Context, q store.StepResolve) (holdpoint.Step, error) {
	r, err := m.run(q.Tenant, q.RunID)
	if err != nil {
		return holdpoint.Step{}, err
	}
	s, to, trigger := *r.stepOf(q.Name), holdpoint.StepPending, "resolve_not_done"
	if s.State == "" {
		return s.Step, refused(holdpoint.CodeNotFound)
	}
	if s.Result = nil; q.Done {
		to, trigger, s.Result, s.ResultHash = holdpoint.StepCompleted, "resolve_done", q.Result, q.ResultHash
	}
	err = m.turnStep(r, s, to, trigger, "step.resolved")
	return r.stepOf(q.Name).Step, err
}
