package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// ReplaceRun implements store.Runs.
func (s *Store) ReplaceRun(ctx context.Context, p store.Replacement) (before, after holdpoint.Run, created bool, err error) {
	err = s.do(ctx, "ReplaceRun", func(t *tx) error {
		old, err := t.identity(ctx, p.Tenant, p.OldRunID)
		if err != nil {
			return err
		}
		// Both rows are locked in the order in which claims lock theirs. An identity never changes, so it is read before.
		var now time.Time
		lockOld := func() error {
			before, now, err = t.lockRun(ctx, p.Tenant, p.OldRunID)
			return err
		}
		lockNew := func() error {
			var id string
			if id, created, err = t.correction(ctx, p.New); err != nil {
				return err
			}
			after, now, err = t.lockRun(ctx, p.Tenant, id)
			return err
		}
		locks := []func() error{lockOld, lockNew}
		if old.compare(identityOf(p.New)) > 0 {
			slices.Reverse(locks)
		}
		for _, lock := range locks {
			if err := lock(); err != nil {
				return err
			}
		}
		id := after.ID
		if before.ReplacedBy == id {
			return nil
		}
		if err := linkable(before, after, p.New, now); err != nil {
			return err
		}
		var events []event
		from := before.State
		if !from.Terminal() {
			if events, err = t.closeApproval(ctx, before, holdpoint.ApprovalInvalidated, "invalidate", now, p.Who); err != nil {
				return err
			}
			if before, err = t.moveRun(ctx, before, now, runMove{to: holdpoint.RunFailedTerminal, trigger: "replace", reason: holdpoint.ReasonReplaced}); err != nil {
				return err
			}
		}
		// Race: two corrections of one run, or one run that is to correct two: both rows are locked and still unlinked.
		res, err := t.ExecContext(ctx, "UPDATE runs SET replaced_by = $3, updated_at = $4 WHERE tenant = $1 AND id = $2 AND replaced_by = ''",
			p.Tenant, p.OldRunID, id, now.UnixMicro())
		if err := oneRow(res, err, runNotNow(before)); err != nil {
			return err
		}
		res, err = t.ExecContext(ctx, "UPDATE runs SET replaces = $3, updated_at = $4 WHERE tenant = $1 AND id = $2 AND replaces = ''",
			p.Tenant, id, p.OldRunID, now.UnixMicro())
		if err := oneRow(res, err, runNotNow(after)); err != nil {
			return err
		}
		before.ReplacedBy, before.UpdatedAt, after.Replaces, after.UpdatedAt = id, now, p.OldRunID, now
		replaced := runEvent("run.replaced", p.Who, from, before, p.ReasonText)
		replaced.data["replaced_by"] = id
		linked := event{tenant: p.Tenant, run: id, kind: "run.linked", who: p.Who,
			data: map[string]any{"replaces": p.OldRunID, "created": created, "state": after.State, "fingerprint": after.Fingerprint}}
		return t.record(ctx, now, append(events, replaced, linked)...)
	})
	return before, after, created, err
}

// identity reads what a run is unique by; not_found if there is no such run.
func (t *tx) identity(ctx context.Context, tenant, id string) (identity, error) {
	i := identity{tenant: tenant}
	err := t.QueryRowContext(ctx, "SELECT scope, key_hmac FROM runs WHERE tenant = $1 AND id = $2", tenant, id).Scan(&i.scope, &i.hmac)
	if errors.Is(err, sql.ErrNoRows) {
		return i, noRun(id)
	}
	return i, err
}

// correction makes the run that corrects another, due now and unclaimed, or finds the one that its key has, and gives
// its id and whether it was made.
//
// Race: a delivery that claims the same new key at this instant either made the row, which is then linked, or waits for
// this transaction and takes over what it made.
func (t *tx) correction(ctx context.Context, c store.Claim) (id string, created bool, err error) {
	now, err := t.now(ctx)
	if err != nil {
		return "", false, err
	}
	var inserted int64
	err = t.each(newRuns, [][]any{newRun(c, now, false)}, nil, func(with string, args []any) error {
		res, err := t.ExecContext(ctx, with+insertRuns+" ON CONFLICT (tenant, scope, key_hmac) DO NOTHING", args...)
		if err != nil {
			return err
		}
		inserted, err = res.RowsAffected()
		return err
	})
	if err != nil || inserted == 1 {
		return c.RunID, err == nil, err
	}
	err = t.QueryRowContext(ctx, "SELECT id FROM runs WHERE tenant = $1 AND scope = $2 AND key_hmac = $3", c.Tenant, c.Scope, c.KeyHMAC).Scan(&id)
	return id, false, err
}

