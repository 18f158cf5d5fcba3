package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// runMove is one transition of a locked run. Zero fields keep what the row has; reason, class and retryAt replace it.
type runMove struct {
	to       holdpoint.RunState
	trigger  string
	reason   holdpoint.Reason
	class    holdpoint.FailureClass
	retryAt  *time.Time
	call     string // hash of the work call that causes it
	revision int
	handed   bool // the owner hands its work over: measure the time from the claim
	result   []byte
	text     []byte
}

// moveRun moves a run that the transaction has locked, ends its lease and gives the row as it stands then.
//
// Race: the row is locked, and its version in the WHERE makes any second move from the same reading a refusal.
func (t *tx) moveRun(ctx context.Context, r holdpoint.Run, now time.Time, m runMove) (holdpoint.Run, error) {
	if !holdpoint.Allowed(holdpoint.RunTransitions, r.State, m.to, m.trigger) {
		return r, runNotNow(r)
	}
	var retry, ended, worked any
	if m.retryAt != nil {
		retry = m.retryAt.UnixMicro()
	}
	if m.to.Terminal() {
		ended = now.UnixMicro()
	}
	if m.handed && r.ClaimedAt != nil {
		worked = micros(now.Sub(*r.ClaimedAt))
	}
	call, revision := m.call, m.revision
	if call == "" {
		call = r.LastCall
	}
	if revision == 0 {
		revision = r.Revision
	}
	moved, err := scanRun(t.QueryRowContext(ctx, `UPDATE runs SET state = $5, reason = $6, failure_class = $7, version = version + 1,
		lease_expires_at = NULL, lease_cap_at = NULL, retry_at = $8, claimable_noted = 0, ended_at = $9, worked_us = COALESCE($10, worked_us),
		last_call = $11, revision = $12, result = COALESCE($13, result), fail_text = COALESCE($14, fail_text), updated_at = $15
		WHERE tenant = $1 AND id = $2 AND state = $3 AND version = $4 RETURNING `+runColumns,
		r.Tenant, r.ID, string(r.State), r.Version, string(m.to), string(m.reason), string(m.class), retry, ended, worked,
		call, int64(revision), m.result, m.text, now.UnixMicro()))
	if errors.Is(err, sql.ErrNoRows) {
		return r, runNotNow(r)
	}
	return moved, err
}

func runNotNow(r holdpoint.Run) error {
	return holdpoint.Errorf(holdpoint.CodeNotAllowedNow, "run %s is %s, which does not permit this; read it and act on what stands", r.ID, r.State).
		With("state", r.State)
}

func lostLease(r holdpoint.Run) error {
	return holdpoint.Errorf(holdpoint.CodeLeaseLost, "this lease is no longer held; stop working on the run, read it, and claim it again if it is claimable").
		With("state", r.State)
}

// repeated reports whether a work call is the one that moved the run last, sent again because its answer was lost. A
// claim forgets the last call, so nobody is answered from another lease.
func repeated(f store.Fence, r holdpoint.Run) bool {
	return f.Call != "" && r.LastCall == f.Call && r.LeaseOwner == f.Owner && r.Version > f.Version &&
		(r.ExecutionID == "" || r.ExecutionID == f.ExecutionID)
}

// runEvent is the evidence of a run's move.
func runEvent(kind string, who holdpoint.Who, from holdpoint.RunState, r holdpoint.Run, content []byte) event {
	data := map[string]any{"from": from, "to": r.State, "version": r.Version}
	if r.Reason != "" {
		data["reason"] = r.Reason
	}
	if r.FailureClass != "" {
		data["failure_class"] = r.FailureClass
	}
	if r.RetryAt != nil {
		data["retry_at"] = r.RetryAt
	}
	return event{tenant: r.Tenant, run: r.ID, kind: kind, who: who, data: data, content: content}
}

// RejectDraft implements store.Runs.
func (s *Store) RejectDraft(ctx context.Context, f store.Fence, d store.DraftRejection) (run holdpoint.Run, err error) {
	queued := false
	err = s.do(ctx, "RejectDraft", func(t *tx) error {
		queued = false
		r, now, err := t.lockRun(ctx, f.Tenant, f.RunID)
		if err != nil {
			return err
		}
		if run = r; repeated(f, r) {
			return nil
		}
		if err := owned(f, r, now); err != nil {
			return err
		}
		if !d.Terminal && f.Call != "" && r.LastCall == f.Call {
			return nil // counted before; the version did not change with it
		}
		queued = len(d.Messages) > 0
		data := map[string]any{"failure_class": d.Class, "codes": d.Codes, "model": d.Model}
		events := []event{{tenant: f.Tenant, run: f.RunID, kind: "draft.rejected", who: d.Who, data: data}}
		if d.Terminal {
			run, err = t.moveRun(ctx, r, now, runMove{to: holdpoint.RunFailedTerminal, trigger: "give_up", reason: d.Reason, class: d.Class, call: f.Call})
			events = append(events, runEvent("run.failed", d.Who, r.State, run, nil))
		} else {
			// Race: two drafts under one lease are rejected one after the other below the row's lock; each is counted.
			run, err = scanRun(t.QueryRowContext(ctx, `UPDATE runs SET repairs = repairs + 1, last_call = $4, updated_at = $5
				WHERE tenant = $1 AND id = $2 AND version = $3 AND state = 'processing' RETURNING `+runColumns,
				f.Tenant, f.RunID, f.Version, f.Call, now.UnixMicro()))
		}
		if err != nil {
			return err
		}
		data["repairs"] = run.Repairs
		if err := t.record(ctx, now, events...); err != nil {
			return err
		}
		return t.queue(ctx, now, d.Messages)
	})
	if err == nil && queued {
		s.hint("messages")
	}
	return run, err
}

