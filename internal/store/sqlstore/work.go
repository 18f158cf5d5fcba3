package sqlstore

import (
	"context"
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

// nextRun gives a run as it stands after a move: its lease is over. worked is the time from the claim if the owner hands
// its work over, else nil.
func nextRun(r holdpoint.Run, now time.Time, m runMove) (next holdpoint.Run, worked any, err error) {
	if !holdpoint.Allowed(holdpoint.RunTransitions, r.State, m.to, m.trigger) {
		return r, nil, runNotNow(r)
	}
	if m.handed && r.ClaimedAt != nil {
		worked = micros(now.Sub(*r.ClaimedAt))
	}
	next = r
	next.State, next.Reason, next.FailureClass, next.Version, next.UpdatedAt = m.to, m.reason, m.class, r.Version+1, now
	next.LeaseExpiresAt, next.LeaseCapAt, next.RetryAt, next.EndedAt = nil, nil, nil, nil
	if m.retryAt != nil {
		at := m.retryAt.Truncate(time.Microsecond)
		next.RetryAt = &at
	}
	if m.to.Terminal() {
		next.EndedAt = &now
	}
	if m.call != "" {
		next.LastCall = m.call
	}
	if m.revision != 0 {
		next.Revision = m.revision
	}
	return next, worked, nil
}

// runWrite is a run as it stands now, and the state and version that its row still has.
type runWrite struct {
	from    holdpoint.RunState
	version int64
	run     holdpoint.Run
	worked  any
	result  []byte // nil keeps what the row has
	text    []byte // nil keeps what the row has
	events  int64  // lines of evidence that its counter makes room for
}

var runWrites = columns(`tenant text, id text, from_state text, from_version bigint, state text, version bigint, reason text, failure_class text,
 retry_at bigint, ended_at bigint, worked_us bigint, last_call text, revision bigint, result bytes, fail_text bytes, events bigint, at bigint`)

// writeRuns writes runs that have moved, ends their leases and gives the last number of each one's evidence.
//
// Race: the rows are locked, and version and state in the WHERE make any second move from the same reading a fault.
func (t *tx) writeRuns(ctx context.Context, list []*runWrite) (map[place]int64, error) {
	rows := make([][]any, len(list))
	for i, w := range list {
		r := w.run
		rows[i] = []any{r.Tenant, r.ID, string(w.from), w.version, string(r.State), r.Version, string(r.Reason), string(r.FailureClass),
			microsPtr(r.RetryAt), microsPtr(r.EndedAt), w.worked, r.LastCall, int64(r.Revision), w.result, w.text, w.events, r.UpdatedAt.UnixMicro()}
	}
	last := make(map[place]int64, len(list))
	err := t.each(runWrites, rows, nil, func(with string, args []any) error {
		returned, err := t.QueryContext(ctx, with+` UPDATE runs SET state = v.state, version = v.version, reason = v.reason, failure_class = v.failure_class,
 lease_expires_at = NULL, lease_cap_at = NULL, retry_at = v.retry_at, claimable_noted = 0, ended_at = v.ended_at,
 worked_us = COALESCE(v.worked_us, runs.worked_us), last_call = v.last_call, revision = v.revision, result = COALESCE(v.result, runs.result),
 fail_text = COALESCE(v.fail_text, runs.fail_text), event_seq = runs.event_seq + v.events, updated_at = v.at
 FROM v WHERE runs.tenant = v.tenant AND runs.id = v.id AND runs.state = v.from_state AND runs.version = v.from_version
 RETURNING runs.tenant, runs.id, runs.event_seq`, args...)
		_, err = collect(returned, err, func(row scanner) (p place, err error) {
			var n int64
			err = row.Scan(&p.tenant, &p.run, &n)
			last[p] = n
			return p, err
		})
		return err
	})
	if err == nil && len(last) != len(list) {
		err = errMoved
	}
	return last, err
}

// moveRun moves a run that the transaction has locked and gives the row as it stands then.
func (t *tx) moveRun(ctx context.Context, r holdpoint.Run, now time.Time, m runMove) (holdpoint.Run, error) {
	next, worked, err := nextRun(r, now, m)
	if err != nil {
		return r, err
	}
	_, err = t.writeRuns(ctx, []*runWrite{{from: r.State, version: r.Version, run: next, worked: worked, result: m.result, text: m.text}})
	return next, err
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

// lastApproval is the latest question about a run's present draft.
func (t *tx) lastApproval(ctx context.Context, r holdpoint.Run) (holdpoint.Approval, error) {
	return scanApproval(t.QueryRowContext(ctx, "SELECT "+approvalColumns+` FROM approvals WHERE tenant = $1 AND run_id = $2 AND revision = $3
		ORDER BY created_at DESC, id DESC LIMIT 1`, r.Tenant, r.ID, int64(r.Revision)))
}