// linkable says why one run may not become the correction of another.
func linkable(before, after holdpoint.Run, c store.Claim, now time.Time) error {
	refuse := func(why string) error {
		return holdpoint.Errorf(holdpoint.CodeNotAllowedNow, "%s", why).With("state", before.State)
	}
	live := before.State == holdpoint.RunProcessing && now.Before(*before.LeaseExpiresAt)
	switch {
	case before.ID == after.ID:
		return refuse("a run does not correct itself; give the correction a key of its own")
	case before.ReplacedBy != "":
		return refuse("the run is replaced already; replace the run that replaced it")
	case after.Replaces != "" || after.ReplacedBy != "":
		return refuse("the new key's run is part of another replacement; use another key")
	case after.FingerprintRule != c.FingerprintRule || after.Fingerprint != c.Fingerprint:
		return holdpoint.Errorf(holdpoint.CodeMismatch, "the new key stands for another payload; send the payload that the key was first claimed with, or use another key")
	case live:
		return refuse("an execution is working on the run; wait until it ends or its lease expires")
	case before.State == holdpoint.RunApproved:
		return refuse("the run has released effects that are still open; cancel or resolve them first")
	}
	return nil
}

// closeApproval ends the pending approval of a locked run, if it has one, and every way in to it.
//
// Race: a decision locks the run first, too; it comes before this and moves the approval, or after and finds it closed.
func (t *tx) closeApproval(ctx context.Context, r holdpoint.Run, to holdpoint.ApprovalState, trigger string, now time.Time, who holdpoint.Who) ([]event, error) {
	if !holdpoint.Allowed(holdpoint.ApprovalTransitions, holdpoint.ApprovalPending, to, trigger) {
		return nil, runNotNow(r)
	}
	rows, err := t.QueryContext(ctx, `UPDATE approvals SET state = $3, version = version + 1 WHERE tenant = $1 AND run_id = $2 AND state = 'pending'
		RETURNING `+approvalColumns, r.Tenant, r.ID, string(to))
	closed, err := collect(rows, err, func(row scanner) (holdpoint.Approval, error) { return scanApproval(row) })
	if err != nil {
		return nil, err
	}
	var events []event
	for _, a := range closed {
		if _, err := t.ExecContext(ctx, "UPDATE challenges SET revoked_at = $3 WHERE tenant = $1 AND approval_id = $2 AND used_at IS NULL AND revoked_at IS NULL",
			r.Tenant, a.ID, now.UnixMicro()); err != nil {
			return nil, err
		}
		events = append(events, event{tenant: r.Tenant, run: r.ID, kind: "approval." + string(to), who: who, data: map[string]any{
			"approval_id": a.ID, "digest": a.Digest, "from": holdpoint.ApprovalPending, "to": a.State, "version": a.Version}})
	}
	return events, nil
}

// CancelRun implements store.Runs.
func (s *Store) CancelRun(ctx context.Context, tenant, runID string, reasonText []byte, who holdpoint.Who) (run holdpoint.Run, err error) {
	err = s.do(ctx, "CancelRun", func(t *tx) error {
		r, now, err := t.lockRun(ctx, tenant, runID)
		if err != nil {
			return err
		}
		run = r
		var events []event
		switch r.State {
		case holdpoint.RunApproved:
			err = t.cancelEffects(ctx, &run, now, who)
		case holdpoint.RunAwaitingHuman:
			if events, err = t.closeApproval(ctx, r, holdpoint.ApprovalWithdrawn, "withdraw", now, who); err != nil {
				return err
			}
			run, err = t.moveRun(ctx, r, now, runMove{to: holdpoint.RunFailedTerminal, trigger: "withdraw", reason: holdpoint.ReasonCancelled})
		default:
			run, err = t.moveRun(ctx, r, now, runMove{to: holdpoint.RunFailedTerminal, trigger: "cancel", reason: holdpoint.ReasonCancelled})
		}
		if err != nil {
			return err
		}
		return t.record(ctx, now, append(events, runEvent("run.cancelled", who, r.State, run, reasonText))...)
	})
	return run, err
}

// cancelEffects ends every effect of a locked run that has not begun, and the run with the last open one; what has begun
// or is in doubt is not undone by a word. not_allowed_now if every effect has begun.
func (t *tx) cancelEffects(ctx context.Context, r *holdpoint.Run, now time.Time, who holdpoint.Who) error {
	waiting, err := t.effectsWhere(ctx, "tenant = $1 AND run_id = $2 AND state IN ('pending', 'sending') ORDER BY ord", r.Tenant, r.ID)
	if err != nil {
		return err
	}
	m := mover{tx: t, now: now, who: who}
	var ended []holdpoint.Effect
	for i := range waiting {
		stoppable, err := t.notBegun(ctx, waiting[i])
		if err != nil {
			return err
		}
		if !stoppable {
			continue
		}
		if err := m.end(ctx, &waiting[i], reasonCancelled); err != nil {
			return err
		}
		ended = append(ended, waiting[i])
	}
	if len(ended) == 0 {
		return holdpoint.Errorf(holdpoint.CodeNotAllowedNow, "every effect of run %s has begun; resolve what is unknown instead", r.ID).With("state", r.State)
	}
	if _, err := m.settleRun(ctx, r, ended...); err != nil {
		return err
	}
	return m.flush(ctx)
}