// EndWork implements store.Runs. A failure that leaves no attempt inside limit and budget ends the run for good.
func (s *Store) EndWork(ctx context.Context, f store.Fence, e store.WorkEnd) (run holdpoint.Run, err error) {
	triggers := map[holdpoint.RunState]string{holdpoint.RunCompleted: "complete", holdpoint.RunFailedRetryable: "fail", holdpoint.RunFailedTerminal: "give_up"}
	if triggers[e.State] == "" {
		return run, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "work ends in completed, failed_retryable or failed_terminal")
	}
	queued := false
	err = s.do(ctx, "EndWork", func(t *tx) error {
		queued = false
		r, now, err := t.lockRun(ctx, f.Tenant, f.RunID)
		if err != nil {
			return err
		}
		if run = r; repeated(f, r) {
			return nil
		}
		if err := owned(f, r, now); err != nil {
			return err
		}
		m := runMove{to: e.State, reason: e.Reason, class: e.Class, call: f.Call, text: e.Text}
		switch e.State {
		case holdpoint.RunCompleted:
			open, err := t.openEffects(ctx, f.Tenant, f.RunID)
			if err != nil {
				return err
			}
			if open > 0 {
				return holdpoint.Errorf(holdpoint.CodeNotAllowedNow, "run %s has open effects; it completes when the last of them ends", f.RunID).With("open_effects", open)
			}
			m.handed, m.result = true, e.Result
		case holdpoint.RunFailedRetryable:
			retry := now.Add(e.RetryIn)
			m.retryAt = &retry
			if r.Attempts >= r.AttemptLimit || r.BudgetUntil == nil || !retry.Before(*r.BudgetUntil) {
				m.to, m.reason, m.retryAt = holdpoint.RunFailedTerminal, holdpoint.ReasonBudget, nil
			}
		}
		m.trigger = triggers[m.to]
		if run, err = t.moveRun(ctx, r, now, m); err != nil {
			return err
		}
		kind := "run.failed"
		if run.State == holdpoint.RunCompleted {
			kind = "run.completed"
		}
		if err := t.record(ctx, now, runEvent(kind, e.Who, r.State, run, e.Text)); err != nil {
			return err
		}
		queued = len(e.Messages) > 0
		return t.queue(ctx, now, e.Messages)
	})
	if err == nil && queued {
		s.hint("messages")
	}
	return run, err
}

// openEffects counts the effects that a locked run must still wait for. None can be added while the run is locked.
func (t *tx) openEffects(ctx context.Context, tenant, run string) (n int64, err error) {
	err = t.QueryRowContext(ctx, "SELECT COUNT(*) FROM effects WHERE tenant = $1 AND run_id = $2 AND state IN ('pending', 'sending', 'unknown')",
		tenant, run).Scan(&n)
	return n, err
}

// HoldDraft implements store.Runs.
func (s *Store) HoldDraft(ctx context.Context, d store.Draft) (run holdpoint.Run, approval holdpoint.Approval, err error) {
	f, queued := d.Fence, false
	err = s.do(ctx, "HoldDraft", func(t *tx) error {
		queued = false
		r, now, err := t.lockRun(ctx, f.Tenant, f.RunID)
		if err != nil {
			return err
		}
		if repeated(f, r) {
			run = r
			approval, err = t.lastApproval(ctx, r)
			return err
		}
		if err := owned(f, r, now); err != nil {
			return err
		}
		if d.Draft.Revision != r.Revision+1 || d.Approval.Revision != d.Draft.Revision {
			return holdpoint.Errorf(holdpoint.CodeNotAllowedNow, "run %s has draft revision %d; render the draft as the next one", r.ID, r.Revision).
				With("draft_revision", r.Revision)
		}
		if run, err = t.moveRun(ctx, r, now, runMove{to: holdpoint.RunAwaitingHuman, trigger: "hold", call: f.Call, revision: d.Draft.Revision, handed: true}); err != nil {
			return err
		}
		if err := t.insertDraft(ctx, now, d); err != nil {
			return err
		}
		if approval, err = t.insertApproval(ctx, now, d); err != nil {
			return err
		}
		accepted := runEvent("draft.accepted", d.Who, r.State, run, nil)
		maps.Copy(accepted.data, d.Data)
		accepted.data["draft_revision"], accepted.data["output_hash"] = d.Draft.Revision, d.Draft.OutputHash
		events := []event{accepted, {tenant: f.Tenant, run: f.RunID, kind: "approval.created", who: d.Who, data: map[string]any{
			"approval_id": approval.ID, "draft_revision": approval.Revision, "digest": approval.Digest, "policy_version": approval.PolicyHash,
			"kind": approval.Kind, "why": approval.Why, "roles": approval.Roles, "quorum": approval.Quorum, "assurance": approval.Assurance,
			"approve_by": approval.ApproveBy}}}
		for _, c := range d.Challenges {
			events = append(events, event{tenant: f.Tenant, run: f.RunID, kind: "challenge.created", who: d.Who, data: map[string]any{
				"challenge_id": c.ID, "approval_id": approval.ID, "channel": c.Channel, "expires_at": approval.ApproveBy}})
		}
		if err := t.record(ctx, now, events...); err != nil {
			return err
		}
		queued = len(d.Messages) > 0
		return t.queue(ctx, now, d.Messages)
	})
	if err == nil && queued {
		s.hint("messages")
	}
	return run, approval, err
}

