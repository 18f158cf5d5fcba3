package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// scanner is a row or the current row of rows.
type scanner interface{ Scan(dest ...any) error }

const runColumns = `runs.tenant, runs.id, runs.workflow, runs.scope, runs.key, runs.key_flag, runs.operation, runs.state, runs.reason, runs.failure_class,
 runs.version, runs.fingerprint, runs.fingerprint_rule, runs.ignore_pointers, runs.policy_hash, runs.lease_owner, runs.lease_expires_at, runs.lease_cap_at,
 runs.claimed_at, runs.execution_id, runs.trigger_source, runs.workflow_version, runs.delivery_id, runs.attempts, runs.attempt_limit, runs.round,
 runs.steals, runs.steal_cap, runs.duplicates, runs.mismatches, runs.retry_at, runs.budget_until, runs.revision, runs.repairs, runs.replaces,
 runs.replaced_by, runs.last_call, runs.created_at, runs.updated_at, runs.ended_at`

// scanRun reads runColumns, then whatever more the statement returns.
func scanRun(row scanner, more ...any) (holdpoint.Run, error) {
	var (
		r                                             holdpoint.Run
		operation                                     sql.NullString
		ignore                                        string
		expires, limit, claimed, retry, budget, ended sql.NullInt64
		created, updated                              int64
	)
	dest := append([]any{&r.Tenant, &r.ID, &r.Workflow, &r.Scope, &r.Key, &r.KeyFlag, &operation, &r.State, &r.Reason, &r.FailureClass,
		&r.Version, &r.Fingerprint, &r.FingerprintRule, &ignore, &r.PolicyHash, &r.LeaseOwner, &expires, &limit,
		&claimed, &r.ExecutionID, &r.TriggerSource, &r.WorkflowVersion, &r.DeliveryID, &r.Attempts, &r.AttemptLimit, &r.Round,
		&r.Steals, &r.StealCap, &r.Duplicates, &r.Mismatches, &retry, &budget, &r.Revision, &r.Repairs, &r.Replaces,
		&r.ReplacedBy, &r.LastCall, &created, &updated, &ended}, more...)
	if err := row.Scan(dest...); err != nil {
		return r, err
	}
	r.LeaseExpiresAt, r.LeaseCapAt, r.ClaimedAt = instantPtr(expires), instantPtr(limit), instantPtr(claimed)
	r.RetryAt, r.BudgetUntil, r.EndedAt = instantPtr(retry), instantPtr(budget), instantPtr(ended)
	r.CreatedAt, r.UpdatedAt = instant(created), instant(updated)
	if operation.Valid {
		if err := json.Unmarshal([]byte(operation.String), &r.Operation); err != nil {
			return r, fmt.Errorf("run %s: operation: %w", r.ID, err)
		}
	}
	if err := json.Unmarshal([]byte(ignore), &r.Ignore); err != nil {
		return r, fmt.Errorf("run %s: fingerprint rule: %w", r.ID, err)
	}
	return r, nil
}

// lease gives the lease that a run's row holds.
func lease(r holdpoint.Run) *holdpoint.Lease {
	if r.LeaseExpiresAt == nil || r.LeaseCapAt == nil {
		return nil
	}
	return &holdpoint.Lease{Owner: r.LeaseOwner, Version: r.Version, ExpiresAt: *r.LeaseExpiresAt, CapAt: *r.LeaseCapAt}
}

const approvalColumns = `approvals.tenant, approvals.id, approvals.run_id, approvals.workflow, approvals.revision, approvals.digest, approvals.policy_hash,
 approvals.state, approvals.kind, approvals.why, approvals.roles, approvals.quorum, approvals.assurance, approvals.allowed, approvals.version,
 approvals.execute_within_us, approvals.created_at, approvals.approve_by, approvals.execute_by, approvals.decided_at`

