package sqlstore

import (
	"context"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// quiet is how long no duplicate has come before the last one becomes an event.
const quiet = time.Minute

// The sweeper's finds. Rows that another transaction holds are passed over: whoever holds them moves them, and the
// next sweep comes soon. $1 is the instant, $2 the limit.
const (
	sweepApprovals = `SELECT ` + runColumns + ` FROM approvals JOIN runs ON runs.tenant = approvals.tenant AND runs.id = approvals.run_id
 WHERE approvals.state = 'pending' AND approvals.approve_by <= $1 AND runs.state = 'awaiting_human'
 ORDER BY approvals.approve_by LIMIT $2 {{for_update}} {{skip_locked}}`
	sweepStolen = `SELECT ` + runColumns + ` FROM runs WHERE state = 'processing' AND lease_expires_at <= $1
 AND (steals >= steal_cap OR budget_until <= $1) ORDER BY lease_expires_at LIMIT $2 {{for_update}} {{skip_locked}}`
	sweepSpent = `SELECT ` + runColumns + ` FROM runs WHERE state = 'failed_retryable' AND (budget_until <= $1 OR attempts >= attempt_limit)
 ORDER BY retry_at LIMIT $2 {{for_update}} {{skip_locked}}`
	sweepDue = `SELECT ` + runColumns + ` FROM runs WHERE state = 'failed_retryable' AND retry_at <= $1 AND claimable_noted = 0
 AND budget_until > $1 AND attempts < attempt_limit
 ORDER BY retry_at LIMIT $2 {{for_update}} {{skip_locked}}`
	sweepExpired = `SELECT ` + runColumns + ` FROM runs WHERE state = 'processing' AND lease_expires_at <= $1 AND claimable_noted = 0
 AND budget_until > $1 AND steals < steal_cap
 ORDER BY lease_expires_at LIMIT $2 {{for_update}} {{skip_locked}}`
	sweepQuiet = `SELECT ` + runColumns + ` FROM runs WHERE duplicates > duplicates_noted AND last_duplicate <= $1
 ORDER BY last_duplicate LIMIT $2 {{for_update}} {{skip_locked}}`
)

// SweepRuns implements store.Runs.
func (s *Store) SweepRuns(ctx context.Context, limit int) (swept []store.Swept, err error) {
	err = s.do(ctx, "SweepRuns", func(t *tx) error {
		swept = nil
		now, err := t.now(ctx)
		if err != nil {
			return err
		}
		for _, step := range []struct {
			find string
			do   func(context.Context, holdpoint.Run, time.Time) (*store.Swept, []event, error)
		}{
			{sweepApprovals, t.expire},
			{sweepStolen, t.endStolen},
			{sweepSpent, t.endSpent},
			{sweepDue, t.noteClaimable},
			{sweepExpired, t.noteClaimable},
		} {
			runs, err := t.find(ctx, step.find, now, limit)
			if err != nil {
				return err
			}
			for _, r := range runs {
				one, events, err := step.do(ctx, r, now)
				if err != nil {
					return err
				}
				if err := t.record(ctx, now, events...); err != nil {
					return err
				}
				swept = append(swept, *one)
			}
		}
		return t.noteQuiet(ctx, now, limit)
	})
	return swept, err
}

func (t *tx) find(ctx context.Context, query string, at time.Time, limit int) ([]holdpoint.Run, error) {
	rows, err := t.QueryContext(ctx, t.s.expand(query), at.UnixMicro(), int64(limit))
	return collect(rows, err, func(row scanner) (holdpoint.Run, error) { return scanRun(row) })
}

// expire ends a question that nobody answered in time, and its run: an expiry never approves.
func (t *tx) expire(ctx context.Context, r holdpoint.Run, now time.Time) (*store.Swept, []event, error) {
	approval, err := scanApproval(t.QueryRowContext(ctx, "SELECT "+approvalColumns+" FROM approvals WHERE tenant = $1 AND run_id = $2 AND state = 'pending'",
		r.Tenant, r.ID))
	if err != nil {
		return nil, nil, err
	}
	events, err := t.closeApproval(ctx, r, holdpoint.ApprovalExpired, "expire", now, sweeper)
	if err != nil {
		return nil, nil, err
	}
	ended, err := t.moveRun(ctx, r, now, runMove{to: holdpoint.RunFailedTerminal, trigger: "expire", reason: holdpoint.ReasonExpired})
	if err != nil {
		return nil, nil, err
	}
	approval.State, approval.Version = holdpoint.ApprovalExpired, approval.Version+1
	return &store.Swept{What: "approval.expired", Run: ended, Approval: approval}, append(events, runEvent("run.failed", sweeper, r.State, ended, nil)), nil
}

// endStolen ends a run whose lease has expired and that no claim may take over any more.
func (t *tx) endStolen(ctx context.Context, r holdpoint.Run, now time.Time) (*store.Swept, []event, error) {
	reason := holdpoint.ReasonSteals
	if r.Steals < r.StealCap {
		reason = holdpoint.ReasonBudget
	}
	return t.endSwept(ctx, r, now, runMove{to: holdpoint.RunFailedTerminal, trigger: "steal_cap", reason: reason, class: holdpoint.ClassCrash})
}

// endSpent ends a run that waits for an attempt which its limit or budget no longer allows.
func (t *tx) endSpent(ctx context.Context, r holdpoint.Run, now time.Time) (*store.Swept, []event, error) {
	return t.endSwept(ctx, r, now, runMove{to: holdpoint.RunFailedTerminal, trigger: "budget_over", reason: holdpoint.ReasonBudget, class: r.FailureClass})
}

func (t *tx) endSwept(ctx context.Context, r holdpoint.Run, now time.Time, m runMove) (*store.Swept, []event, error) {
	ended, err := t.moveRun(ctx, r, now, m)
	if err != nil {
		return nil, nil, err
	}
	return &store.Swept{What: "run.failed", Run: ended}, []event{runEvent("run.failed", sweeper, r.State, ended, nil)}, nil
}

// noteClaimable tells, once for each time that it falls due, that a claim would win this run. Nothing moves.
func (t *tx) noteClaimable(ctx context.Context, r holdpoint.Run, _ time.Time) (*store.Swept, []event, error) {
	res, err := t.ExecContext(ctx, "UPDATE runs SET claimable_noted = 1 WHERE tenant = $1 AND id = $2 AND version = $3 AND claimable_noted = 0",
		r.Tenant, r.ID, r.Version)
	if err := oneRow(res, err, runNotNow(r)); err != nil {
		return nil, nil, err
	}
	return &store.Swept{What: "run.claimable", Run: r}, []event{{tenant: r.Tenant, run: r.ID, kind: "run.claimable", who: sweeper,
		data: map[string]any{"state": r.State, "reason": r.Reason, "version": r.Version, "attempts": r.Attempts, "budget_until": r.BudgetUntil}}}, nil
}

// noteQuiet writes the last duplicate of runs that have had none for a while, with the number of all of them.
func (t *tx) noteQuiet(ctx context.Context, now time.Time, limit int) error {
	runs, err := t.find(ctx, sweepQuiet, now.Add(-quiet), limit)
	if err != nil {
		return err
	}
	events := make([]event, len(runs))
	for i, r := range runs {
		// Race: a delivery that counts at this instant waits for the row's lock and makes the run due once more.
		if _, err := t.ExecContext(ctx, "UPDATE runs SET duplicates_noted = duplicates WHERE tenant = $1 AND id = $2", r.Tenant, r.ID); err != nil {
			return err
		}
		events[i] = event{tenant: r.Tenant, run: r.ID, kind: "run.duplicate", who: sweeper,
			data: map[string]any{"number": r.Duplicates, "last": true, "state": r.State, "version": r.Version}}
	}
	return t.record(ctx, now, events...)
}