// insertDraft stores a draft and the effects that policy rendered from it. They stand beside the outbox, where no
// dispatcher looks, until a decision releases them (I1).
func (t *tx) insertDraft(ctx context.Context, now time.Time, d store.Draft) error {
	if _, err := t.ExecContext(ctx, `INSERT INTO drafts (tenant, run_id, revision, output_hash, model, policy_hash, output, source_url, created_at)
		VALUES `+tuples(1, 9, 1), d.Fence.Tenant, d.Fence.RunID, int64(d.Draft.Revision), d.Draft.OutputHash, text(d.Draft.Model), d.Draft.PolicyHash,
		d.Output, d.SourceURL, now.UnixMicro()); err != nil {
		return err
	}
	if len(d.Effects) == 0 {
		return nil
	}
	args := make([]any, 0, 20*len(d.Effects))
	for _, e := range d.Effects {
		after := e.After
		if after == nil {
			after = []string{}
		}
		var reversible any
		if e.Reversible != nil {
			reversible = text(e.Reversible)
		}
		args = append(args, d.Fence.Tenant, e.ID, d.Fence.RunID, e.Workflow, int64(d.Draft.Revision), int64(e.Order), e.Slot, e.Type, e.Connector,
			e.ConnectorVersion, e.Provider, e.Consequence, e.TargetIndex, e.PayloadHash, e.ProviderKey, e.Reference, text(after), reversible,
			e.Target, e.Payload)
	}
	_, err := t.ExecContext(ctx, "INSERT INTO planned_effects (tenant, "+specColumns+", target, payload) VALUES "+tuples(len(d.Effects), 20, 1), args...)
	return err
}

// insertApproval stores the question about a draft and everyone's way in; both end at the same instant.
func (t *tx) insertApproval(ctx context.Context, now time.Time, d store.Draft) (holdpoint.Approval, error) {
	a := d.Approval
	a.Tenant, a.RunID, a.State, a.Version = d.Fence.Tenant, d.Fence.RunID, holdpoint.ApprovalPending, 1
	a.CreatedAt, a.ApproveBy, a.ExecuteBy, a.DecidedAt = now, now.Add(d.ApproveBy).Truncate(time.Microsecond), nil, nil
	if a.Roles == nil {
		a.Roles = []string{}
	}
	if a.Allowed == nil {
		a.Allowed = []holdpoint.Decision{}
	}
	if _, err := t.ExecContext(ctx, `INSERT INTO approvals (tenant, id, run_id, workflow, revision, digest, policy_hash, state, kind, why, roles, quorum,
		assurance, allowed, version, execute_within_us, created_at, approve_by) VALUES `+tuples(1, 18, 1),
		a.Tenant, a.ID, a.RunID, a.Workflow, int64(a.Revision), a.Digest, a.PolicyHash, string(a.State), a.Kind, a.Why, text(a.Roles), int64(a.Quorum),
		a.Assurance, text(a.Allowed), a.Version, micros(time.Duration(a.ExecuteWithin)), now.UnixMicro(), a.ApproveBy.UnixMicro()); err != nil {
		return a, err
	}
	if len(d.Challenges) == 0 {
		return a, nil
	}
	args := make([]any, 0, 6*len(d.Challenges))
	for _, c := range d.Challenges {
		args = append(args, a.Tenant, c.ID, a.ID, c.Email, c.Channel, a.ApproveBy.UnixMicro())
	}
	_, err := t.ExecContext(ctx, "INSERT INTO challenges (tenant, id, approval_id, email, channel, expires_at) VALUES "+
		tuples(len(d.Challenges), 6, 1), args...)
	return a, err
}

// lastApproval is the latest question about a run's present draft.
func (t *tx) lastApproval(ctx context.Context, r holdpoint.Run) (holdpoint.Approval, error) {
	return scanApproval(t.QueryRowContext(ctx, "SELECT "+approvalColumns+` FROM approvals WHERE tenant = $1 AND run_id = $2 AND revision = $3
		ORDER BY created_at DESC, id DESC LIMIT 1`, r.Tenant, r.ID, int64(r.Revision)))
}