func scanApproval(row scanner, more ...any) (holdpoint.Approval, error) {
	var (
		a                          holdpoint.Approval
		roles, allowed             string
		within, created, approveBy int64
		executeBy, decided         sql.NullInt64
	)
	dest := append([]any{&a.Tenant, &a.ID, &a.RunID, &a.Workflow, &a.Revision, &a.Digest, &a.PolicyHash,
		&a.State, &a.Kind, &a.Why, &roles, &a.Quorum, &a.Assurance, &allowed, &a.Version,
		&within, &created, &approveBy, &executeBy, &decided}, more...)
	if err := row.Scan(dest...); err != nil {
		return a, err
	}
	a.ExecuteWithin = holdpoint.Duration(time.Duration(within) * time.Microsecond)
	a.CreatedAt, a.ApproveBy = instant(created), instant(approveBy)
	a.ExecuteBy, a.DecidedAt = instantPtr(executeBy), instantPtr(decided)
	return a, errors.Join(json.Unmarshal([]byte(roles), &a.Roles), json.Unmarshal([]byte(allowed), &a.Allowed))
}

const specColumns = `id, run_id, workflow, revision, ord, slot, type, connector, connector_version, provider, consequence, target_index,
 payload_hash, provider_key, reference, after_slots, reversible`

// plannedColumns are specColumns of planned_effects p.
const plannedColumns = `p.id, p.run_id, p.workflow, p.revision, p.ord, p.slot, p.type, p.connector, p.connector_version, p.provider, p.consequence,
 p.target_index, p.payload_hash, p.provider_key, p.reference, p.after_slots, p.reversible`

const effectColumns = `effects.id, effects.run_id, effects.workflow, effects.revision, effects.ord, effects.slot, effects.type, effects.connector,
 effects.connector_version, effects.provider, effects.consequence, effects.target_index, effects.payload_hash, effects.provider_key, effects.reference,
 effects.after_slots, effects.reversible,
 effects.tenant, effects.approval_id, effects.state, effects.hold, effects.reason, effects.possibly_committed, effects.failure_class, effects.version,
 effects.attempts, effects.spent, effects.first_attempt_at, effects.next_attempt_at, effects.execute_by, effects.provider_id, effects.wire_hash,
 effects.send_before, effects.lookups, effects.absent_reads, effects.absent_resends, effects.next_lookup_at, effects.lease_owner,
 effects.lease_expires_at, effects.created_at, effects.updated_at`

// specDest gives the destinations of specColumns; done decodes its JSON members after the scan.
func specDest(s *holdpoint.EffectSpec) (dest []any, done func() error) {
	var after string
	var reversible sql.NullString
	return []any{&s.ID, &s.RunID, &s.Workflow, &s.Revision, &s.Order, &s.Slot, &s.Type, &s.Connector, &s.ConnectorVersion, &s.Provider,
			&s.Consequence, &s.TargetIndex, &s.PayloadHash, &s.ProviderKey, &s.Reference, &after, &reversible}, func() error {
			if reversible.Valid {
				if err := json.Unmarshal([]byte(reversible.String), &s.Reversible); err != nil {
					return err
				}
			}
			return json.Unmarshal([]byte(after), &s.After)
		}
}

// scanEffect reads effectColumns, then whatever more the statement returns.
func scanEffect(row scanner, more ...any) (holdpoint.Effect, error) {
	var (
		e                                                    holdpoint.Effect
		possibly                                             int64
		first, next, executeBy, before, lookup, leaseExpires sql.NullInt64
		created, updated                                     int64
	)
	dest, done := specDest(&e.EffectSpec)
	dest = append(dest, &e.Tenant, &e.ApprovalID, &e.State, &e.Hold, &e.Reason, &possibly, &e.FailureClass, &e.Version,
		&e.Attempts, &e.Spent, &first, &next, &executeBy, &e.ProviderID, &e.WireHash,
		&before, &e.Lookups, &e.AbsentReads, &e.AbsentResends, &lookup, &e.LeaseOwner,
		&leaseExpires, &created, &updated)
	if err := row.Scan(append(dest, more...)...); err != nil {
		return e, err
	}
	e.PossiblyCommitted = possibly != 0
	e.FirstAttemptAt, e.NextAttemptAt, e.ExecuteBy = instantPtr(first), instantPtr(next), instantPtr(executeBy)
	e.SendBefore, e.NextLookupAt, e.LeaseExpiresAt = instantPtr(before), instantPtr(lookup), instantPtr(leaseExpires)
	e.CreatedAt, e.UpdatedAt = instant(created), instant(updated)
	return e, done()
}

const attemptColumns = `attempts.id, attempts.effect_id, attempts.run_id, attempts.number, attempts.begun_at, attempts.send_before, attempts.wire_hash,
 attempts.result, attempts.phase, attempts.class, attempts.status, attempts.provider_id, attempts.detail, attempts.settled_at`

func scanAttempt(row scanner, more ...any) (holdpoint.Attempt, error) {
	var a holdpoint.Attempt
	var begun, before int64
	var settled sql.NullInt64
	err := row.Scan(append([]any{&a.ID, &a.EffectID, &a.RunID, &a.Number, &begun, &before, &a.WireHash,
		&a.Result, &a.Phase, &a.Class, &a.Status, &a.ProviderID, &a.Detail, &settled}, more...)...)
	a.BegunAt, a.SendBefore, a.SettledAt = instant(begun), instant(before), instantPtr(settled)
	return a, err
}

// collect reads all rows of a query with one scan function.
func collect[T any](rows *sql.Rows, err error, scan func(scanner) (T, error)) ([]T, error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, rows.Err()
}

// lockRun locks a run's row, the first lock of every verb that moves things of one run, and reads it with the
// transaction's clock; not_found if there is none.
func (t *tx) lockRun(ctx context.Context, tenant, id string) (holdpoint.Run, time.Time, error) {
	r, err := scanRun(t.QueryRowContext(ctx, t.s.expand("SELECT "+runColumns+" FROM runs WHERE tenant = $1 AND id = $2 {{for_update}}"), tenant, id))
	if errors.Is(err, sql.ErrNoRows) {
		return r, time.Time{}, noRun(id)
	}
	if err != nil {
		return r, time.Time{}, err
	}
	// The clock of the locking statement is that of its arrival; after a wait for the lock a fresh reading is needed.
	now, err := t.now(ctx)
	return r, now, err
}

func noRun(id string) error {
	return holdpoint.Errorf(holdpoint.CodeNotFound, "there is no run %s in this tenant; look it up by key", id)
}

// owned checks a fence against a locked run: nil if the caller holds the live lease.
func owned(f store.Fence, r holdpoint.Run, now time.Time) error {
	lost := r.State != holdpoint.RunProcessing || r.LeaseOwner != f.Owner || r.Version != f.Version ||
		r.LeaseExpiresAt == nil || !now.Before(*r.LeaseExpiresAt)
	switch {
	case lost:
		return holdpoint.Errorf(holdpoint.CodeLeaseLost, "this lease is no longer held; stop working on the run, read it, and claim it again if it is claimable").
			With("state", r.State).With("version", r.Version)
	case r.ExecutionID != "" && r.ExecutionID != f.ExecutionID:
		return holdpoint.Errorf(holdpoint.CodeLeaseOtherExecution, "the lease belongs to another execution; claim the run by its id to work on it in this one")
	}
	return nil
}

// oneRow turns the number of rows that a compare-and-set moved into an error when it is not one.
func oneRow(res sql.Result, err error, otherwise error) error {
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err != nil {
		return err
	}
	if n != 1 {
		return otherwise
	}
	return nil
}

// bit stores a boolean.
func bit(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// text writes JSON for a TEXT column; the values written this way always encode.
func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic("sqlstore: " + err.Error())
	}
	return string(b)
}
